// SPDX-License-Identifier: Apache-2.0

package generation

import (
	"container/heap"
	"fmt"
	"math"
	"slices"
)

// choose picks the next token of a text by its logits, which it changes.
func (o *Options) choose(t *text, logits []float32) (id int, err error) {
	penalize(logits, t.all, o.RepetitionPenalty)
	forbidRepeats(logits, t.all, o.NoRepeatNGram)
	if len(t.new()) < o.MinNewTokens {
		for _, id := range o.EOS {
			if id >= 0 && id < len(logits) {
				logits[id] = float32(math.Inf(-1))
			}
		}
	}
	for _, p := range o.Processors {
		p(t.all, logits)
	}
	best := argmax(logits)
	if x := logits[best]; x != x || math.IsInf(float64(x), 0) {
		return 0, fmt.Errorf("generation: no token may follow token %d: after min_new_tokens, no_repeat_ngram_size "+
			"and processors the largest logit is %g", len(t.all), x)
	}
	if o.Temperature == 0 {
		return best, nil
	}
	return o.sample(logits, t.draws.Float64()), nil
}

// penalize makes the tokens of seen less likely, each once however often it is there.
func penalize(logits []float32, seen []int, penalty float64) {
	if penalty == 0 || penalty == 1 {
		return
	}
	done := map[int]bool{}
	for _, id := range seen {
		switch x := logits[id]; {
		case done[id]:
		case x < 0:
			logits[id] = x * float32(penalty)
		default:
			logits[id] = x / float32(penalty)
		}
		done[id] = true
	}
}

// forbidRepeats forbids the tokens that would end a sequence of n tokens that is there already.
func forbidRepeats(logits []float32, seen []int, n int) {
	if n == 0 || len(seen) < n {
		return
	}
	end := seen[len(seen)-n+1:]
	for i := range len(seen) - n + 1 {
		if slices.Equal(seen[i:i+n-1], end) {
			logits[seen[i+n-1]] = float32(math.Inf(-1))
		}
	}
}

// sample is the token at u in [0, 1) of those that are kept, the likeliest first.
func (o *Options) sample(logits []float32, u float64) int {
	r := &ranking{rest: newHeap(logits)}
	weight := func(id int) float64 { return math.Exp(float64(logits[id]-logits[r.at(0)]) / o.Temperature) }
	n, whole := len(logits), 0.0 // of what top_k keeps
	if o.TopK > 0 && o.TopK < n {
		n = o.TopK
		for i := range n {
			whole += weight(r.at(i))
		}
	} else {
		for id := range logits {
			whole += weight(id)
		}
	}
	all := o.TopP == 0 || o.TopP == 1
	kept, sum := 0, 0.0
	for ; kept < n; kept++ {
		w := weight(r.at(kept))
		if kept > 0 && (!all && sum >= o.TopP*whole || w < o.MinP) {
			break
		}
		if sum += w; all && o.MinP == 0 && sum > u*whole {
			return r.at(kept) // nobody needs to know what comes after it
		}
	}
	u *= sum
	for i := range kept {
		if u -= weight(r.at(i)); u < 0 {
			return r.at(i)
		}
	}
	return r.at(kept - 1)
}

// ranking gives token ids, the one with the largest logit first and of equals the first, as far as they are asked for.
type ranking struct {
	ids  []int
	rest *idHeap
}

// at is the id at place i.
func (r *ranking) at(i int) int {
	for len(r.ids) <= i {
		r.ids = append(r.ids, heap.Pop(r.rest).(int))
	}
	return r.ids[i]
}

// idHeap is a heap of token ids by their logits.
type idHeap struct {
	logits []float32
	ids    []int
}

func newHeap(logits []float32) *idHeap {
	h := &idHeap{logits: logits, ids: make([]int, len(logits))}
	for i := range h.ids {
		h.ids[i] = i
	}
	heap.Init(h)
	return h
}

func (h *idHeap) Len() int { return len(h.ids) }
func (h *idHeap) Less(i, j int) bool {
	a, b := h.ids[i], h.ids[j]
	return h.logits[a] > h.logits[b] || h.logits[a] == h.logits[b] && a < b
}
func (h *idHeap) Swap(i, j int) { h.ids[i], h.ids[j] = h.ids[j], h.ids[i] }
func (h *idHeap) Push(x any)    { h.ids = append(h.ids, x.(int)) }
func (h *idHeap) Pop() any {
	last := h.ids[len(h.ids)-1]
	h.ids = h.ids[:len(h.ids)-1]
	return last
}

// argmax is the first index of the largest element, or of a NaN.
func argmax(x []float32) int {
	best := 0
	for i, v := range x {
		if v > x[best] || v != v {
			best = i
		}
	}
	return best
}
