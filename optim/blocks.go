// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/blockwise"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
	"github.com/lockstep-ml/lockstep/internal/parallel"
	"github.com/lockstep-ml/lockstep/tensor"
)

// elements are some of a parameter, few enough to stay in the innermost cache.
type elements struct {
	p, u  []float32   // the parameter, and the update, which begins as the gradient
	state [][]float32 // of the transform, in the order of State
	free  []float32   // as many elements, for what a transform needs them for
}

// Sizes of the pass over blocks: what a worker takes at a time, and what it does at a time.
const (
	chunk   = 32 * blockwise.Block
	handful = 4 * blockwise.Block
)

// fused is the pass over blocks, nil if a transform of the chain works on tensors alone. What the pass leaves in
// float32 goes the way of the plain optimizer's own pass.
func (q *quantized) fused() *Fused {
	plain := make([]Transform, len(q.chain))
	for i, t := range q.chain {
		if plain[i] = t; t == q {
			plain[i] = q.of
		}
		if plain[i].Traits().host == nil {
			return nil
		}
	}
	rest := fusedPass(plain)
	return &Fused{Chain: q.chain,
		Takes: func(c *tensor.Ctx, u *FusedUpdate) bool {
			if !isQuantized(u) {
				return rest != nil
			}
			_, ok := newBlockPass(c, q, u)
			return ok
		},
		Run: func(c *tensor.Ctx, updates []FusedUpdate) {
			pool := parallel.New(c.Device().Workers())
			defer pool.Close()
			var wide []FusedUpdate
			for i := range updates {
				u := &updates[i]
				if !isQuantized(u) {
					wide = append(wide, *u)
				} else if pass, ok := newBlockPass(c, q, u); ok {
					pass.run(pool)
				}
			}
			if len(wide) > 0 {
				rest.Run(c, wide)
			}
		}}
}

func isQuantized(u *FusedUpdate) bool { return len(u.State) > 0 && u.State[0].DType() == tensor.Uint8 }

// blockPass is a step of one parameter, block by block: each is read into the cache, changed there and written back.
type blockPass struct {
	u       *FusedUpdate
	p, grad []float32
	state   []storedState
	steps   []func(e *elements)
}

// newBlockPass readies the pass; ok is false if the host cannot read and write the tensors in their places.
func newBlockPass(c *tensor.Ctx, q *quantized, u *FusedUpdate) (b *blockPass, ok bool) {
	if u.P.DType() == tensor.Float64 || u.Grad.DType() != tensor.Float32 {
		return nil, false
	}
	b = &blockPass{u: u, state: make([]storedState, len(u.State)/2)}
	memory := make([][]byte, 0, 8)
	for _, t := range append([]*tensor.Tensor{u.P, u.Grad}, u.State...) {
		mem, ok := tensor.HostBytes(c, t)
		if !ok {
			return nil, false
		}
		memory = append(memory, mem)
	}
	b.p, b.grad = dtype.Elements[float32](memory[0]), dtype.Elements[float32](memory[1])
	for i, m := range q.maps(tensor.Named{Tensor: u.P}) {
		b.state[i] = storedState{codes: memory[2+2*i], scales: dtype.Elements[float32](memory[3+2*i]), by: m}
	}
	for _, t := range q.chain {
		if t == q {
			t = q.of
		}
		b.steps = append(b.steps, t.Traits().host(u.Group, u.Step))
	}
	return b, true
}

func (b *blockPass) run(pool *parallel.Pool) {
	workers := make([]elements, pool.Workers())
	pool.ForWorkers(len(b.p), chunk, func(worker, lo, hi int) {
		e := &workers[worker]
		if e.free == nil {
			e.free = make([]float32, (len(b.state)+2)*handful)
			e.state = make([][]float32, len(b.state))
		}
		for ; lo < hi; lo += handful {
			b.change(*e, lo, min(lo+handful, hi))
		}
	})
	b.u.P.Written()
	for _, t := range b.u.State {
		t.Written()
	}
}

// change makes the step of the elements from lo to hi. memory has room for the update, the state and more in free.
func (b *blockPass) change(memory elements, lo, hi int) {
	e, n := memory, hi-lo
	room := func() (x []float32) {
		x, e.free = e.free[:n], e.free[handful:]
		return x
	}
	e.p, e.u = b.p[lo:hi], room()
	if b.u.Factor == 1 {
		copy(e.u, b.grad[lo:hi])
	} else {
		vecmath.Affine(e.u, b.grad[lo:hi], float32(b.u.Factor), 0)
	}
	for i := range b.state {
		s := b.state[i].part(lo, hi)
		e.state[i] = room()
		s.by.Dequantize(e.state[i], s.codes, s.scales)
	}
	e.free = e.free[:n]
	for _, step := range b.steps {
		step(&e)
	}
	vecmath.Axpby(e.p, 1, e.p, -float32(b.u.Group.LR), e.u)
	for i := range b.state {
		s := b.state[i].part(lo, hi)
		s.by.Quantize(s.codes, s.scales, e.state[i])
	}
}

// part is what stands for the elements from lo, where a block begins, to hi.
func (s *storedState) part(lo, hi int) storedState {
	return storedState{codes: s.codes[lo:hi], scales: s.scales[lo/blockwise.Block : blockwise.Blocks(hi)], by: s.by}
}

// divideByRoot divides u by factor·√v + eps.
func (e *elements) divideByRoot(v []float32, factor, eps float64) {
	for i, x := range v {
		e.free[i] = float32(math.Sqrt(float64(x)))
	}
	vecmath.Affine(e.free, e.free, float32(factor), float32(eps))
	vecmath.Div(e.u, e.u, e.free)
}
