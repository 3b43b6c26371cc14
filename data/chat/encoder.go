// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
)

// Encoder makes samples of rows, as TRL's SFTTrainer does. It is safe for concurrent use if it does not change.
type Encoder struct {
	Tokenizer *tokenizers.Tokenizer
	// Template renders conversations; nil: rows must be texts.
	Template *Template
	// EOS is appended to texts and completions that are no conversations; "": nothing is.
	EOS string
	// Ends are the tokens on which a model stops. An answer must end on one of them, or the model that learns it will
	// not stop.
	Ends []int32
	// AssistantOnly learns only what the template marks by {% generation %}.
	AssistantOnly bool
	// AllTokens learns the prompts of prompt and completion too.
	AllTokens bool
	// MaxLength cuts longer samples; 0: none.
	MaxLength int
}

// Sample is an encoded row: its tokens, and which of them are learned.
type Sample struct {
	IDs     []int32
	Learned []bool
	// Cut is how many tokens MaxLength has taken from the end.
	Cut int
	// Lengths are those of the texts in it, one after the other, if it is packed; nil: it is one text.
	Lengths []int
	// InToken says that the prompt ends inside a token of the whole text: that token is learned, and a model that gets
	// the prompt alone sees other tokens at its end. TRL warns of such rows.
	InToken bool
}

// Teaches reports whether a token is learned. Where a text was cut it may be that none is.
func (s Sample) Teaches() bool { return slices.Contains(s.Learned, true) }

// errNothing is a row that teaches nothing.
var errNothing = errors.New("it has no token to learn")

// Encode makes a sample of a row. It is an error if the row is a conversation and there is no template, if nothing of
// it would be learned, or if an answer that is learned does not end on one of Ends.
func (e *Encoder) Encode(r Row) (s Sample, err error) {
	if e.AssistantOnly && r.Messages == nil {
		return s, fmt.Errorf("a row with %s: assistant_only_loss needs conversations in messages", r.Form)
	}
	switch {
	case r.Messages != nil:
		s, err = e.conversation(r)
	case r.PromptMessages != nil, r.Form == PromptCompletion:
		s, err = e.completion(r)
	default:
		s.IDs, err = e.Tokenizer.EncodeWithSpecial(e.ended(r.Text))
		s.Learned = slices.Repeat([]bool{true}, len(s.IDs))
	}
	if err != nil {
		return s, err
	}
	if !s.Teaches() {
		return s, errNothing
	}
	if n := e.MaxLength; n > 0 && len(s.IDs) > n {
		s.Cut = len(s.IDs) - n
		s.IDs, s.Learned = s.IDs[:n], s.Learned[:n]
	}
	return s, nil
}

// ended is a text with the token that ends it.
func (e *Encoder) ended(text string) string {
	if strings.HasSuffix(text, e.EOS) {
		return text
	}
	return text + e.EOS
}

func (e *Encoder) render(c Conversation) (string, []Span, error) {
	if e.Template == nil {
		return "", nil, fmt.Errorf("it is a conversation, and %w; or give a file with one by --chat_template",
			ErrNoTemplate)
	}
	text, spans, err := e.Template.Render(c)
	if err == nil && strings.TrimSpace(text) == "" {
		err = e.Template.located(errors.New("chat: the template renders the conversation as an empty text"))
	}
	if err == nil && leavesOut(text, c.Messages) {
		err = e.Template.located(fmt.Errorf("chat: the template leaves out what the messages say: it makes %.100q of "+
			"them: want contents as the template reads them, such as [{\"type\": \"text\", \"text\": …}]", text))
	}
	return text, spans, err
}

func (e *Encoder) conversation(r Row) (s Sample, err error) {
	text, spans, err := e.render(Conversation{Messages: r.Messages, Tools: r.Tools, Variables: r.Variables})
	if err != nil {
		return s, err
	}
	encoded, err := e.Tokenizer.Tokenize(text, tokenizers.EncodeOptions{NoSpecialTokens: true})
	if err != nil {
		return s, err
	}
	s.IDs = encoded.IDs
	s.Learned = slices.Repeat([]bool{!e.AssistantOnly}, len(s.IDs))
	if !e.AssistantOnly {
		_, answered, err := split(r.Messages)
		if err == nil && answered {
			err = e.stops(s.IDs)
		}
		if err != nil {
			err = fmt.Errorf("the conversation ends with an answer that %w: want a chat template that ends answers "+
				"with such a token", err)
		}
		return s, err
	}
	if len(spans) == 0 && !answers(r.Messages) {
		return s, fmt.Errorf("%w: it has no message of the assistant, and assistant_only_loss learns nothing else",
			errNothing)
	}
	if len(spans) == 0 {
		return s, fmt.Errorf("%w: the chat template marks no answers; assistant_only_loss needs {%% generation %%} "+
			"around them", errNothing)
	}
	for _, span := range spans {
		last := -1
		for i, o := range encoded.Offsets {
			if o.Start < span.End && o.End > span.Start {
				s.Learned[i] = true
				last = i
			}
		}
		if err := e.stops(s.IDs[:last+1]); err != nil {
			return s, fmt.Errorf("the answer %.60q %w: move the end of {%% generation %%} behind it in the chat "+
				"template", text[span.Start:span.End], err)
		}
	}
	return s, nil
}

// stops is an error unless the tokens end on one of Ends, white space aside.
func (e *Encoder) stops(ids []int32) error {
	for i := len(ids) - 1; i >= 0; i-- {
		if slices.Contains(e.Ends, ids[i]) {
			return nil
		}
		if text, err := e.Tokenizer.Decode(ids[i : i+1]); err != nil || strings.TrimSpace(text) != "" {
			break
		}
	}
	var names []string
	for _, id := range e.Ends {
		name, _ := e.Tokenizer.Token(id)
		names = append(names, name)
	}
	return fmt.Errorf("does not end on a token at which the model stops (%s), so it would not learn to",
		strings.Join(names, ", "))
}

// completion is a prompt and what follows it.
func (e *Encoder) completion(r Row) (s Sample, err error) {
	prompt, whole := r.Prompt, ""
	encode := e.Tokenizer.EncodeWithSpecial
	if r.PromptMessages != nil {
		encode = e.Tokenizer.Encode // the template has the special tokens
		c := Conversation{Messages: r.PromptMessages, Tools: r.Tools, Variables: r.Variables, GenerationPrompt: true}
		if prompt, _, err = e.render(c); err != nil {
			return s, err
		}
		c.GenerationPrompt = false
		c.Messages = concat(r.PromptMessages, r.CompletionMessages)
		if whole, _, err = e.render(c); err != nil {
			return s, err
		}
	} else {
		whole = prompt + e.ended(r.Completion)
	}
	before, err := encode(prompt)
	if err != nil {
		return s, err
	}
	if s.IDs, err = encode(whole); err != nil {
		return s, err
	}
	n := 0 // how many tokens the prompt alone has in common with the whole
	for n < min(len(before), len(s.IDs)) && before[n] == s.IDs[n] {
		n++
	}
	s.Learned = slices.Repeat([]bool{true}, len(s.IDs))
	for i := range n {
		s.Learned[i] = e.AllTokens
	}
	s.InToken = n < len(before)
	if err := e.stops(s.IDs); err != nil {
		return s, fmt.Errorf("the completion %w", err)
	}
	return s, nil
}

// Marked is the text of a sample with ⟦ and ⟧ around what is learned.
func (e *Encoder) Marked(s Sample) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s.IDs); {
		end := i + 1
		for end < len(s.IDs) && s.Learned[end] == s.Learned[i] {
			end++
		}
		text, err := e.Tokenizer.Decode(s.IDs[i:end])
		if err != nil {
			return "", err
		}
		if s.Learned[i] {
			text = "⟦" + text + "⟧"
		}
		b.WriteString(text)
		i = end
	}
	return b.String(), nil
}

// Prompt is the tokens of a row up to the answer that it ends with, from which a model continues. A text has none.
func (e *Encoder) Prompt(r Row) ([]int32, error) {
	messages := r.PromptMessages
	if r.Messages != nil {
		list, answered, err := split(r.Messages)
		if err != nil {
			return nil, err
		}
		if answered {
			list = list[:len(list)-1]
		}
		if len(list) == 0 {
			return nil, nil
		}
		if messages, err = encode(list); err != nil {
			return nil, err
		}
	}
	switch {
	case messages != nil:
		text, _, err := e.render(Conversation{Messages: messages, Tools: r.Tools, Variables: r.Variables,
			GenerationPrompt: true})
		if err != nil {
			return nil, err
		}
		return e.Tokenizer.Encode(text)
	case r.Prompt != "":
		return e.Tokenizer.EncodeWithSpecial(r.Prompt)
	}
	return nil, nil
}

// answers reports whether a conversation has a message of the assistant.
func answers(conversation json.RawMessage) bool {
	var messages []struct{ Role string }
	return json.Unmarshal(conversation, &messages) == nil &&
		slices.ContainsFunc(messages, func(m struct{ Role string }) bool { return m.Role == "assistant" })
}

// split are the messages of a conversation, and whether the last is the assistant's.
func split(conversation json.RawMessage) (messages []json.RawMessage, answered bool, err error) {
	var last struct{ Role string }
	if err := json.Unmarshal(conversation, &messages); err != nil || len(messages) == 0 {
		return nil, false, err
	}
	err = json.Unmarshal(messages[len(messages)-1], &last)
	return messages, last.Role == "assistant", err
}
