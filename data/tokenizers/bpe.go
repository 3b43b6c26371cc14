// SPDX-License-Identifier: Apache-2.0

// Package tokenizers turns text into token ids and back. Use it to feed a language model: [Load] reads the
// tokenizer.json of a GPT-2-like model from HuggingFace, and [Train] learns a new tokenizer from texts.
// [BPE.Encode] and [BPE.Decode] convert, and [BPE.Save] writes a tokenizer.json that transformers reads.
//
// The tokenizer is byte-level byte-pair encoding as in GPT-2. A text is split into pre-tokens by GPT-2's
// regular expression, each pre-token is taken as bytes, and neighbouring tokens are merged in the order in
// which training found the merges (Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword
// Units"). Every byte has a token, so every text has an encoding, and decoding gives exactly the bytes back.
//
// The package does not read corpora (see package data/text), and it is not a general engine for tokenizer.json:
// a component that would change an id and is not a byte-level one is an error, never ignored.
package tokenizers

import (
	"fmt"
	"slices"
	"sync"
)

// BPE is a byte-level byte-pair tokenizer. It does not change once it is made and is
// safe for concurrent use. Train, Load and Read make one.
type BPE struct {
	tokens  [][]byte         // the bytes of each id
	spelled []string         // the name of each id in tokenizer.json
	ids     map[string]int32 // the inverse of spelled
	vocab   int              // ids below vocab belong to the model, the others to added alone
	bytes   [256]int32       // the id of each single byte
	merges  []pair           // by rank
	merged  map[pair]merge   // the inverse of merges
	added   []AddedToken     // by id
	groups  [2][]AddedToken  // added tokens in the two rounds in which HuggingFace looks for them
	states  sync.Pool        // *encoder

	postprocess postprocess // around a text
	kept        kept        // what else the file has
	// whole has the tokens that a whole pre-token may be, whatever merges make of it (ignore_merges); nil: none.
	whole map[string]int32
}

// AddedToken is a token that is found in the text before it is split, as a whole, and
// is never the result of a merge: "<|endoftext|>" for example.
type AddedToken struct {
	ID      int32
	Content string
	// Special tokens carry meaning for the model and no text of their own.
	Special bool
	// Normalized tokens are looked for after those that are not.
	Normalized bool
}

// pair is two neighbouring tokens, the left one in the upper half, so that pairs
// compare as (left, right).
type pair uint64

func makePair(left, right int32) pair { return pair(uint32(left))<<32 | pair(uint32(right)) }

func (p pair) left() int32  { return int32(p >> 32) }
func (p pair) right() int32 { return int32(uint32(p)) }

// merge is what becomes of a pair: the lower its rank, the earlier it is merged.
type merge struct {
	rank int32
	id   int32
}

// newBPE checks the parts and puts them together. vocab spells the model's tokens by
// id; merges names pairs of ids by rank; added is sorted by id, and those of its
// tokens that the vocabulary lacks follow it without holes.
func newBPE(vocab []string, merges []pair, added []AddedToken) (*BPE, error) {
	t := &BPE{
		spelled: slices.Clone(vocab),
		ids:     make(map[string]int32, len(vocab)),
		vocab:   len(vocab),
		merges:  merges,
		merged:  make(map[pair]merge, len(merges)),
		added:   added,
	}
	for id, token := range vocab {
		if old, ok := t.ids[token]; ok {
			return nil, fmt.Errorf("tokenizers: token %q has two ids, %d and %d", token, old, id)
		}
		t.ids[token] = int32(id)
		t.tokens = append(t.tokens, tokenBytes(token))
	}
	if err := t.addTokens(); err != nil {
		return nil, err
	}
	for b, r := range byteRunes {
		id, ok := t.ids[string(r)]
		if !ok {
			return nil,
				fmt.Errorf("tokenizers: the vocabulary has no token %q for byte 0x%02X; a byte-level vocabulary has "+
					"all 256", string(r), b)
		}
		t.bytes[b] = id
		if err := t.checkText(id); err != nil {
			return nil, err
		}
	}
	if err := t.indexMerges(); err != nil {
		return nil, err
	}
	t.states.New = func() any { return newEncoder(t) }
	return t, nil
}

// tokenBytes is what a token of the vocabulary stands for. A token with characters
// outside the alphabet stands for its own text, as in HuggingFace's decoder.
func tokenBytes(token string) []byte {
	if b, ok := unspell(token); ok {
		return b
	}
	return []byte(token)
}

// addTokens enters the added tokens, which stand for their text.
func (t *BPE) addTokens() error {
	for i, a := range t.added {
		if a.Content == "" {
			return fmt.Errorf("tokenizers: added token %d is empty", a.ID)
		}
		if i > 0 && t.added[i-1].ID >= a.ID {
			return fmt.Errorf("tokenizers: added tokens must have ascending ids, %d follows %d", a.ID, t.added[i-1].ID)
		}
		switch id, ok := t.ids[a.Content]; {
		case ok && id != a.ID:
			return fmt.Errorf("tokenizers: added token %q has id %d, but the vocabulary gives it %d", a.Content, a.ID,
				id)
		case ok:
			t.tokens[id] = []byte(a.Content)
		case int(a.ID) != len(t.tokens):
			return fmt.Errorf("tokenizers: added token %q has id %d: want %d, the next free one", a.Content, a.ID,
				len(t.tokens))
		default:
			t.ids[a.Content] = a.ID
			t.spelled = append(t.spelled, a.Content)
			t.tokens = append(t.tokens, []byte(a.Content))
		}
		if a.Normalized {
			t.groups[1] = append(t.groups[1], a)
		} else {
			t.groups[0] = append(t.groups[0], a)
		}
	}
	return nil
}

// checkText refuses an added token that stands for its own text, as "Ġ" would, although
// the encoder makes it out of other bytes.
func (t *BPE) checkText(id int32) error {
	if string(t.tokens[id]) != string(tokenBytes(t.spelled[id])) {
		return fmt.Errorf("tokenizers: added token %q has id %d, which merges also produce, from other bytes",
			t.spelled[id], id)
	}
	return nil
}

func (t *BPE) indexMerges() error {
	for rank, p := range t.merges {
		if _, ok := t.merged[p]; ok {
			return fmt.Errorf("tokenizers: merge %d (%q %q) appears twice", rank, t.spelled[p.left()],
				t.spelled[p.right()])
		}
		token := t.spelled[p.left()] + t.spelled[p.right()]
		id, ok := t.ids[token]
		if !ok || int(id) >= t.vocab {
			return fmt.Errorf("tokenizers: merge %d produces %q, which is not in the vocabulary", rank, token)
		}
		t.merged[p] = merge{rank: int32(rank), id: id}
		if err := t.checkText(id); err != nil {
			return err
		}
	}
	return nil
}

// VocabSize is the number of tokens, added ones included: ids run from 0 to
// VocabSize()-1.
func (t *BPE) VocabSize() int { return len(t.tokens) }

// AddedTokens returns the added tokens by ascending id.
func (t *BPE) AddedTokens() []AddedToken { return slices.Clone(t.added) }

// TokenID returns the id of a token, spelled as in tokenizer.json: "<|endoftext|>",
// or "Ġthe" for " the".
func (t *BPE) TokenID(token string) (id int32, ok bool) {
	id, ok = t.ids[token]
	return id, ok
}

// AppendToken appends the bytes of one token to dst. A token may end in the middle of
// a UTF-8 character, so a stream of text should be checked before it is shown. The
// error names an id outside the vocabulary.
func (t *BPE) AppendToken(dst []byte, id int32) ([]byte, error) {
	if id < 0 || int(id) >= len(t.tokens) {
		return dst, fmt.Errorf("tokenizers: token id %d is outside the vocabulary of %d", id, len(t.tokens))
	}
	return append(dst, t.tokens[id]...), nil
}

// Decode returns the bytes of the tokens, one after the other; added tokens give their
// own text. Decode(Encode(s)) is s for every string, valid UTF-8 or not. The error names
// an id outside the vocabulary.
func (t *BPE) Decode(ids []int32) (string, error) {
	var out []byte
	for i, id := range ids {
		var err error
		if out, err = t.AppendToken(out, id); err != nil {
			return "", fmt.Errorf("%w (at position %d)", err, i)
		}
	}
	return string(out), nil
}
