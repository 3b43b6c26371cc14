// SPDX-License-Identifier: Apache-2.0

// Package tokenizers turns text into token ids and back. Use it to feed a language model: [Load] reads the
// tokenizer.json of a model from HuggingFace, and [Train] learns a new tokenizer from texts. [Tokenizer.Encode] and
// [Tokenizer.Decode] convert, and [Tokenizer.Save] writes a tokenizer.json that transformers reads.
//
// A tokenizer is the pipeline of HuggingFace's tokenizers library. Added tokens are found in the whole text; the text
// between them goes through a normalizer (normal forms, lower case), a pre-tokenizer that cuts it into pre-tokens, and
// a model that gives each pre-token its tokens: byte-pair encoding (Sennrich et al. 2016, "Neural Machine Translation
// of Rare Words with Subword Units") over bytes or over characters, WordPiece (Schuster and Nakajima 2012) or Unigram
// (Kudo 2018). A post-processor puts tokens around a text, and a decoder makes text of tokens again.
//
// The package does not read corpora (see package data/text). A component or setting that it does not have is an error,
// never ignored.
package tokenizers

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
)

// Tokenizer is a tokenizer. It does not change once it is made, but by BeginWith, and is safe for concurrent use.
// Train, Load and Read make one.
type Tokenizer struct {
	spelled []string         // the name of each id in tokenizer.json
	has     []bool           // ids that have a token: a vocabulary may have holes
	ids     map[string]int32 // the inverse of spelled
	special []bool

	added     []AddedToken // by id
	groups    [2]*addedSet
	normalize normalizer
	split     []splitter
	model     model
	process   processor
	decode    decoder
	states    sync.Pool // *encoder

	whereMatters bool            // whether a pre-tokenizer asks where its pieces lie
	fallback     bool            // whether the decoder joins tokens such as <0x0A>
	cuttable     bool            // whether long texts can be encoded in parts
	file         json.RawMessage // tokenizer.json
}

// model gives a pre-token its tokens.
type model interface {
	tokenize(e *encoder, dst []token, word string) []token
}

// token is an id and how many bytes of the pre-token it takes. If size is negative, it shares so many with the token
// before.
type token struct{ id, size int32 }

// VocabSize is one more than the largest id, that of added tokens included. An id below may have no token.
func (t *Tokenizer) VocabSize() int { return len(t.spelled) }

// AddedTokens returns the added tokens by ascending id.
func (t *Tokenizer) AddedTokens() []AddedToken { return slices.Clone(t.added) }

// TokenID returns the id of a token, spelled as in tokenizer.json: "<|endoftext|>",
// or "Ġthe" for " the" in a byte-level vocabulary.
func (t *Tokenizer) TokenID(token string) (id int32, ok bool) {
	id, ok = t.ids[token]
	return id, ok
}

// Token returns the spelling of an id in tokenizer.json; ok is false if it has none.
func (t *Tokenizer) Token(id int32) (token string, ok bool) {
	if id < 0 || int(id) >= len(t.spelled) || !t.has[id] {
		return "", false
	}
	return t.spelled[id], true
}

// IsSpecial reports whether a token is an added one that carries meaning for the model and no text.
func (t *Tokenizer) IsSpecial(id int32) bool {
	return id >= 0 && int(id) < len(t.special) && t.special[id]
}

// known names an id outside of the vocabulary.
func (t *Tokenizer) known(id int32) error {
	if id < 0 || int(id) >= len(t.spelled) {
		return fmt.Errorf("tokenizers: token id %d is outside the vocabulary of %d", id, len(t.spelled))
	}
	return nil
}
