// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// fileModel is the model of a file: those settings of BPE and WordPiece that there are.
type fileModel struct {
	Type                    string          `json:"type"`
	Dropout                 *float64        `json:"dropout"`
	UnkToken                *string         `json:"unk_token"`
	ContinuingSubwordPrefix *string         `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string         `json:"end_of_word_suffix"`
	FuseUnk                 bool            `json:"fuse_unk"`
	ByteFallback            bool            `json:"byte_fallback"`
	IgnoreMerges            bool            `json:"ignore_merges"`
	Vocab                   json.RawMessage `json:"vocab"`
	Merges                  []fileMerge     `json:"merges" max:"2097152"`
}

// fileWordPiece is a WordPiece model.
type fileWordPiece struct {
	Type                    string          `json:"type"`
	UnkToken                string          `json:"unk_token"`
	ContinuingSubwordPrefix string          `json:"continuing_subword_prefix"`
	MaxInputCharsPerWord    int             `json:"max_input_chars_per_word"`
	Vocab                   json.RawMessage `json:"vocab"`
}

// fileMerge is ["a", "b"], or "a b" in older files.
type fileMerge [2]string

// UnmarshalJSON implements json.Unmarshaler.
func (m *fileMerge) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		var line string
		if err := json.Unmarshal(data, &line); err != nil {
			return err
		}
		left, right, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(right, " ") {
			return errors.New("want two tokens with a space between")
		}
		*m = fileMerge{left, right}
		return nil
	}
	var list []string
	if err := json.Unmarshal(data, &list); err != nil || len(list) != 2 {
		return errors.New("want a list of two tokens")
	}
	*m = fileMerge{list[0], list[1]}
	return nil
}

// modelFiller puts the vocabulary and the model into a tokenizer.
type modelFiller interface {
	fill(t *Tokenizer, byteLevel bool) error
}

// models are the types of models.
const models = "BPE, WordPiece or Unigram"

// readModel reads the model.
func (f *file) readModel() (m modelFiller, bad []string) {
	if isNull(f.Model) {
		return nil, []string{"model is missing: want " + models}
	}
	kind := component{part: "model", Type: modelType(f.Model)}
	var err error
	switch kind.Type {
	case "BPE":
		b := &fileModel{}
		err, m = strict(f.Model, b), b
		bad = b.check()
	case "WordPiece":
		w := &fileWordPiece{UnkToken: "[UNK]", ContinuingSubwordPrefix: "##", MaxInputCharsPerWord: 100}
		err, m = strict(f.Model, w), w
	case "Unigram":
		u := &fileUnigram{}
		err, m = strict(f.Model, u), u
		bad = u.check()
	default:
		return nil, []string{fmt.Sprintf("model: type is %q, which is not supported: want %s", kind.Type, models)}
	}
	if err != nil {
		bad = append([]string{fault(kind, err)}, bad...)
	}
	return m, bad
}

// modelType names the type of a model. Older files leave out BPE's.
func modelType(raw json.RawMessage) string {
	kind := component{Type: "BPE"}
	if err := loose(raw, &kind); err != nil {
		return "BPE" // which then says what is wrong
	}
	return kind.Type
}

func (m *fileModel) check() (bad []string) {
	if m.Dropout != nil && *m.Dropout != 0 {
		bad = append(bad, fmt.Sprintf("model: dropout is %g, which is not supported: want null", *m.Dropout))
	}
	return bad
}

// fillVocab enters the vocabulary.
func (t *Tokenizer) fillVocab(raw json.RawMessage) error {
	ids, err := parseVocab(raw)
	if err != nil {
		return fmt.Errorf("tokenizers: tokenizer.json: vocab: %w", err)
	}
	t.ids = make(map[string]int32, len(ids))
	for name, id := range ids {
		if int(id) < len(t.has) && t.has[id] {
			return fmt.Errorf("tokenizers: tokenizer.json: vocab: tokens %q and %q have id %d: want each id once",
				min(name, t.spelled[id]), max(name, t.spelled[id]), id)
		}
		t.setToken(id, name)
	}
	return nil
}

func (m *fileModel) fill(t *Tokenizer, byteLevel bool) error {
	if err := t.fillVocab(m.Vocab); err != nil {
		return err
	}
	b := &bpe{spelled: t.spelled, ids: copyOf(t.ids), unk: -1, fuse: m.FuseUnk, byteLevel: byteLevel,
		fallback: m.ByteFallback && !byteLevel}
	if m.ContinuingSubwordPrefix != nil {
		b.prefix = *m.ContinuingSubwordPrefix
	}
	if m.EndOfWordSuffix != nil {
		b.suffix = *m.EndOfWordSuffix
	}
	if m.UnkToken != nil {
		id, ok := t.ids[*m.UnkToken]
		if !ok && *m.UnkToken != "" {
			return fmt.Errorf("tokenizers: tokenizer.json: the unknown token %q is not in the vocabulary", *m.UnkToken)
		} else if ok {
			b.unk = id
		}
	}
	b.readBytes()
	if m.IgnoreMerges {
		b.readWhole()
	}
	merges := make([]pair, len(m.Merges))
	for rank, tokens := range m.Merges {
		left, okLeft := t.ids[tokens[0]]
		right, okRight := t.ids[tokens[1]]
		if !okLeft || !okRight {
			return fmt.Errorf("tokenizers: tokenizer.json: merge %d (%q %q) uses tokens that are not in the vocabulary",
				rank, tokens[0], tokens[1])
		}
		merges[rank] = makePair(left, right)
	}
	t.model = b
	return b.addMerges(merges)
}

// copyOf is the model's own vocabulary: added tokens enter the tokenizer's only.
func copyOf(ids map[string]int32) map[string]int32 {
	out := make(map[string]int32, len(ids))
	for name, id := range ids {
		out[name] = id
	}
	return out
}

func (m *fileWordPiece) fill(t *Tokenizer, byteLevel bool) error {
	if byteLevel {
		return errors.New("tokenizers: tokenizer.json: WordPiece after ByteLevel is not supported")
	}
	if err := t.fillVocab(m.Vocab); err != nil {
		return err
	}
	unk, ok := t.ids[m.UnkToken]
	if !ok {
		return fmt.Errorf("tokenizers: tokenizer.json: the unknown token %q is not in the vocabulary", m.UnkToken)
	}
	w := &wordPiece{first: copyOf(t.ids), next: make(map[string]int32), unk: unk, maxChars: m.MaxInputCharsPerWord}
	for name, id := range t.ids {
		w.longest = max(w.longest, len(name))
		if rest, ok := strings.CutPrefix(name, m.ContinuingSubwordPrefix); ok {
			w.next[rest] = id
		}
	}
	t.model = w
	return nil
}
