// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
)

// TurnEnds are the tokens with which the template ends an answer, as <|im_end|>: a model that was tuned with it stops
// there, also where its configuration names another token. There are none if a text follows the answer, or nothing.
func (t *Template) TurnEnds(tok *tokenizers.Tokenizer) ([]int32, error) {
	const question, answer = "a question", "the answer to it"
	messages, err := json.Marshal([]message{{"user", question}, {"assistant", answer}})
	if err != nil {
		return nil, err
	}
	text, _, err := t.Render(Conversation{Messages: messages})
	if err != nil {
		return nil, err
	}
	at := strings.LastIndex(text, answer)
	if at < 0 {
		return nil, nil
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
