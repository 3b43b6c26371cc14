// SPDX-License-Identifier: Apache-2.0

package tokenizers

import (
	"context"
	"iter"
	"math"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
)

const (
	// cacheEntries and cacheWord bound an encoder's memory of encoded pre-tokens to a
	// few megabytes.
	cacheEntries = 1 << 15
	cacheWord    = 48

	// heapFrom is the length from which a pre-token is merged with a heap, in
	// n log n: below, scanning for the best pair is faster.
	heapFrom = 64

	// pieceSize is the size of the pieces of text that EncodeAll hands to its workers.
	pieceSize = 1 << 16
)

// Encode returns the token ids of text. Added tokens that appear in it, special ones
// included, become one id each, as in HuggingFace's tokenizers; EncodeOrdinary takes
// them as text. Bytes that are not valid UTF-8 are encoded like any others and come
// back from Decode.
func (t *BPE) Encode(text string) []int32 {
	e := t.states.Get().(*encoder)
	defer t.states.Put(e)
	var ids []int32
	for piece, added := range t.split(text) {
		if added >= 0 {
			ids = append(ids, added)
		} else {
			ids = e.appendText(ids, piece)
		}
	}
	return ids
}

// EncodeOrdinary is Encode for text in which added tokens have no meaning, such as
// text from a source that is not trusted.
func (t *BPE) EncodeOrdinary(text string) []int32 {
	e := t.states.Get().(*encoder)
	defer t.states.Put(e)
	return e.appendText(nil, text)
}

// EncodeAll encodes every text as Encode does, on the given number of goroutines
// (0: one per processor). The result does not depend on that number. The error is the
// context's.
func (t *BPE) EncodeAll(ctx context.Context, texts []string, workers int) ([][]int32, error) {
	type job struct {
		text string
		ids  []int32
	}
	var jobs []job
	first := make([]int, len(texts)+1)
	for i, text := range texts {
		for piece, added := range t.split(text) {
			if added >= 0 {
				jobs = append(jobs, job{ids: []int32{added}})
				continue
			}
			for _, part := range pieces(piece, pieceSize) {
				jobs = append(jobs, job{text: part})
			}
		}
		first[i+1] = len(jobs)
	}
	err := parallel(ctx, len(jobs), workers, func(i int) {
		if jobs[i].ids == nil {
			jobs[i].ids = t.EncodeOrdinary(jobs[i].text)
		}
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
func parallel(ctx context.Context, n, workers int, f func(i int)) error {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	next := make(chan int)
	group, ctx := errgroup.WithContext(ctx)
	for range min(workers, n) {
		group.Go(func() error {
			for i := range next {
				f(i)
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

// split cuts text at the added tokens. It yields pieces of plain text with id -1, and
// added tokens with their id.
func (t *BPE) split(text string) iter.Seq2[string, int32] {
	return func(yield func(string, int32) bool) {
		for piece, id := range splitAdded(text, t.groups[0]) {
			if id >= 0 {
				if !yield(piece, id) {
					return
				}
				continue
			}
			for piece, id := range splitAdded(piece, t.groups[1]) {
				if !yield(piece, id) {
					return
				}
			}
		}
	}
}

// splitAdded cuts text at the given tokens: leftmost first, the longest of those that
// start at the same place.
func splitAdded(text string, added []AddedToken) iter.Seq2[string, int32] {
	return func(yield func(string, int32) bool) {
		next := make([]int, len(added)) // where each token appears next, at or after pos
		for i := range next {
			next[i] = -1
		}
		for pos := 0; pos < len(text); {
			start, best := len(text), -1
			for i, a := range added {
				if next[i] < pos {
					next[i] = indexFrom(text, a.Content, pos)
				}
				if next[i] < start || next[i] == start && best >= 0 && len(a.Content) > len(added[best].Content) {
					start, best = next[i], i
				}
			}
			if start > pos && !yield(text[pos:start], -1) {
				return
			}
			if best < 0 {
				return
			}
			if pos = start + len(added[best].Content); !yield(text[start:pos], added[best].ID) {
				return
			}
		}
	}
}

// indexFrom is the first position of s in text from pos on, the largest int if there
// is none.
func indexFrom(text, s string, pos int) int {
	if i := strings.Index(text[pos:], s); i >= 0 {
		return pos + i
	}
	return math.MaxInt
}

// encoder is the working memory of one goroutine that encodes.
type encoder struct {
	bpe   *BPE
	cache map[string][]int32
	word  []int32
	queue mergeQueue
	links []link
}

func newEncoder(t *BPE) *encoder {
	return &encoder{bpe: t, cache: make(map[string][]int32)}
}

// appendText appends the ids of text, which is taken as plain text, to dst.
func (e *encoder) appendText(dst []int32, text string) []int32 {
	for i := 0; i < len(text); {
		end := splitNext(text, i)
		dst = e.appendWord(dst, text[i:end])
		i = end
	}
	return dst
}

// appendWord appends the ids of one pre-token to dst.
func (e *encoder) appendWord(dst []int32, word string) []int32 {
	if len(word) == 1 {
		return append(dst, e.bpe.bytes[word[0]])
	}
	if id, ok := e.bpe.whole[word]; ok {
		return append(dst, id)
	}
	if ids, ok := e.cache[word]; ok {
		return append(dst, ids...)
	}
	e.word = e.word[:0]
	for i := range len(word) {
		e.word = append(e.word, e.bpe.bytes[word[i]])
	}
	ids := e.word
	if len(ids) < heapFrom {
		ids = e.bpe.mergeShort(ids)
	} else {
		ids = e.mergeLong(ids)
	}
	if len(word) <= cacheWord {
		if len(e.cache) >= cacheEntries {
			clear(e.cache)
		}
		e.cache[strings.Clone(word)] = append([]int32(nil), ids...)
	}
	return append(dst, ids...)
}

// mergeShort merges the pair of the lowest rank, the leftmost of equals, until no pair
// has a merge. It works in place.
func (t *BPE) mergeShort(ids []int32) []int32 {
	for len(ids) > 1 {
		best, at := merge{rank: math.MaxInt32}, -1
		for i := range len(ids) - 1 {
			if m, ok := t.merged[makePair(ids[i], ids[i+1])]; ok && m.rank < best.rank {
				best, at = m, i
			}
		}
		if at < 0 {
			break
		}
		ids[at] = best.id
		ids = append(ids[:at+1], ids[at+2:]...)
	}
	return ids
}

// link is a token in a doubly linked list over the positions of a long pre-token.
type link struct {
	prev, next int32
	id         int32 // -1 once it has been merged into its left neighbour
}

// mergeLong does what mergeShort does, in n log n.
func (e *encoder) mergeLong(ids []int32) []int32 {
	e.links, e.queue = e.links[:0], e.queue[:0]
	for i, id := range ids {
		e.links = append(e.links, link{prev: int32(i) - 1, next: int32(i) + 1, id: id})
	}
	for i := range len(ids) - 1 {
		e.offer(int32(i))
	}
	for len(e.queue) > 0 {
		c := e.queue.pop()
		left := &e.links[c.at]
		if left.id < 0 || int(left.next) >= len(e.links) || makePair(left.id, e.links[left.next].id) != c.pair {
			continue // a merge nearby has changed the pair
		}
		right := &e.links[left.next]
		left.id, left.next, right.id = c.id, right.next, -1
		if int(left.next) < len(e.links) {
			e.links[left.next].prev = c.at
			e.offer(c.at)
		}
		if left.prev >= 0 {
			e.offer(left.prev)
		}
	}
	out := ids[:0]
	for i := int32(0); int(i) < len(e.links); i = e.links[i].next {
		out = append(out, e.links[i].id)
	}
	return out
}

// offer queues the merge of the token at position i with the next one, if there is one.
func (e *encoder) offer(i int32) {
	p := makePair(e.links[i].id, e.links[e.links[i].next].id)
	if m, ok := e.bpe.merged[p]; ok {
		e.queue.push(candidate{merge: m, at: i, pair: p})
	}
}

// candidate is a possible merge in a long pre-token.
type candidate struct {
	merge
	at   int32
	pair pair
}

// mergeQueue is a binary heap: the lowest rank first, then the leftmost position.
type mergeQueue []candidate

func (q mergeQueue) less(i, j int) bool {
	return q[i].rank < q[j].rank || q[i].rank == q[j].rank && q[i].at < q[j].at
}

func (q *mergeQueue) push(c candidate) {
	*q = append(*q, c)
	h := *q
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (q *mergeQueue) pop() candidate {
	h := *q
	top, n := h[0], len(h)-1
	h[0] = h[n]
	h = h[:n]
	*q = h
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			break
		}
		if down+1 < n && h.less(down+1, down) {
			down++
		}
		if !h.less(down, i) {
			break
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
	return top
}
