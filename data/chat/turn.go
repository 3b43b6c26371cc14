// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
)

// TurnEnds are the tokens with which the template ends an answer, as <|im_end|>: a model that was tuned with it stops
// there, also where its configuration names another token. There are none if a text follows the answer, or nothing. It
// is an error if the template leaves out what messages say.
func (t *Template) TurnEnds(tok *tokenizers.Tokenizer) ([]int32, error) {
	const question, answer = "a question", "the answer to it"
	text, err := t.exchange(question, answer)
	if err != nil {
		return nil, err
	}
	at := strings.LastIndex(text, answer)
	if at < 0 || !strings.Contains(text, question) {
		return nil, t.located(fmt.Errorf("chat: the template leaves out what messages say: it makes %.100q of a "+
			"question and its answer: want one that writes message.content", text))
	}
	ids, err := tok.Encode(strings.TrimSpace(text[at+len(answer):]))
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	added := func(a tokenizers.AddedToken) bool { return a.ID == ids[0] }
	if !slices.ContainsFunc(tok.AddedTokens(), added) {
		return nil, nil
	}
	return ids[:1], nil
}

// exchange is the text of a question and its answer. Templates of models that see pictures too may want contents in
// parts.
func (t *Template) exchange(question, answer string) (text string, err error) {
	parts := func(text string) any { return []map[string]string{{"type": "text", "text": text}} }
	for _, content := range []func(text string) any{func(text string) any { return text }, parts} {
		messages, err := json.Marshal([]map[string]any{{"role": "user", "content": content(question)},
			{"role": "assistant", "content": content(answer)}})
		if err != nil {
			return "", err
		}
		text, _, err = t.Render(Conversation{Messages: messages})
		if err != nil || strings.Contains(text, answer) {
			return text, err
		}
	}
	return text, nil
}

// leavesOut reports whether a text has no word of the contents of messages, where these have some.
func leavesOut(text string, messages json.RawMessage) bool {
	var list []struct{ Content any }
	if json.Unmarshal(messages, &list) != nil {
		return false
	}
	words := false
	for _, m := range list {
		content, _ := m.Content.(string)
		for word := range strings.FieldsSeq(content) {
			if words = true; strings.Contains(text, word) {
				return false
			}
		}
	}
	return words
}
