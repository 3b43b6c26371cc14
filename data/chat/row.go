// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/internal/jsontext"
)

// Form is in which of the usual forms a data set has its rows.
type Form string

// The forms, by the keys that they are recognized by.
const (
	Messages         Form = "messages"           // a list of objects with role and content
	PromptCompletion Form = "prompt+completion"  // two texts, or two lists of messages
	Text             Form = "text"               // a text
	ShareGPT         Form = "conversations"      // a list of objects with from and value
	Alpaca           Form = "instruction+output" // and perhaps an input
)

// Description is what becomes of rows of the form.
func (f Form) Description() string {
	switch f {
	case Messages:
		return "messages are conversations, rendered by the chat template"
	case PromptCompletion:
		return "the completion follows the prompt"
	case Text:
		return "text is learned as it is"
	case ShareGPT:
		return "conversations (ShareGPT) are conversations: from is the role, value the content"
	case Alpaca:
		return "instruction and input (Alpaca) are the user's message, output is the answer"
	}
	return string(f)
}

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
}

// message is a message as templates read it.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// ParseRow reads a row, a JSON object, in the form that its keys say. Keys that no form has are ignored. It is an error
// if the row has none of the forms or several, or if a value is not what its form has.
func ParseRow(object []byte) (Row, error) {
	fields, err := jsontext.Fields(object)
	if err != nil {
		return Row{}, err
	}
	values, keys := map[string]json.RawMessage{}, []string{}
	for _, f := range fields {
		if _, twice := values[f.Key]; twice {
			return Row{}, fmt.Errorf("the row has the key %.100q twice", f.Key)
		}
		values[f.Key] = f.Value
		keys = append(keys, f.Key)
	}
	var found []Form
	for _, f := range []Form{Messages, PromptCompletion, Text, ShareGPT, Alpaca} {
		has := true
		for key := range strings.SplitSeq(string(f), "+") {
			has = has && values[key] != nil
		}
		if has {
			found = append(found, f)
		}
	}
	switch len(found) {
	case 0:
		return Row{}, fmt.Errorf("the row has the keys %.200q: want messages, prompt and completion, text, "+
			"conversations, or instruction and output", keys)
	case 1:
	default:
		return Row{}, fmt.Errorf("the row has several forms, %q: want one", found)
	}
	row := Row{Form: found[0]}
	if err := row.parse(values); err != nil {
		return Row{}, err
	}
	return row, row.settings(values)
}

func (r *Row) parse(values map[string]json.RawMessage) (err error) {
	switch r.Form {
	case Messages:
		r.Messages, err = conversation("messages", values["messages"])
	case ShareGPT:
		r.Messages, err = shareGPT(values["conversations"], values["system"])
	case Alpaca:
		return r.alpaca(values)
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
	return err
}

// settings reads what the template gets besides.
func (r *Row) settings(values map[string]json.RawMessage) error {
	if v := values["chat_template_kwargs"]; v != nil && string(v) != "null" {
		if err := jsonfile.Unmarshal(v, &r.Variables); err != nil {
			return fmt.Errorf("chat_template_kwargs: %w", err)
		}
	}
	v := values["tools"]
	if v == nil || string(v) == "null" {
		return nil
	}
	if v[0] == '"' { // JSON in a text, as columns of data sets have it
		inner, err := textOf("tools", v)
		if err != nil {
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

// conversation checks a list of messages.
func conversation(key string, v json.RawMessage) (json.RawMessage, error) {
	var list []struct {
		Role    *string
		Content json.RawMessage
		Calls   json.RawMessage `json:"tool_calls"`
	}
	if err := jsonfile.Unmarshal(v, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s is empty: want at least one message", key)
	}
	for i, m := range list {
		if m.Role == nil {
			return nil, fmt.Errorf("%s[%d] has no role: want user, assistant, system or tool", key, i)
		}
		if m.Content == nil && m.Calls == nil {
			return nil, fmt.Errorf("%s[%d] has no content", key, i)
		}
		for _, kind := range []string{"image", "video", "audio"} {
			if m.Content != nil && m.Content[0] == '[' && bytes.Contains(m.Content, []byte(`"`+kind)) {
				return nil, fmt.Errorf("%s[%d] has content of type %s: want text, models of others are not built in",
					key, i, kind)
			}
		}
	}
	return v, nil
}

// roles are those of ShareGPT's data sets.
var roles = map[string]string{"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
	"chatgpt": "assistant", "model": "assistant", "bing": "assistant", "system": "system", "tool": "tool",
	"observation": "tool"}

func shareGPT(v, system json.RawMessage) (json.RawMessage, error) {
	var list []struct{ From, Value *string }
	if err := jsonfile.Unmarshal(v, &list); err != nil {
		return nil, fmt.Errorf("conversations: %w", err)
	}
	var messages []message
	if system != nil && string(system) != "null" {
		text, err := textOf("system", system)
		if err != nil {
			return nil, err
		}
		if text != "" {
			messages = append(messages, message{"system", text})
		}
	}
	for i, m := range list {
		if m.From == nil || m.Value == nil {
			return nil, fmt.Errorf("conversations[%d] has no from or no value: want both", i)
		}
		role, ok := roles[*m.From]
		if !ok {
			return nil, fmt.Errorf("conversations[%d].from is %.40q: want human, gpt, system or tool", i, *m.From)
		}
		messages = append(messages, message{role, *m.Value})
	}
	if len(list) == 0 {
		return nil, errors.New("conversations is empty: want at least one message")
	}
	return encode(messages)
}

func (r *Row) alpaca(values map[string]json.RawMessage) (err error) {
	text := map[string]string{}
	for _, key := range []string{"instruction", "input", "output", "system"} {
		if v := values[key]; v != nil && string(v) != "null" {
			if text[key], err = textOf(key, v); err != nil {
				return err
			}
		}
	}
	if h := values["history"]; h != nil && string(h) != "null" && string(h) != "[]" {
		return errors.New("history is not supported in rows with instruction and output: want messages")
	}
	var prompt []message
	if text["system"] != "" {
		prompt = append(prompt, message{"system", text["system"]})
	}
	parts := slices.DeleteFunc([]string{text["instruction"], text["input"]}, func(s string) bool { return s == "" })
	prompt = append(prompt, message{"user", strings.Join(parts, "\n")})
	if r.PromptMessages, err = encode(prompt); err == nil {
		r.CompletionMessages, err = encode([]message{{"assistant", text["output"]}})
	}
	return err
}

// encode writes messages as JSON.
func encode(messages []message) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(messages); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}
