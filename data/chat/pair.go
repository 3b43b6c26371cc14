// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/lockstep-ml/lockstep/internal/jsonfile"
)

// Pair is a row of preferences: a prompt with an answer that was chosen and one that was rejected. They are texts or,
// if PromptMessages is set, JSON lists of messages.
type Pair struct {
	Prompt, Chosen, Rejected                         string
	PromptMessages, ChosenMessages, RejectedMessages json.RawMessage
	// Margin is how much more the chosen answer is worth; 0: the row does not say.
	Margin float64
	// Tools is a JSON list of functions; nil: none. Variables are further variables of the template.
	Tools     json.RawMessage
	Variables map[string]json.RawMessage
	// Unread are the keys that have no use here, sorted.
	Unread []string
	// Place is the file and the line, or the row, that it was read from.
	Place string
}

const wantedPairs = "chosen and rejected, two texts or two lists of messages, and prompt, messages, conversations or " +
	"instruction; a prompt that is missing is what the two have in common at their beginning"

// pairKeys are those that rows of preferences may have.
var pairKeys = []string{"chosen", "rejected", "prompt", "messages", "conversations", "instruction", "input", "system",
	"margin", "tools", "chat_template_kwargs"}

// Description is what rows of the kind are.
func (p *Pair) Description() string {
	if p.PromptMessages != nil {
		return "chosen and rejected are answers in conversations, rendered by the chat template"
	}
	return "chosen and rejected are texts that follow the prompt"
}

// ParsePair reads a row of preferences, a JSON object with chosen and rejected. They are texts, lists of messages, or
// one message each, and follow a prompt: a text or a list of messages of prompt, the conversation of messages or
// conversations (ShareGPT), or instruction and input (Alpaca); beside prompt, the others are not read, as in TRL.
// Without one, and where prompt is a text and the answers are conversations, the prompt is what both begin with, as in
// TRL. A key whose value is null is not there, and keys of no use are not read; see Pair.Unread.
func ParsePair(object []byte) (p Pair, err error) {
	values, keys, err := valuesOf(object)
	if err != nil {
		return p, err
	}
	if values["chosen"] == nil || values["rejected"] == nil {
		return p, fmt.Errorf("the row has %s: want %s", described(values, keys), wantedPairs)
	}
	var prompts []string
	for _, key := range []string{"prompt", "messages", "conversations", "instruction"} {
		if values[key] != nil {
			prompts = append(prompts, key)
		}
	}
	if len(prompts) > 1 && prompts[0] == "prompt" { // as in TRL; messages of data sets often repeat the chosen answer
		for _, key := range prompts[1:] {
			delete(values, key)
			p.Unread = append(p.Unread, key)
		}
		prompts = prompts[:1]
	}
	if len(prompts) > 1 {
		return p, fmt.Errorf("the row has several prompts, %q: want one", prompts)
	}
	for _, key := range keys {
		if values[key] != nil && !slices.Contains(pairKeys, key) {
			p.Unread = append(p.Unread, key)
		}
	}
	slices.Sort(p.Unread)
	if v := values["margin"]; v != nil {
		if v[0] == '"' { // as tables have it
			v = bytes.Trim(v, `"`)
		}
		if err := jsonfile.Unmarshal(v, &p.Margin); err != nil {
			return p, fmt.Errorf("margin: %w", err)
		}
	}
	settings := Row{}
	if err := settings.settings(values); err != nil {
		return p, err
	}
	p.Tools, p.Variables = settings.Tools, settings.Variables
	if len(prompts) == 0 {
		prompts = []string{""}
	}
	return p, p.parse(values, prompts[0])
}

// ParseRecord implements jsonlines.Record: jsonlines.Open[chat.Pair] streams the rows of files.
func (p *Pair) ParseRecord(text []byte, place string) (err error) {
	if *p, err = ParsePair(text); err == nil {
		p.Place = place
	}
	return err
}

// parse reads the prompt of a key, "" if there is none, and the answers.
func (p *Pair) parse(values map[string]json.RawMessage, prompt string) (err error) {
	before := values[prompt]
	texts := values["chosen"][0] == '"' || values["rejected"][0] == '"'
	if texts {
		if p.Chosen, err = textOf("chosen", values["chosen"]); err != nil {
			return err
		}
		if p.Rejected, err = textOf("rejected", values["rejected"]); err != nil {
			return err
		}
	} else if err := p.answers(values); err != nil {
		return err
	}
	switch {
	case texts && prompt == "":
		p.splitTexts()
		return nil
	case texts && prompt == "prompt" && before[0] == '"':
		p.Prompt, err = textOf(prompt, before)
		return err
	case texts: // the answers of the conversation
		for _, a := range []struct {
			text string
			to   *json.RawMessage
		}{{p.Chosen, &p.ChosenMessages}, {p.Rejected, &p.RejectedMessages}} {
			if *a.to, err = encode([]message{{"assistant", a.text}}); err != nil {
				return err
			}
		}
		p.Chosen, p.Rejected = "", ""
	case prompt == "":
		return p.splitMessages("")
	case prompt == "prompt" && before[0] == '"':
		text, err := textOf(prompt, before)
		if err != nil {
			return err
		}
		return p.splitMessages(text)
	}
	if prompt == "instruction" {
		return p.instruction(values)
	}
	if p.PromptMessages, err = conversation(prompt, before); err != nil {
		return err
	}
	p.PromptMessages, err = withSystem(p.PromptMessages, values["system"])
	return err
}

// answers reads answers that are messages.
func (p *Pair) answers(values map[string]json.RawMessage) (err error) {
	for key, to := range map[string]*json.RawMessage{"chosen": &p.ChosenMessages, "rejected": &p.RejectedMessages} {
		v := values[key]
		if v[0] == '{' {
			v = slices.Concat([]byte("["), v, []byte("]"))
		}
		if *to, err = conversation(key, v); err != nil {
			return err
		}
	}
	return nil
}

// instruction is the prompt of instruction and input.
func (p *Pair) instruction(values map[string]json.RawMessage) error {
	asked := maps.Clone(values)
	asked["output"] = json.RawMessage(`""`)
	row := Row{Form: Alpaca}
	if err := row.instruction(asked, "input", "output"); err != nil {
		return err
	}
	p.PromptMessages = row.PromptMessages
	return nil
}

// splitTexts takes the prompt from the beginning of both texts. A space before the answers is theirs.
func (p *Pair) splitTexts() {
	n, last := 0, 0 // of bytes that are equal, and where the last character of them begins
	for n < min(len(p.Chosen), len(p.Rejected)) {
		r, size := utf8.DecodeRuneInString(p.Chosen[n:])
		if other, _ := utf8.DecodeRuneInString(p.Rejected[n:]); r != other {
			break
		}
		last = n
		n += size
	}
	if n == min(len(p.Chosen), len(p.Rejected)) || n > 0 && p.Chosen[last:n] == " " { // no answer is empty
		n = last
	}
	p.Prompt, p.Chosen, p.Rejected = p.Chosen[:n], p.Chosen[n:], p.Rejected[n:]
}

// splitMessages takes the prompt from the beginning of both conversations. If they have nothing in common, asked is
// what the user said.
func (p *Pair) splitMessages(asked string) error {
	var lists [2][]json.RawMessage
	if err := errors.Join(json.Unmarshal(p.ChosenMessages, &lists[0]),
		json.Unmarshal(p.RejectedMessages, &lists[1])); err != nil {
		return err
	}
	n, shorter := 0, min(len(lists[0]), len(lists[1]))
	for n < shorter && sameJSON(lists[0][n], lists[1][n]) {
		n++
	}
	if n == shorter { // no answer is empty
		n--
	}
	if n <= 0 && asked == "" {
		return errors.New("chosen and rejected begin with different messages, and there is no prompt: want one, or " +
			"the same messages at the beginning of both")
	}
	if n <= 0 {
		var err error
		p.PromptMessages, err = encode([]message{{"user", asked}})
		return err
	}
	for _, part := range []struct {
		list []json.RawMessage
		to   *json.RawMessage
	}{{lists[0][:n], &p.PromptMessages}, {lists[0][n:], &p.ChosenMessages}, {lists[1][n:], &p.RejectedMessages}} {
		var err error
		if *part.to, err = encode(part.list); err != nil {
			return err
		}
	}
	return nil
}

// sameJSON reports whether texts have the same value.
func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// ReadPairs reads rows of preferences from files in the formats of ReadRows. The answers of all rows must be texts, or
// those of all conversations.
func ReadPairs(paths ...string) ([]Pair, error) { return Columns(nil).ReadPairs(paths...) }

// ReadPairs is the function ReadPairs for rows of these columns.
func (c Columns) ReadPairs(paths ...string) (pairs []Pair, err error) {
	for _, path := range paths {
		err := c.readRecords(path, "rows are read from JSON objects with "+wantedPairs+wantedFormats, func(text []byte,
			place string, unread ...string) error {
			p, err := ParsePair(text)
			p.Unread, p.Place = append(p.Unread, unread...), place
			switch {
			case err != nil:
				return err
			case len(pairs) > 0 && (p.PromptMessages == nil) != (pairs[0].PromptMessages == nil):
				return fmt.Errorf("%s, and in the rows before it %s: want one form", p.Description(),
					pairs[0].Description())
			}
			pairs = append(pairs, p)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("chat: %w", err)
		}
	}
	if len(pairs) == 0 {
		return nil, fmt.Errorf("chat: no rows in %q: want at least one", paths)
	}
	return pairs, nil
}
