// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// processor is the post-processor: what is put around a text, or a pair of texts.
type processor struct {
	before, after []int32   // around one text
	single, pair  []section // the template of the one post-processor that has one
	templates     int
	trims         []bool // for each step that trims offsets: whether a space was put before the text
}

// section is a part of a template: tokens, or the first or second text.
type section struct {
	ids      []int32
	sequence int32 // -1: tokens
	typeID   int32
}

// fileTemplate is the post-processor TemplateProcessing.
type fileTemplate struct {
	Type          string                 `json:"type"`
	Single        []filePiece            `json:"single"`
	Pair          []filePiece            `json:"pair"`
	SpecialTokens map[string]fileSpecial `json:"special_tokens"`
}

// filePiece is one of the two.
type filePiece struct {
	SpecialToken *fileSection `json:"SpecialToken"`
	Sequence     *fileSection `json:"Sequence"`
}

type fileSection struct {
	ID     string `json:"id"`
	TypeID int32  `json:"type_id"`
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

// parseProcessor reads the post-processor of a vocabulary of so many tokens.
func parseProcessor(raw json.RawMessage, vocab int) (p processor, bad []string) {
	list, err := flat("post_processor", raw)
	if err != nil {
		return p, []string{err.Error()}
	}
	for _, c := range list {
		if err := p.add(c, vocab); err != nil {
			bad = append(bad, fault(c, err))
		}
	}
	return p, bad
}

func (p *processor) add(c component, vocab int) error {
	switch c.Type {
	case "ByteLevel":
		b, err := readByteLevel(c.raw)
		if b.TrimOffsets {
			p.trims = append(p.trims, b.AddPrefixSpace)
		}
		return err
	case "BertProcessing", "RobertaProcessing":
		return p.addPair(c, vocab)
	case "TemplateProcessing":
		var f fileTemplate
		if err := strict(c.raw, &f); err != nil {
			return err
		}
		single, err := f.sections(f.Single, 1, vocab)
		if err != nil {
			return err
		}
		pair, err := f.sections(f.Pair, 2, vocab)
		if err != nil && len(f.Pair) > 0 {
			return fmt.Errorf("pair: %w", err)
		}
		return p.addTemplate(single, pair)
	}
	return errUnknown
}

// addPair reads the processors that have a token before the texts and one that ends each: BERT's, and RoBERTa's, which
// has two between the texts and one segment.
func (p *processor) addPair(c component, vocab int) error {
	s := struct {
		Type           string
		Sep, Cls       fileNamed
		TrimOffsets    bool `json:"trim_offsets"`
		AddPrefixSpace bool `json:"add_prefix_space"`
	}{TrimOffsets: c.Type == "RobertaProcessing", AddPrefixSpace: true}
	if err := strict(c.raw, &s); err != nil {
		return err
	}
	for _, id := range []int32{s.Sep.id, s.Cls.id} {
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf("a token has id %d: want one of the %d tokens", id, vocab)
		}
	}
	cls, sep := section{[]int32{s.Cls.id}, -1, 0}, section{[]int32{s.Sep.id}, -1, 0}
	single := []section{cls, {sequence: 0}, sep}
	if c.Type == "BertProcessing" {
		second := sep
		second.typeID = 1
		return p.addTemplate(single, []section{cls, {sequence: 0}, sep, {sequence: 1, typeID: 1}, second})
	}
	if s.TrimOffsets {
		p.trims = append(p.trims, s.AddPrefixSpace)
	}
	return p.addTemplate(single, []section{cls, {sequence: 0}, sep, sep, {sequence: 1}, sep})
}

// fileNamed is ["<s>", 0].
type fileNamed struct {
	name string
	id   int32
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *fileNamed) UnmarshalJSON(data []byte) error {
	list := []any{&n.name, &n.id}
	if err := json.Unmarshal(data, &list); err != nil || len(list) != 2 {
		return errors.New("want a token and its id")
	}
	return nil
}

// sections reads a template of so many texts.
func (f *fileTemplate) sections(pieces []filePiece, texts, vocab int) (list []section, err error) {
	total, seen := 0, 0
	for _, piece := range pieces {
		switch {
		case piece.Sequence != nil && piece.SpecialToken == nil:
			s := section{typeID: piece.Sequence.TypeID}
			if piece.Sequence.ID == "B" {
				s.sequence = 1
			}
			seen++
			list = append(list, s)
		case piece.SpecialToken != nil && piece.Sequence == nil:
			special, ok := f.SpecialTokens[piece.SpecialToken.ID]
			if !ok {
				return nil, fmt.Errorf("the template has the token %q, which is not in special_tokens",
					piece.SpecialToken.ID)
			}
			if total += len(special.IDs); total > maxTemplate {
				return nil, errTemplate
			}
			for _, id := range special.IDs {
				if id < 0 || int(id) >= vocab {
					return nil, fmt.Errorf("special token %q has id %d: want one of the %d tokens", special.ID, id,
						vocab)
				}
			}
			list = append(list, section{special.IDs, -1, piece.SpecialToken.TypeID})
		default:
			return nil, errors.New("a piece of the template is neither a SpecialToken nor a Sequence")
		}
	}
	if seen != texts {
		return nil, fmt.Errorf("the template of %d text(s) has %d texts: want %d", texts, seen, texts)
	}
	return list, nil
}

// addTemplate puts a template around those before it.
func (p *processor) addTemplate(single, pair []section) error {
	var before, after []int32
	side := &before
	for _, s := range single {
		if s.sequence >= 0 {
			side = &after
		}
		*side = append(*side, s.ids...)
	}
	if len(before)+len(after)+len(p.before)+len(p.after) > maxTemplate {
		return errTemplate
	}
	p.before, p.after = append(before, p.before...), append(p.after, after...)
	p.single, p.pair = single, pair
	p.templates++
	return nil
}

// size is how many tokens are put around a text or a pair.
func (p *processor) size(pair bool) int {
	if !pair {
		return len(p.before) + len(p.after)
	}
	n := 0
	for _, s := range p.pair {
		n += len(s.ids)
	}
	return n
}

// around puts the tokens around the texts.
func (p *processor) around(first, second *Encoding) (*Encoding, error) {
	template := p.single
	if second != nil {
		template = p.pair
	}
	switch {
	case p.templates == 0:
		return join(first, second), nil
	case p.templates > 1:
		if second != nil {
			return nil, errors.New("tokenizers: the post-processor has several templates: they are for single texts")
		}
		template = []section{{p.before, -1, 0}, {sequence: 0}, {p.after, -1, 0}}
	case len(template) == 0:
		return nil, errors.New("tokenizers: the post-processor has no template for pairs")
	}
	out := &Encoding{}
	for _, s := range template {
		switch s.sequence {
		case 0:
			out.appendAll(first, 0, s.typeID)
		case 1:
			out.appendAll(second, 1, s.typeID)
		}
		for _, id := range s.ids {
			out.append(id, Offset{}, -1, -1, s.typeID, true)
		}
	}
	return out, nil
}

// EncodeWithSpecial is Encode with the tokens that the tokenizer's post-processor puts around a text, as
// the one of beginning: what transformers gives a model for a text by default (add_special_tokens).
func (t *Tokenizer) EncodeWithSpecial(text string) ([]int32, error) {
	ids, err := t.Encode(text)
	if err != nil {
		return nil, err
	}
	return t.AddSpecialTokens(ids), nil
}

// AddSpecialTokens puts the tokens of the post-processor around the ids of a text. To cut texts as transformers does,
// cut the ids to NumSpecialTokens less than the length first.
func (t *Tokenizer) AddSpecialTokens(ids []int32) []int32 {
	return slices.Concat(t.process.before, ids, t.process.after)
}

// NumSpecialTokens is how many tokens AddSpecialTokens adds, transformers' num_special_tokens_to_add.
func (t *Tokenizer) NumSpecialTokens() int { return t.process.size(false) }

// BeginWith makes EncodeWithSpecial, and whoever reads the saved tokenizer.json, put an added token before
// each text. It replaces what the post-processor put around texts before.
func (t *Tokenizer) BeginWith(token string) error {
	id, ok := t.TokenID(token)
	if !ok {
		return fmt.Errorf("tokenizers: there is no token %q to begin with", token)
	}
	piece := func(kind, id string, typeID int) map[string]any {
		return map[string]any{kind: map[string]any{"id": id, "type_id": typeID}}
	}
	raw := encodeJSON(map[string]any{
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
	})
	var f file
	if err := json.Unmarshal(t.file, &f); err != nil {
		return fmt.Errorf("tokenizers: tokenizer.json: %w", err)
	}
	f.PostProcessor = raw
	t.file = f.format()
	t.process, _ = parseProcessor(raw, t.VocabSize())
	return nil
}
