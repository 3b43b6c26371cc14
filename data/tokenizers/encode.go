// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

const (
	// cacheEntries and cacheWord bound an encoder's memory of encoded pre-tokens to a
	// few megabytes.
	cacheEntries = 1 << 15
	cacheWord    = 48

	// pieceSize is the size of the pieces of text that EncodeAll hands to its workers.
	pieceSize = 1 << 16
)

// Encode returns the token ids of text. Added tokens that appear in it, special ones
// included, become one id each, as in HuggingFace's tokenizers; EncodeOrdinary takes
// them as text. Nothing is put around the text: see EncodeWithSpecial. Bytes that are not valid UTF-8 are encoded like
// any others by byte-level vocabularies and by those with a token for each byte; others do not know them.
//
// The error is of a tokenizer.json whose own settings fail on the text: a regular expression that takes too long, or
// replacements that make it many times as long.
func (t *Tokenizer) Encode(text string) ([]int32, error) { return t.encodeIDs(text, true) }

// EncodeOrdinary is Encode for text in which added tokens have no meaning, such as
// text from a source that is not trusted.
func (t *Tokenizer) EncodeOrdinary(text string) ([]int32, error) { return t.encodeIDs(text, false) }

func (t *Tokenizer) encodeIDs(text string, added bool) ([]int32, error) {
	e := t.states.Get().(*encoder)
	defer t.states.Put(e)
	e.ids, e.encoding = nil, nil
	p := piece{text: text, track: t.whereMatters, run: newRun(len(text))}
	if added {
		e.encode(p)
	} else {
		e.plain(p, false)
	}
	ids := e.ids
	e.ids = nil
	if p.run.err != nil {
		return nil, p.run.err
	}
	return ids, nil
}

// EncodeAll encodes every text as Encode does, on the given number of goroutines
// (0: one per processor). The result does not depend on that number. The error is the
// context's, or Encode's with the number of the text.
func (t *Tokenizer) EncodeAll(ctx context.Context, texts []string, workers int) ([][]int32, error) {
	type job struct {
		text string
		of   int // the number of the text
		ids  []int32
	}
	var jobs []job
	first := make([]int, len(texts)+1)
	for i, text := range texts {
		if t.cuttable {
			t.groups[0].split(text, func(start, end int, id int32) {
				if id >= 0 {
					jobs = append(jobs, job{ids: []int32{id}, of: i})
					return
				}
				for _, part := range pieces(text[start:end], pieceSize) {
					jobs = append(jobs, job{text: part, of: i})
				}
			})
		} else {
			jobs = append(jobs, job{text: text, of: i})
		}
		first[i+1] = len(jobs)
	}
	err := parallel(ctx, len(jobs), workers, func(i int) (err error) {
		if jobs[i].ids == nil {
			jobs[i].ids, err = t.Encode(jobs[i].text)
		}
		if err != nil {
			return fmt.Errorf("%w (in text %d)", err, jobs[i].of)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	all := make([][]int32, len(texts))
	for i := range texts {
		for _, j := range jobs[first[i]:first[i+1]] {
			all[i] = append(all[i], j.ids...)
		}
	}
	return all, nil
}

// parallel calls f for 0 … n-1 on several goroutines until the context ends.
func parallel(ctx context.Context, n, workers int, f func(i int) error) error {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	next := make(chan int)
	group, ctx := errgroup.WithContext(ctx)
	for range min(workers, n) {
		group.Go(func() error {
			for i := range next {
				if err := f(i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(next)
		for i := range n {
			select {
			case next <- i:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	return group.Wait()
}

// cutBefore returns the first position p ≥ i at which text can be cut in two without
// changing its pre-tokens, len(text) if there is none. No pre-token of a known scanner has a space
// after a letter or a digit, so a cut between the two is always safe.
func cutBefore(text string, i int) int {
	for p := max(i, 1); p < len(text); p++ {
		if text[p] == ' ' && isASCIIWord(text[p-1]) {
			return p
		}
	}
	return len(text)
}

func isASCIIWord(b byte) bool { return '0' <= b && b <= '9' || 'a' <= b|0x20 && b|0x20 <= 'z' }

// pieces cuts text into parts of about size bytes that can be split and encoded
// apart from one another.
func pieces(text string, size int) []string {
	var parts []string
	for len(text) > size {
		p := cutBefore(text, size)
		parts = append(parts, text[:p])
		text = text[p:]
	}
	if len(text) > 0 {
		parts = append(parts, text)
	}
	return parts
}

// encoder is the working memory of one goroutine that encodes.
type encoder struct {
	t        *Tokenizer
	split    func(piece) // the pre-tokenizers, and then the model
	ids      []int32
	encoding *Encoding // where ids with their offsets go instead, if they are wanted

	cache  map[string][]token
	tokens []token
	word   []token
	queue  mergeQueue
	links  []link
	steps  []step // of Unigram
}

func newEncoder(t *Tokenizer) *encoder {
	e := &encoder{t: t, cache: make(map[string][]token)}
	e.split = e.appendWord
	for _, s := range slices.Backward(t.split) {
		next := e.split
		e.split = func(p piece) { s(p, next) }
	}
	return e
}

// encode looks for added tokens in the text, and encodes what lies between them.
func (e *encoder) encode(p piece) {
	e.t.groups[0].split(p.text, func(start, end int, id int32) {
		if id >= 0 {
			e.appendAdded(p.cut(start, end), id)
		} else {
			e.plain(p.cut(start, end), true)
		}
	})
}

// plain encodes a part of the text without tokens of the first round.
func (e *encoder) plain(p piece, added bool) {
	p = e.t.normalize(p)
	if p.run.room -= len(p.text); p.run.err != nil {
		return
	}
	if !added {
		e.words(p.cut(0, len(p.text)))
		return
	}
	e.t.groups[1].split(p.text, func(start, end int, id int32) {
		if id >= 0 {
			e.appendAdded(p.cut(start, end), id)
		} else {
			e.words(p.cut(start, end))
		}
	})
}

func (e *encoder) words(p piece) {
	if p.text != "" && p.run.err == nil {
		e.split(p)
	}
}

func (e *encoder) appendAdded(p piece, id int32) {
	if e.encoding == nil {
		e.ids = append(e.ids, id)
		return
	}
	if e.encoding.added == nil {
		e.encoding.added = make(map[int]string)
	}
	e.encoding.added[len(e.encoding.IDs)] = p.text
	e.tokens = append(e.tokens[:0], token{id, int32(len(p.text))})
	e.encoding.appendWord(&p, e.tokens)
}

// appendWord encodes a pre-token.
func (e *encoder) appendWord(p piece) {
	e.tokens = e.t.model.tokenize(e, e.tokens[:0], p.text)
	if e.encoding != nil {
		e.encoding.appendWord(&p, e.tokens)
		return
	}
	for _, t := range e.tokens {
		e.ids = append(e.ids, t.id)
	}
}

// remember keeps the tokens of a word.
func (e *encoder) remember(word string, tokens []token) {
	if len(word) > cacheWord {
		return
	}
	if len(e.cache) >= cacheEntries {
		clear(e.cache)
	}
	e.cache[strings.Clone(word)] = slices.Clone(tokens)
}
