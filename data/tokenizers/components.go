// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// kept is what a file has besides that changes no id, so that it can be written back.
type kept struct {
	truncation, padding, normalizer, preTokenizer, decoder json.RawMessage

	unknown                                 *string
	fuseUnknown, byteFallback, ignoreMerges bool
}

// keep remembers the components of a file that check has accepted.
func (t *BPE) keep(f file, m fileModel) {
	t.kept = kept{f.Truncation, f.Padding, f.Normalizer, f.PreTokenizer, f.Decoder, m.UnkToken, m.FuseUnk,
		m.ByteFallback, m.IgnoreMerges}
	if !m.IgnoreMerges {
		return
	}
	t.whole = make(map[string]int32, t.vocab)
	for id, token := range t.spelled[:t.vocab] {
		t.whole[string(tokenBytes(token))] = int32(id)
	}
	for _, a := range t.added { // found in the text before it is split, or plain text to EncodeOrdinary
		delete(t.whole, a.Content)
	}
}

// restore puts the components back. A tokenizer that was not read has none.
func (k kept) restore(f *file, m *fileModel) {
	for _, part := range []struct {
		to   *json.RawMessage
		from json.RawMessage
	}{{&f.Truncation, k.truncation}, {&f.Padding, k.padding}, {&f.Normalizer, k.normalizer},
		{&f.PreTokenizer, k.preTokenizer}, {&f.Decoder, k.decoder}} {
		if part.from != nil {
			*part.to = part.from
		}
	}
	m.UnkToken, m.FuseUnk, m.ByteFallback, m.IgnoreMerges = k.unknown, k.fuseUnknown, k.byteFallback, k.ignoreMerges
}

// check refuses a file that is not supported. It names all that is not, the greatest obstacle first, and returns the
// model.
func (f *file) check() (m fileModel, err error) {
	var bad []string
	add := func(faults ...string) { bad = append(bad, faults...) }
	m, faults := f.model()
	add(faults...)
	add(checkPreTokenizer(f.PreTokenizer)...)
	add(checkNormalizer(f.Normalizer)...)
	add(checkDecoder(f.Decoder)...)
	if _, err := parsePostprocess("post_processor", f.PostProcessor, math.MaxInt); err != nil {
		add(err.Error())
	}
	for _, a := range f.AddedTokens {
		if a.SingleWord || a.LStrip || a.RStrip {
			add(fmt.Sprintf("added token %q has single_word %t, lstrip %t, rstrip %t; only false is supported",
				a.Content, a.SingleWord, a.LStrip, a.RStrip))
		}
		if a.ID < 0 || a.ID > math.MaxInt32 {
			add(fmt.Sprintf("added token %q has id %d: want 0 or more", a.Content, a.ID))
		}
	}
	for _, part := range []struct {
		name string
		raw  json.RawMessage
	}{{"truncation", f.Truncation}, {"padding", f.Padding}} {
		if !isNull(part.raw) && part.raw[0] != '{' {
			add(fmt.Sprintf("%s is not an object", part.name))
		}
	}
	if f.Version != "1.0" {
		add(fmt.Sprintf("version is %q: want \"1.0\"", f.Version))
	}
	const most = 12
	if n := len(bad) - most; n > 0 {
		bad = append(bad[:most], fmt.Sprintf("and %d more", n))
	}
	if len(bad) > 0 {
		return m, errors.New(strings.Join(bad, "; "))
	}
	return m, nil
}

// model reads the model, if it is a BPE.
func (f *file) model() (m fileModel, bad []string) {
	if isNull(f.Model) {
		return m, []string{"model is missing: want BPE"}
	}
	kind := component{Type: "BPE"} // older files leave it out
	if err := json.Unmarshal(f.Model, &kind); err != nil {
		return m, []string{fmt.Sprintf("model: %v", err)}
	}
	if kind.Type != "BPE" {
		return m, []string{fmt.Sprintf("model: type is %q, which is not supported: want BPE", kind.Type)}
	}
	if err := strict(f.Model, &m); err != nil {
		return m, []string{fmt.Sprintf("model: %v", err)}
	}
	return m, m.check()
}

// check lists the settings that would change the encoding. The unknown token and byte_fallback are never needed, since
// every byte has a token.
func (m *fileModel) check() (bad []string) {
	notEmpty := func(s *string) bool { return s != nil && *s != "" }
	if m.Dropout != nil && *m.Dropout != 0 {
		bad = append(bad, fmt.Sprintf("model: dropout is %g, which is not supported: want null", *m.Dropout))
	}
	if notEmpty(m.ContinuingSubwordPrefix) {
		bad = append(bad, fmt.Sprintf("model: continuing_subword_prefix is %q, which is not supported: want none",
			*m.ContinuingSubwordPrefix))
	}
	if notEmpty(m.EndOfWordSuffix) {
		bad = append(bad, fmt.Sprintf("model: end_of_word_suffix is %q, which is not supported: want none",
			*m.EndOfWordSuffix))
	}
	return bad
}

// component is a normalizer, pre-tokenizer or decoder. A Sequence has others, under one of three keys.
type component struct {
	Type          string            `json:"type"`
	Normalizers   []json.RawMessage `json:"normalizers"`
	PreTokenizers []json.RawMessage `json:"pretokenizers"`
	Decoders      []json.RawMessage `json:"decoders"`

	raw json.RawMessage
}

// flat lists the components of a part of the file, those of Sequences in their place.
func flat(raw json.RawMessage) ([]component, error) { return flatten(nil, raw, 0) }

func flatten(list []component, raw json.RawMessage, depth int) ([]component, error) {
	if isNull(raw) {
		return list, nil
	}
	c := component{raw: raw}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	if c.Type != "Sequence" {
		return append(list, c), nil
	}
	parts := slices.Concat(c.Normalizers, c.PreTokenizers, c.Decoders)
	if depth >= maxSequences || len(list)+len(parts) > maxProcessors {
		return nil, fmt.Errorf("want at most %d components, in at most %d Sequences in each other", maxProcessors,
			maxSequences)
	}
	for _, p := range parts {
		var err error
		if list, err = flatten(list, p, depth+1); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// checkNormalizer accepts Sequences of nothing.
func checkNormalizer(raw json.RawMessage) (bad []string) {
	list, err := flat(raw)
	if err != nil {
		return []string{fmt.Sprintf("normalizer: %v", err)}
	}
	for _, c := range list {
		bad = append(bad, fmt.Sprintf("normalizer is set, %q, which is not supported: want null", c.Type))
	}
	return bad
}

// gpt2Patterns are the two ways in which GPT-2's regular expression is written: see splitNext.
var gpt2Patterns = []string{
	`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
	`'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
}

// checkPreTokenizer accepts ByteLevel with its regular expression, or after a Split by the same.
func checkPreTokenizer(raw json.RawMessage) []string {
	list, err := flat(raw)
	switch {
	case err != nil:
		return []string{fmt.Sprintf("pre_tokenizer: %v", err)}
	case len(list) == 0:
		return []string{"pre_tokenizer is missing: want ByteLevel"}
	}
	var bad []string
	split := false
	for _, c := range list[:len(list)-1] {
		fault := ""
		if c.Type == "Split" && !split {
			fault = checkSplit(c.raw)
			split = true
		} else {
			fault = fmt.Sprintf("pre_tokenizer has %q, which is not supported before its last component", c.Type)
		}
		if fault != "" {
			bad = append(bad, fault)
		}
	}
	b, err := byteLevel("pre_tokenizer", list[len(list)-1].raw)
	switch {
	case err != nil:
		bad = append(bad, err.Error())
	case b.AddPrefixSpace || b.UseRegex == split:
		bad = append(bad, fmt.Sprintf("pre_tokenizer has add_prefix_space %t and use_regex %t: want false and %t",
			b.AddPrefixSpace, b.UseRegex, !split))
	}
	return bad
}

// checkSplit accepts the ways to split by GPT-2's regular expression, whose matches are all of a text.
func checkSplit(raw json.RawMessage) string {
	var s struct {
		Type     string `json:"type"`
		Pattern  struct{ Regex, String *string }
		Behavior string
		Invert   bool
	}
	switch err := strict(raw, &s); {
	case err != nil:
		return fmt.Sprintf("pre_tokenizer: Split: %v", err)
	case s.Pattern.Regex == nil:
		return "pre_tokenizer: Split has no regular expression: want GPT-2's"
	case !slices.Contains(gpt2Patterns, *s.Pattern.Regex):
		return fmt.Sprintf("pre_tokenizer: Split by %.200q is not supported: want GPT-2's regular expression",
			*s.Pattern.Regex)
	case s.Behavior != "Isolated" && (s.Behavior != "Removed" || !s.Invert):
		return fmt.Sprintf("pre_tokenizer: Split has behavior %q and invert %t: want Isolated", s.Behavior, s.Invert)
	}
	return ""
}

// checkDecoder accepts ByteLevel, whose text is one piece already where Fuse follows.
func checkDecoder(raw json.RawMessage) []string {
	list, err := flat(raw)
	switch {
	case err != nil:
		return []string{fmt.Sprintf("decoder: %v", err)}
	case len(list) == 0:
		return []string{"decoder is missing: want ByteLevel"}
	}
	var bad []string
	if _, err := byteLevel("decoder", list[0].raw); err != nil {
		bad = append(bad, err.Error())
	}
	for _, c := range list[1:] {
		if c.Type != "Fuse" {
			bad = append(bad, fmt.Sprintf("decoder has %q after its first component, which is not supported", c.Type))
		}
	}
	return bad
}

func byteLevel(name string, raw json.RawMessage) (fileByteLevel, error) {
	b := fileByteLevel{AddPrefixSpace: true, TrimOffsets: true, UseRegex: true}
	var kind component
	if err := json.Unmarshal(raw, &kind); err != nil {
		return b, fmt.Errorf("%s: %w", name, err)
	}
	if kind.Type != "ByteLevel" {
		return b, fmt.Errorf("%s is %q, which is not supported: want ByteLevel", name, kind.Type)
	}
	if err := strict(raw, &b); err != nil {
		return b, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}
