// SPDX-License-Identifier: Apache-2.0

package tokenizers

import "math"

// heapFrom is the length from which a pre-token is merged with a heap, in
// n log n: below, scanning for the best pair is faster.
const heapFrom = 64

// mergeShort merges the pair of the lowest rank, the leftmost of equals, until no pair
// has a merge. It works in place.
func (m *bpe) mergeShort(word []token) []token {
	for len(word) > 1 {
		best, at := merge{rank: math.MaxInt32}, -1
		for i := range len(word) - 1 {
			if c, ok := m.merged.find(makePair(word[i].id, word[i+1].id)); ok && c.rank < best.rank {
				best, at = c, i
			}
		}
		if at < 0 {
			break
		}
		word[at] = token{best.id, word[at].size + word[at+1].size}
		word = append(word[:at+1], word[at+2:]...)
	}
	return word
}

// link is a token in a doubly linked list over the positions of a long pre-token.
type link struct {
	prev, next int32
	token      // of id -1 once it has been merged into its left neighbour
}

// mergeLong does what mergeShort does, in n log n.
func (e *encoder) mergeLong(m *bpe, word []token) []token {
	e.links, e.queue = e.links[:0], e.queue[:0]
	for i, t := range word {
		e.links = append(e.links, link{prev: int32(i) - 1, next: int32(i) + 1, token: t})
	}
	for i := range len(word) - 1 {
		e.offer(m, int32(i))
	}
	for len(e.queue) > 0 {
		c := e.queue.pop()
		left := &e.links[c.at]
		if left.id < 0 || int(left.next) >= len(e.links) || makePair(left.id, e.links[left.next].id) != c.pair {
			continue // a merge nearby has changed the pair
		}
		right := &e.links[left.next]
		left.token = token{c.id, left.size + right.size}
		left.next, right.id = right.next, -1
		if int(left.next) < len(e.links) {
			e.links[left.next].prev = c.at
			e.offer(m, c.at)
		}
		if left.prev >= 0 {
			e.offer(m, left.prev)
		}
	}
	out := word[:0]
	for i := int32(0); int(i) < len(e.links); i = e.links[i].next {
		out = append(out, e.links[i].token)
	}
	return out
}

// offer queues the merge of the token at position i with the next one, if there is one.
func (e *encoder) offer(m *bpe, i int32) {
	p := makePair(e.links[i].id, e.links[e.links[i].next].id)
	if c, ok := m.merged.find(p); ok {
		e.queue.push(candidate{merge: c, at: i, pair: p})
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
