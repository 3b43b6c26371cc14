// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"maps"
	"math"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

func init() { register("top_k", DefaultTopK) }

// TopK are the settings of the hook top_k: of each parameter's gradient a rank sends the numbers that are largest
// without their sign, with their places, and keeps the rest for the next step (Aji and Heafield 2017; Stich et al.
// 2018). A parameter of which places and numbers would take no fewer bytes than all its numbers is summed as it is:
// with a density of 0.5 and more these are all. A parameter that no rank uses loses what is owed to it.
type TopK struct {
	// Density is the part of a parameter's numbers that is sent, above 0 and at most 1.
	Density float64 `json:"density"`
	// ErrorFeedback adds what was not sent to the next gradient.
	ErrorFeedback bool `json:"use_error_feedback"`
}

// DefaultTopK sends 1 % of the numbers, with error feedback.
func DefaultTopK() TopK { return TopK{Density: 0.01, ErrorFeedback: true} }

// New makes the hook.
func (c TopK) New() Hook {
	return &topK{lossy: "top_k", TopK: c, memory: memory{off: !c.ErrorFeedback}}
}

type topK struct {
	lossy
	TopK
	memory
	steps int64
}

func (h *topK) State() HookState { return HookState{Steps: h.steps, Own: h.errors} }

func (h *topK) SetState(s HookState) { h.steps, h.errors = s.Steps, maps.Clone(s.Own) }

// sparse is a gradient of which some numbers are sent.
type sparse struct {
	Part
	k int
	x []float32 // the gradient and what is owed to it; what is sent becomes zero
}

// Begin sums the parameters that stay unchanged and gathers the others' places and numbers.
func (h *topK) Begin(g *comm.Group, b Bucket) func(context.Context) error {
	if b.Index == 0 {
		h.steps++
	}
	if b.Grads.DType() != tensor.Float32 || b.Grads.Numel() == 0 {
		return AllReduce.Begin(g, b)
	}
	var raw []Part
	var list []*sparse
	var sum []float32
	var pairs []int32 // place, bits of the number
	for _, p := range b.Parts {
		n := p.Grads.Numel()
		k := int(math.Ceil(h.Density * float64(n)))
		if 2*k >= n {
			raw = append(raw, p)
			sum = append(sum, values(b.Ctx, p)...)
			continue
		}
		s := &sparse{p, k, h.take(b.Ctx, p)}
		list = append(list, s)
		for _, i := range largest(s.x, k) {
			pairs = append(pairs, int32(i), int32(math.Float32bits(s.x[i])))
			s.x[i] = 0
		}
	}
	if len(list) == 0 { // where they lie
		return AllReduce.Begin(g, b)
	}
	all := make([]int32, len(pairs)*g.Size())
	gathered := g.AllGather(comm.Of(all), comm.Of(pairs), comm.Label(b.Label), comm.Layout(b.Layout))
	summed := g.AllReduce(comm.Of(sum), comm.Sum, comm.Label(b.Label), comm.Layout(b.Layout))
	return func(ctx context.Context) error {
		if err := gathered.Wait(ctx); err != nil {
			return err
		}
		if err := summed.Wait(ctx); err != nil {
			return err
		}
		for _, p := range raw {
			n := p.Grads.Numel()
			write(b.Ctx, p, sum[:n])
			sum = sum[n:]
		}
		h.scatter(b.Ctx, list, all, g.Size())
		return nil
	}
}

// scatter adds what the ranks sent, in rank order.
func (h *topK) scatter(c *tensor.Ctx, list []*sparse, all []int32, ranks int) {
	at, each := 0, len(all)/ranks
	for _, s := range list {
		y := make([]float32, len(s.x))
		for r := range ranks {
			pairs := all[r*each+at:][:2*s.k]
			for i := 0; i < len(pairs); i += 2 {
				y[pairs[i]] += math.Float32frombits(uint32(pairs[i+1]))
			}
		}
		at += 2 * s.k
		write(c, s.Part, y)
		h.keep(s.Name, s.x, finite(y))
	}
}

// largest are the places of the k numbers of x that are largest without their sign, in their order; among equal ones
// the first. NaN is larger than all.
func largest(x []float32, k int) []int {
	const low = 1 << 15
	rank := func(v float32) uint32 { return math.Float32bits(v) &^ (1 << 31) }
	counts := make([]int, 1<<16)
	for _, v := range x {
		counts[rank(v)/low]++
	}
	high, left := uint32(len(counts)-1), k // left: how many of the numbers with this high part are taken
	for ; counts[high] < left; high-- {
		left -= counts[high]
	}
	counts = make([]int, low)
	for _, v := range x {
		if r := rank(v); r/low == high {
			counts[r%low]++
		}
	}
	last := uint32(low - 1)
	for ; counts[last] < left; last-- {
		left -= counts[last]
	}
	limit := high*low + last
	places := make([]int, 0, k)
	for i, v := range x {
		r := rank(v)
		if r == limit && left > 0 {
			left--
		} else if r <= limit {
			continue
		}
		places = append(places, i)
	}
	return places
}
