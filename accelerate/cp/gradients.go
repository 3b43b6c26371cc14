// SPDX-License-Identifier: Apache-2.0

package cp

import (
	"context"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/flatten"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Gradients are those of parameters in the passes of a batch, which are sums over tokens: each chunk's are formed by
// themselves, and added when all of this rank's chunks have one.
type Gradients struct {
	*Passes
	c      *tensor.Ctx
	named  []tensor.Named
	params []*tensor.Tensor
	chunks [][]*tensor.Tensor // of each parameter: those of this rank's chunks, nil where there is none yet; or the sum
	left   []int              // of each parameter: the chunks whose passes are to come
	// take gets the sum over this rank's chunks, and the sum ends; nil: it is kept
	take func(i int, sum *tensor.Tensor)
}

// Gradients are those of params in the passes of a batch. take gets the sums over this rank's chunks, by the place in
// params, each as soon as all chunks have it, nil where they have none: a sum ends with the call. Without take they are
// kept for Sums.
func (p *Passes) Gradients(c *tensor.Ctx, params []tensor.Named, take func(i int, sum *tensor.Tensor)) *Gradients {
	n := len(params)
	g := &Gradients{Passes: p, c: c.NoGrad(), named: params, chunks: make([][]*tensor.Tensor, n), left: make([]int, n),
		take: take}
	for i, q := range params {
		g.left[i] = p.layout.PerRank()
		g.params, g.chunks[i] = append(g.params, q.Tensor), make([]*tensor.Tensor, g.left[i])
	}
	return g
}

// passes runs the forward and backward passes of this rank's chunks.
func (g *Gradients) passes(ctx context.Context, c *nn.Ctx, b *data.Batch, loss Loss, seed float64) (Sum, error) {
	sum, _, err := g.run(ctx, c, b, loss, func(c *nn.Ctx, out Output, i int) error {
		if err := out.check(); err != nil {
			return err
		}
		if len(g.params) > 0 {
			one := tensor.Full(c.NoGrad(), out.Loss.DType(), seed, out.Loss.Shape()...)
			g.Backward(c.Ctx, []*tensor.Tensor{out.Loss}, []*tensor.Tensor{one}, nil, i)
		}
		return nil
	})
	return sum, err
}

// Backward runs backward from roots of a chunk, this rank's of the given number. It returns the gradients of inputs,
// leaves that are no parameters, which lie outside of scopes; nil where none flows.
func (g *Gradients) Backward(c *tensor.Ctx, roots, grads, inputs []*tensor.Tensor, chunk int,
	options ...tensor.BackwardOption) []*tensor.Tensor {
	found, came := make([]*tensor.Tensor, len(inputs)), make([]bool, len(g.params))
	arrive := func(i int, t *tensor.Tensor) {
		if !came[i] {
			came[i] = true
			g.Arrive(i, chunk, t)
		}
	}
	if len(roots) > 0 {
		options = append(options, tensor.Completing(func(i int, t *tensor.Tensor) {
			if i < len(inputs) {
				found[i] = t
			} else {
				arrive(i-len(inputs), t)
			}
		}), tensor.Reaching(func(reached func(*tensor.Tensor) bool) {
			for i, p := range g.params {
				if !reached(p) {
					arrive(i, nil) // so that nothing waits for it until the end
				}
			}
		}))
		tensor.Backward(c, roots, grads, slices.Concat(inputs, g.params), options...)
	}
	for i := range g.params {
		arrive(i, nil)
	}
	return found
}

// Arrive enters the gradient of parameter i in the pass of a chunk of this rank, nil if that has none. It must lie
// outside of scopes, and now belongs to g.
func (g *Gradients) Arrive(i, chunk int, t *tensor.Tensor) {
	g.chunks[i][chunk] = t
	if g.left[i]--; g.left[i] > 0 {
		return
	}
	sum := g.add(i)
	if g.take != nil {
		g.take(i, sum)
		if g.chunks[i] = nil; sum != nil {
			sum.Free()
		}
	}
}

// add adds the gradients of a parameter over this rank's chunks, and returns the sum; nil if there is none.
func (g *Gradients) add(i int) *tensor.Tensor {
	list := slices.DeleteFunc(g.chunks[i], func(t *tensor.Tensor) bool { return t == nil })
	if g.chunks[i] = list; len(list) == 0 {
		return nil
	}
	sum := sumTree(g.c, list)
	for _, t := range list[1:] {
		t.Free()
	}
	g.chunks[i] = list[:1]
	return sum
}

// deliver gives the sums over the chunks of all ranks to use.
func (g *Gradients) deliver(ctx context.Context, use func(c *tensor.Ctx, params, grads []*tensor.Tensor)) error {
	sums, err := g.Sums(ctx)
	if err != nil {
		return err
	}
	var params, grads []*tensor.Tensor
	for i, sum := range sums {
		if sum != nil {
			params, grads = append(params, g.params[i]), append(grads, sum)
		}
	}
	return tensor.Try(func() { use(g.c, params, grads) })
}

// Sums are those over the chunks of all ranks, the same on each; nil for parameters without. They live until Free. It
// is collective.
func (g *Gradients) Sums(ctx context.Context) ([]*tensor.Tensor, error) {
	sums := g.OwnSums()
	return sums, g.exchange(ctx, sums)
}

// OwnSums are those over this rank's chunks.
func (g *Gradients) OwnSums() []*tensor.Tensor {
	sums := make([]*tensor.Tensor, len(g.params))
	for i := range sums {
		sums[i] = g.add(i)
	}
	return sums
}

// GiveUp gives a sum to the caller, who frees it.
func (g *Gradients) GiveUp(i int) { g.chunks[i] = nil }

// exchange adds the sums of all ranks. A parameter that the chunks of some ranks do not use counts there as −0.
func (g *Gradients) exchange(ctx context.Context, sums []*tensor.Tensor) error {
	group := g.cfg.Group
	if group == nil || group.Size() == 1 {
		return nil
	}
	used := make([]uint8, len(sums))
	for i, sum := range sums {
		if sum != nil {
			used[i] = 1
		}
	}
	if err := group.AllReduce(comm.Of(used), comm.Max, comm.Label("parameters in use")).Wait(ctx); err != nil {
		return err
	}
	for i, p := range g.named {
		if used[i] != 0 && sums[i] == nil {
			sums[i] = tensor.Full(g.c, p.GradDType(), math.Copysign(0, -1), p.Shape()...) // which changes no sum
			g.chunks[i] = []*tensor.Tensor{sums[i]}
		}
	}
	return g.sum(sums)
}

// bucketBytes is how much of several gradients is sent together. Larger gradients are sent alone, from where they are.
const bucketBytes = 1 << 20

// sum adds the tensors of all ranks; those that are nil are so on all.
func (g *Gradients) sum(ts []*tensor.Tensor) (err error) {
	var sums []tensor.Named
	var order []int
	for _, t := range ts {
		if t != nil {
			sums, order = append(sums, tensor.Named{Tensor: t}), append(order, len(order))
		}
	}
	g.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		var calls []*comm.Handle
		var unpack []func()
		for _, b := range flatten.Buckets(sums, order, bucketBytes, bucketBytes) {
			vector := sums[b.List[0]].Tensor
			if len(b.List) > 1 {
				vector = tensor.Zeros(c, b.DType, b.Numel())
				for at, i := range b.List {
					t := sums[i].Tensor
					place := b.View(c, vector, at, t.Shape()...)
					tensor.CopyInto(c, place, t)
					unpack = append(unpack, func() { tensor.CopyInto(c, t, place) })
				}
			}
			calls = append(calls, g.cfg.Group.AllReduce(comm.OfTensor(c, vector), comm.Sum,
				comm.Label("gradients of chunks")))
		}
		if err = ended(calls...); err != nil {
			return nil
		}
		for _, f := range unpack {
			f()
		}
		return nil
	})
	return err
}

// Free frees the gradients.
func (g *Gradients) Free() {
	for _, list := range g.chunks {
		for _, t := range list {
			if t != nil {
				t.Free()
			}
		}
	}
}

// sumTree adds tensors in a binary tree, in the order in which package comm adds ranks: the sum is in the first. nil
// for none.
func sumTree(c *tensor.Ctx, ts []*tensor.Tensor) *tensor.Tensor {
	if len(ts) == 0 {
		return nil
	}
	for d := 1; d < len(ts); d *= 2 {
		for i := 0; i+d < len(ts); i += 2 * d {
			tensor.AddInto(c, ts[i], ts[i+d])
		}
	}
	return ts[0]
}
