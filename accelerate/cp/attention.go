// SPDX-License-Identifier: Apache-2.0

package cp

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Method is how attention gets the keys and values of other ranks: see Gather, Ulysses and Ring.
type Method struct {
	name     string
	arrive   func(r *round, p *part)             // begins calls that run while other chunks compute; nil: none do
	forward  func(r *round, parts []*part) error // sets y
	backward func(r *round, parts []*part) error // sets dq, dk and dv
	divide   func(keyHeads, ranks int) error     // what is wrong with so many; nil: any do
}

// String is the method's name.
func (m *Method) String() string { return m.name }

// CheckModel is an error if the method cannot divide a model's attentions among so many ranks, as far as their modules
// state how many heads they have (nn.Traits).
func (m *Method) CheckModel(tree *nn.Tree, ranks int) (err error) {
	if m.divide == nil {
		return nil
	}
	tree.Modules(func(path string, module nn.Module) {
		s, ok := module.(interface{ Traits() nn.Traits })
		if !ok || s.Traits().KVHeads == 0 || err != nil {
			return
		}
		if err = m.divide(s.Traits().KVHeads, ranks); err != nil {
			err = fmt.Errorf("%s has %w", path, err)
		}
	})
	return err
}

// part is the attention of a chunk, forward and later backward. Tensors are [B,H,L,D].
type part struct {
	c        *tensor.Ctx // what is made for the chunk is made in its context
	path     string
	chunk    int
	backward bool
	err      error

	q, k, v *tensor.Tensor
	opt     tensor.AttentionOptions
	again   bool // a forward pass is run again for its gradient
	y       *tensor.Tensor

	random tensor.RandomState // of Ring, before it draws

	// for the backward pass
	graph []*graph // of what this rank computed
	whole *whole   // of Gather
	// of Gather, from when the chunk has come to its attention
	coming *coming
	saved  []*tensor.Tensor

	dy, dq, dk, dv *tensor.Tensor
}

// graph is one attention that was recorded apart from the model's graph.
type graph struct {
	in  [3]*tensor.Tensor // q, k, v
	out *tensor.Tensor
}

// attention is what the models compute in place of tensor.Attention.
func (r *round) attention(chunk int, meet func(*part)) nn.AttentionFunc {
	return func(c *nn.Ctx, q, k, v *tensor.Tensor, opt tensor.AttentionOptions) *tensor.Tensor {
		p := &part{c: c.WithoutAttention(""), path: c.Path(), chunk: chunk, q: q, k: k, v: v, opt: opt,
			again: c.Recomputing()}
		if err := r.check(p); err != nil {
			panic(&tensor.Error{Op: "cp.Attention", Msg: err.Error(), Where: c.Path(), Cause: err})
		}
		op := tensor.CustomOp{
			Name: "ContextParallelAttention",
			Forward: func(*tensor.Ctx, []*tensor.Tensor) (out, saved []*tensor.Tensor) {
				meet(p)
				return []*tensor.Tensor{p.y}, p.saved
			},
			Backward: func(c *tensor.Ctx, saved, grads []*tensor.Tensor, _ []bool) []*tensor.Tensor {
				back := *p
				back.c, back.backward, back.saved, back.dy, back.coming = c, true, saved, grads[0], nil
				meet(&back)
				return []*tensor.Tensor{back.dq, back.dk, back.dv}
			},
		}
		return tensor.Custom(c.Ctx, op, q, k, v)[0]
	}
}

// check refuses what cannot be computed by chunks.
func (r *round) check(p *part) error {
	length := r.layout.Length(r.tokens)
	switch m := p.opt.Mask; {
	case p.opt.Bias != nil:
		return fmt.Errorf("an attention bias of shape %v: want none under context parallelism, where a context has %d "+
			"of %d tokens", p.opt.Bias.Shape(), length, r.tokens)
	case p.opt.QueryOffset != 0 || p.opt.KeyOffset != 0:
		return fmt.Errorf("a key-value cache: want none under context parallelism")
	case p.q.Size(2) != length || p.k.Size(2) != length:
		return fmt.Errorf("%d queries and %d keys: want the %d tokens of a chunk", p.q.Size(2), p.k.Size(2), length)
	case m != nil && (m.Dim() != 4 || m.Size(2) != 1 || m.Size(3) != length):
		return fmt.Errorf("a mask of shape %v: want one of keys, [batch, heads or 1, 1, %d], which can be divided "+
			"among ranks; order in time is Causal, and a sliding window Window", m.Shape(), length)
	}
	if divide := r.cfg.Method.divide; divide != nil {
		return divide(p.k.Size(1), r.layout.Size)
	}
	return nil
}

// visible is how many keys the queries of a chunk may see, from the first one on.
func (r *round) visible(chunk int, causal bool) int {
	if causal {
		return min((chunk+1)*r.layout.Length(r.tokens), r.tokens)
	}
	return r.tokens
}

// attend computes the attention of a chunk's queries over the keys k and values v of all tokens. The result can run
// backward if c records.
func (r *round) attend(c *tensor.Ctx, chunk int, q, k, v, mask *tensor.Tensor, opt tensor.AttentionOptions) *graph {
	n, host := r.visible(chunk, opt.Causal), c.NoGrad()
	opt.QueryOffset = chunk * r.layout.Length(r.tokens)
	if own := opt.Mask; own != nil {
		if own.DType() != tensor.Bool { // of the chunk, which need not be one of this rank's
			own = tensor.Slice(host, mask, 3, opt.QueryOffset, opt.QueryOffset+q.Size(2))
		}
		opt.Mask = visibleTo(host, own, mask, n)
	}
	g := &graph{in: [3]*tensor.Tensor{q, tensor.Slice(host, k, 2, 0, n), tensor.Slice(host, v, 2, 0, n)}}
	for i := range g.in {
		g.in[i] = g.in[i].Boundary()
	}
	g.out, _ = tensor.Attention(c, g.in[0], g.in[1], g.in[2], opt)
	r.keys += int64(q.Size(1)) * int64(r.layout.blocks(chunk, opt.Causal))
	return g
}

// backward is the gradients of q, of the keys that it saw and of their values.
func (g *graph) backward(c *tensor.Ctx, dy *tensor.Tensor) []*tensor.Tensor {
	return tensor.Backward(c, []*tensor.Tensor{g.out}, []*tensor.Tensor{dy}, g.in[:])
}

// tokens joins chunks in the order of Layout.Order, [S,...], along dim d of the result.
func (r *round) join(c *tensor.Ctx, chunks *tensor.Tensor, d int) *tensor.Tensor {
	list := make([]*tensor.Tensor, r.layout.Chunks)
	for slot, chunk := range r.layout.Order() {
		list[chunk] = tensor.Select(c, chunks, 0, slot)
	}
	return tensor.Concat(c, d, list...)
}

// gather gathers what each chunk has, of this rank and all others, and joins it along dim d.
func (r *round) gather(c *tensor.Ctx, own []*tensor.Tensor, d int, what string) (*tensor.Tensor, error) {
	mine := tensor.Stack(c, 0, own...)
	all := mine
	if g := r.cfg.Group; g != nil && g.Size() > 1 {
		all = tensor.Empty(c, mine.DType(), append([]int{r.layout.Chunks}, mine.Shape()[1:]...)...)
		call := g.AllGather(comm.OfTensor(c, all), comm.OfTensor(c, mine), comm.Label(what))
		if err := ended(call); err != nil {
			return nil, err
		}
	}
	return r.join(c, all, d), nil
}

// masks gathers the masks of the chunks' keys, int32; nil if there are none.
func (r *round) masks(c *tensor.Ctx, parts []*part) (*tensor.Tensor, error) {
	if parts[0].opt.Mask == nil {
		return nil, nil
	}
	var own []*tensor.Tensor
	for _, p := range parts {
		own = append(own, tensor.Cast(c, p.opt.Mask, tensor.Int32))
	}
	return r.gather(c, own, 3, "attention mask")
}

// visibleTo is the mask of n keys for queries whose own mask is own, [B,H or 1,1,L]: keys has those of the keys, which
// are 0 where a key is hidden. Numbers of segments (nn.SegmentMask) must be the same.
func visibleTo(c *tensor.Ctx, own, keys *tensor.Tensor, n int) *tensor.Tensor {
	keys = tensor.Slice(c, keys, 3, 0, n)
	seen := tensor.Cast(c, keys, tensor.Bool)
	if own.DType() == tensor.Bool {
		return seen
	}
	return tensor.And(c, seen, tensor.Eq(c, tensor.Transpose(c, own, 2, 3), keys))
}

// tally is the sum of the gradients that chunks have of keys, in the tree of sumTree, as they come: as many tensors at
// a time as the tree has levels, and none for every other chunk.
type tally struct {
	r      *round
	c      *tensor.Ctx
	levels []*tensor.Tensor // sums of 1, 2, 4, … chunks whose partners are to come; nil: none
}

func (r *round) newTally(c *tensor.Ctx) *tally { return &tally{r: r, c: c} }

// add adds the gradient g of a chunk, of the first keys [B,H,n,D], and frees it.
func (s *tally) add(g *tensor.Tensor) {
	level, x := 0, (*tensor.Tensor)(nil)
	if len(s.levels) > 0 && s.levels[0] != nil {
		x, s.levels[0], level = s.levels[0], nil, 1
	} else {
		x = s.r.zeros(s.c, g)
	}
	s.r.spread(s.c, x, g)
	g.Free()
	for ; level < len(s.levels) && s.levels[level] != nil; level++ {
		tensor.AddInto(s.c, s.levels[level], x)
		x.Free()
		x, s.levels[level] = s.levels[level], nil
	}
	if level == len(s.levels) {
		s.levels = append(s.levels, nil)
	}
	s.levels[level] = x
}

// sum is that of a power of two of chunks: [S,B,H,L,D] in float32 or wider, by the places of Layout.Order.
func (s *tally) sum() *tensor.Tensor { return s.levels[len(s.levels)-1] }

// zeros are for the gradients of the keys of all chunks.
func (r *round) zeros(c *tensor.Ctx, g *tensor.Tensor) *tensor.Tensor {
	dtype := g.DType()
	if dtype.IsHalf() {
		dtype = tensor.Float32
	}
	return tensor.Zeros(c, dtype, r.layout.Chunks, g.Size(0), g.Size(1), r.layout.Length(r.tokens), g.Size(3))
}

// spread adds the gradient g of the first keys to those of the keys of all chunks. That has no −0 which would depend on
// the ranks: the first gradient is added to 0.
func (r *round) spread(c *tensor.Ctx, all, g *tensor.Tensor) {
	l := r.layout
	n, length := g.Size(2), l.Length(r.tokens)
	for slot, chunk := range l.Order() {
		lo, hi := chunk*length, min((chunk+1)*length, n)
		if lo >= hi {
			continue
		}
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			into := tensor.Slice(c, tensor.Select(c, all, 0, slot), 2, 0, hi-lo)
			tensor.AddInto(c, into, tensor.Cast(c, tensor.Slice(c, g, 2, lo, hi), all.DType()))
			return nil
		})
	}
}
