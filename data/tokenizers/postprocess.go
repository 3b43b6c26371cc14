// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// postprocess is what a post-processor puts around a text.
type postprocess struct {
	before, after []int32
	raw           json.RawMessage // as it was read; nil for ByteLevel, which adds nothing
}

// fileTemplate is the post-processor TemplateProcessing. Templates of pairs are kept, and not used.
type fileTemplate struct {
	Type          string                 `json:"type"`
	Single        []filePiece            `json:"single"`
	Pair          json.RawMessage        `json:"pair"`
	SpecialTokens map[string]fileSpecial `json:"special_tokens"`
}

// filePiece is one of the two.
type filePiece struct {
	SpecialToken *struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	} `json:"Sequence"`
}

type fileSpecial struct {
	ID     string   `json:"id"`
	IDs    []int32  `json:"ids"`
	Tokens []string `json:"tokens"`
}

// What a template may be: one token of many ids, named many times, would fill the memory.
const (
	maxTemplate   = 1 << 10 // tokens around a text
	maxProcessors = 1 << 6  // of a Sequence
	maxSequences  = 4       // in each other
)

var errTemplate = fmt.Errorf("the template puts more than %d tokens around a text", maxTemplate)

// parsePostprocess reads a post-processor: ByteLevel (which moves offsets only), TemplateProcessing, or a Sequence
// of such.
func parsePostprocess(name string, raw json.RawMessage, vocab int) (postprocess, error) {
	return parseProcessor(name, raw, vocab, 0)
}

func parseProcessor(name string, raw json.RawMessage, vocab, depth int) (postprocess, error) {
	t := postprocess{}
	if depth > maxSequences {
		return t, fmt.Errorf("post_processor has more than %d Sequences in each other", maxSequences)
	}
	if isNull(raw) {
		return postprocess{raw: json.RawMessage("null")}, nil
	}
	var kind struct {
		Type       string            `json:"type"`
		Processors []json.RawMessage `json:"processors"`
	}
	if err := json.Unmarshal(raw, &kind); err != nil {
		return t, fmt.Errorf("%s: %w", name, err)
	}
	switch kind.Type {
	case "ByteLevel":
		_, err := byteLevel(name, raw)
		return t, err
	case "TemplateProcessing":
		var err error
		t.before, t.after, err = single(raw, vocab)
		if err != nil {
			return t, fmt.Errorf("%s: %w", name, err)
		}
	case "Sequence":
		if n := len(kind.Processors); n > maxProcessors {
			return t, fmt.Errorf("%s is a Sequence of %d processors: want at most %d", name, n, maxProcessors)
		}
		for i, p := range kind.Processors {
			inner, err := parseProcessor(fmt.Sprintf("%s.processors[%d]", name, i), p, vocab, depth+1)
			if err == nil && len(inner.before)+len(inner.after)+len(t.before)+len(t.after) > maxTemplate {
				err = fmt.Errorf("%s: %w", name, errTemplate)
			}
			if err != nil {
				return t, err
			}
			t.before, t.after = append(inner.before, t.before...), append(t.after, inner.after...)
		}
	default:
		return t,
			fmt.Errorf("%s is %q, which is not supported: want ByteLevel, TemplateProcessing or a Sequence of them",
				name, kind.Type)
	}
	t.raw = slices.Clone(raw)
	return t, nil
}

// single reads the template of one text.
func single(raw json.RawMessage, vocab int) (before, after []int32, err error) {
	var f fileTemplate
	if err := strict(raw, &f); err != nil {
		return nil, nil, err
	}
	texts := 0
	for _, piece := range f.Single {
		switch {
		case piece.Sequence != nil && piece.SpecialToken == nil:
			texts++
		case piece.SpecialToken != nil && piece.Sequence == nil:
			special, ok := f.SpecialTokens[piece.SpecialToken.ID]
			if !ok {
				return nil, nil, fmt.Errorf("the template has the token %q, which is not in special_tokens",
					piece.SpecialToken.ID)
			}
			if len(before)+len(after)+len(special.IDs) > maxTemplate {
				return nil, nil, errTemplate
			}
			for _, id := range special.IDs {
				if id < 0 || int(id) >= vocab {
					return nil, nil, fmt.Errorf("special token %q has id %d: want one of the %d tokens", special.ID, id,
						vocab)
				}
			}
			if texts == 0 {
				before = append(before, special.IDs...)
			} else {
				after = append(after, special.IDs...)
			}
		default:
			return nil, nil, errors.New("a piece of the template is neither a SpecialToken nor a Sequence")
		}
	}
	if texts != 1 {
		return nil, nil, fmt.Errorf("the template of one text has %d texts: want 1", texts)
	}
	return before, after, nil
}

// EncodeWithSpecial is Encode with the tokens that the tokenizer's post-processor puts around a text, as
// the one of beginning: what transformers gives a model for a text by default (add_special_tokens).
func (t *BPE) EncodeWithSpecial(text string) []int32 { return t.AddSpecialTokens(t.Encode(text)) }

// AddSpecialTokens puts the tokens of the post-processor around the ids of a text. To cut texts as transformers does,
// cut the ids to NumSpecialTokens less than the length first.
func (t *BPE) AddSpecialTokens(ids []int32) []int32 {
	return slices.Concat(t.postprocess.before, ids, t.postprocess.after)
}

// NumSpecialTokens is how many tokens AddSpecialTokens adds, transformers' num_special_tokens_to_add.
func (t *BPE) NumSpecialTokens() int { return len(t.postprocess.before) + len(t.postprocess.after) }

// BeginWith makes EncodeWithSpecial, and whoever reads the saved tokenizer.json, put an added token before
// each text. It replaces what the post-processor put around texts before.
func (t *BPE) BeginWith(token string) error {
	id, ok := t.TokenID(token)
	if !ok {
		return fmt.Errorf("tokenizers: there is no token %q to begin with", token)
	}
	piece := func(kind, id string, typeID int) map[string]any {
		return map[string]any{kind: map[string]any{"id": id, "type_id": typeID}}
	}
	t.postprocess = postprocess{before: []int32{id}, raw: encodeJSON(map[string]any{
		"type": "Sequence",
		"processors": []any{
			fileByteLevel{Type: "ByteLevel", TrimOffsets: true, UseRegex: true},
			map[string]any{
				"type":   "TemplateProcessing",
				"single": []any{piece("SpecialToken", token, 0), piece("Sequence", "A", 0)},
				"pair": []any{piece("SpecialToken", token, 0), piece("Sequence", "A", 0),
					piece("SpecialToken", token, 1), piece("Sequence", "B", 1)},
				"special_tokens": map[string]any{
					token: fileSpecial{ID: token, IDs: []int32{id}, Tokens: []string{token}}},
			},
		},
	})}
	return nil
}
