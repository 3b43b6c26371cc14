// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/internal/jsontext"
)

// Form is in which of the usual forms a data set has its rows.
type Form string

// The forms, by the keys that they are recognized by.
const (
	Messages         Form = "messages"             // a list of objects with role and content
	PromptCompletion Form = "prompt+completion"    // two texts, or two lists of messages
	Text             Form = "text"                 // a text
	ShareGPT         Form = "conversations"        // a list of objects with from and value, or with role and content
	Alpaca           Form = "instruction+output"   // and perhaps an input
	Dolly            Form = "instruction+response" // and perhaps a context
)

// spec is how a form is read.
type spec struct {
	form Form
	// more are keys that it reads beside its own.
	more        []string
	description string
}

// specs are all forms. Those that are rendered by the chat template read tools and chat_template_kwargs too.
var specs = []spec{
	{Messages, []string{"system", "tools", "chat_template_kwargs"},
		"messages are conversations, rendered by the chat template"},
	{PromptCompletion, []string{"tools", "chat_template_kwargs"}, "the completion follows the prompt"},
	{ShareGPT, []string{"conversation", "system", "tools", "chat_template_kwargs"},
		"conversations (ShareGPT) are conversations: from or role is the role, value or content the text"},
	{Alpaca, []string{"input", "system", "history", "tools", "chat_template_kwargs"},
		"instruction and input (Alpaca) are the user's message, output is the answer"},
	{Dolly, []string{"context", "system", "history", "tools", "chat_template_kwargs"},
		"instruction and context (Dolly) are the user's message, response is the answer"},
	{Text, nil, "text is learned as it is"},
}

// keys are those that a row of the form must have.
func (f Form) keys() []string { return strings.Split(string(f), "+") }

func (f Form) spec() spec {
	for _, s := range specs {
		if s.form == f {
			return s
		}
	}
	return spec{form: f, description: string(f)}
}

// Description is what becomes of rows of the form.
func (f Form) Description() string { return f.spec().description }

// Row is a row of a data set. Of Text, Messages and Prompt with Completion one is set.
type Row struct {
	Form Form

	Text               string
	Prompt, Completion string
	// Conversations are JSON lists of messages: a whole one, or the two parts of one.
	Messages, PromptMessages, CompletionMessages json.RawMessage
	// Tools is a JSON list of functions; nil: none. Variables are further variables of the template.
	Tools     json.RawMessage
	Variables map[string]json.RawMessage
	// Unread are the keys that the form has no use for, sorted.
	Unread []string
	// Place is where the row was read, "FILE: line 3", or "FILE: row 3" of a Parquet file; "": from no file.
	Place string
}

// message is a message as templates read it.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// ParseRow reads a row, a JSON object, in the form that its keys say. A key whose value is null is not there, and other
// keys are not read; see Row.Unread. Beside the keys of another form text is one of these. It is an error if the row
// has none of the forms or several, or if a value is not what its form has.
func ParseRow(object []byte) (Row, error) {
	values, keys, err := valuesOf(object)
	if err != nil {
		return Row{}, err
	}
	if one := values["conversation"]; values["conversations"] == nil && one != nil && one[0] == '[' {
		values["conversations"] = one // as LMSYS has it
	}
	form, err := formOf(values, keys)
	if err != nil {
		return Row{}, err
	}
	row, read := Row{Form: form}, slices.Concat(form.keys(), form.spec().more)
	for _, key := range keys {
		if values[key] != nil && !slices.Contains(read, key) {
			row.Unread = append(row.Unread, key)
		}
	}
	if err := row.parse(values); err != nil {
		return Row{}, err
	}
	return row, row.settings(values)
}

// valuesOf are the values of an object by their keys, without those that are null, and all keys, sorted.
func valuesOf(object []byte) (values map[string]json.RawMessage, keys []string, err error) {
	if at := jsontext.InvalidUTF8(object); at >= 0 {
		return nil, nil, fmt.Errorf("byte 0x%02X of the row is not UTF-8, after %q", object[at],
			object[max(0, at-20):at])
	}
	fields, err := jsontext.Fields(object)
	if err != nil {
		return nil, nil, err
	}
	values = map[string]json.RawMessage{}
	for _, f := range fields {
		if _, twice := values[f.Key]; twice {
			return nil, nil, fmt.Errorf("the row has the key %.100q twice", f.Key)
		}
		values[f.Key] = f.Value
	}
	keys = slices.Sorted(maps.Keys(values))
	maps.DeleteFunc(values, func(_ string, v json.RawMessage) bool { return string(v) == "null" })
	return values, keys, nil
}

// ParseRecord implements jsonlines.Record: jsonlines.Open[chat.Row] streams the rows of files. A row whose form is
// another than that of the rows before it is no error there.
func (r *Row) ParseRecord(text []byte, place string) (err error) {
	if *r, err = ParseRow(text); err == nil {
		r.Place = place
	}
	return err
}

// formOf is the form of a row with values.
func formOf(values map[string]json.RawMessage, keys []string) (Form, error) {
	var found []Form
	for _, s := range specs {
		if !slices.ContainsFunc(s.form.keys(), func(key string) bool { return values[key] == nil }) {
			found = append(found, s.form)
		}
	}
	if last := len(found) - 1; last > 0 && found[last] == Text {
		found = found[:last] // it repeats the others, as in tatsu-lab/alpaca
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", fmt.Errorf("the row has several forms, %q: want one, so remove the keys of the others", found)
	case values["chosen"] != nil && values["rejected"] != nil:
		return "", errors.New("the row has a chosen and a rejected answer, for training on preferences (ParsePair, " +
			"examples/dpo): here want " + wantedForms)
	}
	return "", fmt.Errorf("the row has %s: want %s", described(values, keys), wantedForms)
}

// described names the keys of a row, and those of them whose value is null apart.
func described(values map[string]json.RawMessage, keys []string) string {
	var has, null []string
	for _, key := range keys {
		if values[key] != nil {
			has = append(has, key)
		} else {
			null = append(null, key)
		}
	}
	if len(null) == 0 {
		return fmt.Sprintf("the keys %.200q", has)
	}
	return fmt.Sprintf("the keys %.200q, and null under %.200q", has, null)
}

const wantedForms = "messages, prompt and completion, text, conversations, instruction and output, or instruction " +
	"and response"

func (r *Row) parse(values map[string]json.RawMessage) (err error) {
	switch r.Form {
	case Messages:
		r.Messages, err = conversation("messages", values["messages"])
	case ShareGPT:
		r.Messages, err = conversation("conversations", values["conversations"])
	case Alpaca:
		return r.instruction(values, "input", "output")
	case Dolly:
		return r.instruction(values, "context", "response")
	case Text:
		r.Text, err = textOf("text", values["text"])
	case PromptCompletion:
		p, c := values["prompt"], values["completion"]
		if p[0] == '"' || c[0] == '"' {
			if r.Prompt, err = textOf("prompt", p); err == nil {
				r.Completion, err = textOf("completion", c)
			}
			return err
		}
		if r.PromptMessages, err = conversation("prompt", p); err == nil {
			r.CompletionMessages, err = conversation("completion", c)
		}
	}
	if err == nil && r.Messages != nil {
		r.Messages, err = withSystem(r.Messages, values["system"])
	}
	return err
}

// settings reads what the template gets besides.
func (r *Row) settings(values map[string]json.RawMessage) error {
	if v := values["chat_template_kwargs"]; v != nil {
		if err := jsonfile.Unmarshal(v, &r.Variables); err != nil {
			return fmt.Errorf("chat_template_kwargs: %w", err)
		}
	}
	v := values["tools"]
	if v == nil {
		return nil
	}
	if v[0] == '"' { // JSON in a text, as columns of data sets have it
		inner, err := textOf("tools", v)
		if err != nil || strings.TrimSpace(inner) == "" {
			return err
		}
		v = []byte(inner)
	}
	var list []json.RawMessage
	if err := jsonfile.Unmarshal(v, &list); err != nil {
		return fmt.Errorf("tools: %w", err)
	}
	if len(list) > 0 {
		r.Tools = v
	}
	return nil
}

func textOf(key string, v json.RawMessage) (string, error) {
	return jsontext.Field{Key: key, Value: v}.Text()
}

// withSystem puts the system message of a column before a conversation.
func withSystem(messages, column json.RawMessage) (json.RawMessage, error) {
	if column == nil {
		return messages, nil
	}
	text, err := textOf("system", column)
	if err != nil || text == "" {
		return messages, err
	}
	var list []json.RawMessage
	var first struct{ Role, Content json.RawMessage }
	if err := errors.Join(json.Unmarshal(messages, &list), json.Unmarshal(list[0], &first)); err != nil {
		return nil, err
	}
	if string(first.Role) == `"system"` {
		var content string
		if json.Unmarshal(first.Content, &content) == nil && content == text {
			return messages, nil
		}
		return nil, errors.New("the row has a system message in system and another in the conversation: want one")
	}
	system, err := encode([]message{{"system", text}})
	if err != nil {
		return nil, err
	}
	return concat(system, messages), nil
}

// concat joins two lists.
func concat(a, b json.RawMessage) json.RawMessage {
	a, b = bytes.TrimSpace(a), bytes.TrimSpace(b)
	return slices.Concat(a[:len(a)-1], []byte(","), b[1:])
}

// instruction makes a prompt and its completion of the columns instruction, input and answer.
func (r *Row) instruction(values map[string]json.RawMessage, input, answer string) (err error) {
	text := map[string]string{}
	for _, key := range []string{"instruction", input, answer, "system"} {
		if v := values[key]; v != nil {
			if text[key], err = textOf(key, v); err != nil {
				return err
			}
		}
	}
	if h := values["history"]; h != nil && string(h) != "[]" {
		return fmt.Errorf("history is not supported in rows with instruction and %s: want messages", answer)
	}
	var prompt []message
	if text["system"] != "" {
		prompt = append(prompt, message{"system", text["system"]})
	}
	parts := slices.DeleteFunc([]string{text["instruction"], text[input]}, func(s string) bool { return s == "" })
	prompt = append(prompt, message{"user", strings.Join(parts, "\n")})
	if r.PromptMessages, err = encode(prompt); err == nil {
		r.CompletionMessages, err = encode([]message{{"assistant", text[answer]}})
	}
	return err
}

// encode writes messages as JSON.
func encode[T message | json.RawMessage](messages []T) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(messages); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}
