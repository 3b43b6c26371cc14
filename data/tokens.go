// SPDX-License-Identifier: Apache-2.0

package data

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// Tokens is a stream of token ids with random access: TokenSlice in memory, TokenFile
// on disk. It must be safe for concurrent reading. Errors name it by its String method, if it has one.
type Tokens interface {
	// Len is the number of tokens.
	Len() int64
	// ReadTokens fills dst with the tokens from position at on; all of them must exist.
	ReadTokens(dst []int32, at int64) error
}

// TokenSlice is a stream of tokens in memory.
type TokenSlice []int32

// Len implements Tokens.
func (s TokenSlice) Len() int64 { return int64(len(s)) }

// ReadTokens implements Tokens.
func (s TokenSlice) ReadTokens(dst []int32, at int64) error {
	if err := checkRange(at, len(dst), s.Len()); err != nil {
		return err
	}
	copy(dst, s[at:])
	return nil
}

// JoinDocuments joins tokenized documents into one stream, with endOfText before the
// first one and after each. The leading token is the context in which the first token of text is
// predicted, so that no byte of the documents escapes an evaluation.
func JoinDocuments(documents [][]int32, endOfText int32) TokenSlice {
	n := 1
	for _, d := range documents {
		n += len(d) + 1
	}
	stream := append(make(TokenSlice, 0, n), endOfText)
	for _, d := range documents {
		stream = append(append(stream, d...), endOfText)
	}
	return stream
}

// checkRange refuses to read n tokens at position at of a stream of length tokens.
func checkRange(at int64, n int, length int64) error {
	if at < 0 || at > length || int64(n) > length-at {
		return fmt.Errorf("data: tokens %d to %d are not in a stream of %d", at, at+int64(n), length)
	}
	return nil
}

// Blocks cuts a stream of tokens into samples of block_size tokens for language models. It
// is a Dataset[[]int32]; CausalLM collates it. TrainBlocks and EvalBlocks make one.
type Blocks struct {
	tokens Tokens
	size   int64 // of a full block
	stride int64 // between the first tokens of neighbouring blocks
	blocks int64
	vocab  int // ids must be below it; 0: any
}

// TrainBlocks cuts a stream for training: blocks lie one after the other, and a tail that
// is shorter than a block is dropped, as in transformers' run_clm.py. (The first token of
// each block is context only and is not predicted.) It is an error if there is no full
// block.
func TrainBlocks(tokens Tokens, blockSize int) (*Blocks, error) {
	if err := checkBlockSize(blockSize); err != nil {
		return nil, err
	}
	size := int64(blockSize)
	if n := tokens.Len(); n < size {
		return nil,
			fmt.Errorf("data: dataset has %s, shorter than one block of %d; use more text or a smaller "+
				"block_size", quantity.Of(n, "token"), blockSize)
	}
	return &Blocks{tokens: tokens, size: size, stride: size, blocks: tokens.Len() / size}, nil
}

// EvalBlocks cuts a stream for evaluation, in which no token may be lost or counted twice. Each block begins with the
// last token of the one before, so every token of the stream except the first is predicted exactly once. The last block
// may be short. It is an error if there are fewer than two tokens, since then nothing is predicted.
func EvalBlocks(tokens Tokens, blockSize int) (*Blocks, error) {
	if err := checkBlockSize(blockSize); err != nil {
		return nil, err
	}
	n, stride := tokens.Len(), int64(blockSize)-1
	if n < 2 {
		return nil, fmt.Errorf("data: dataset has %s: want at least 2 for an evaluation", quantity.Of(n, "token"))
	}
	return &Blocks{tokens: tokens, size: int64(blockSize), stride: stride, blocks: (n - 2 + stride) / stride}, nil
}

func checkBlockSize(n int) error {
	if n < 2 {
		return fmt.Errorf("data: block_size is %d: want at least 2: a block's first token is not predicted", n)
	}
	return nil
}

// Len is the number of blocks.
func (b *Blocks) Len() int { return int(b.blocks) }

// Get returns the tokens of block i: block_size of them, and at least 2 in the last block of
// an evaluation.
func (b *Blocks) Get(i int) ([]int32, error) {
	if i < 0 || int64(i) >= b.blocks {
		return nil, fmt.Errorf("data: block %d of %d", i, b.blocks)
	}
	at := int64(i) * b.stride
	block := make([]int32, min(b.size, b.tokens.Len()-at))
	if err := b.tokens.ReadTokens(block, at); err != nil {
		return nil, err
	}
	return block, b.checkIDs(block, at)
}

// checkIDs refuses ids that the vocabulary does not have; the first token of block is that at position at.
func (b *Blocks) checkIDs(block []int32, at int64) error {
	if b.vocab == 0 {
		return nil
	}
	for j, id := range block {
		if id < 0 || int(id) >= b.vocab {
			name := "the stream"
			if s, ok := b.tokens.(fmt.Stringer); ok {
				name = s.String()
			}
			return fmt.Errorf("data: token %d of %s has id %d: want 0 to %d: the model's vocabulary has %d tokens",
				at+int64(j), name, id, b.vocab-1, b.vocab)
		}
	}
	return nil
}

// WithVocabulary returns src with a check: a sample with an id outside of a vocabulary of so many tokens is an error
// that names the id, the stream (such as a file) and the position in it. It checks the streams of Blocks; other sources
// are returned unchanged. Package trainer calls it with the vocabulary of the model.
func WithVocabulary(src Source, tokens int) Source {
	s, ok := src.(source[[]int32])
	if !ok {
		return src
	}
	b, ok := s.dataset.(*Blocks)
	if !ok {
		return src
	}
	checked := *b
	checked.vocab = tokens
	s.dataset = &checked
	return s
}
