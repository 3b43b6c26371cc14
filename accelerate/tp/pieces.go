// SPDX-License-Identifier: Apache-2.0

package tp

import (
	"fmt"
	"math/bits"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// pieces runs a module that every rank has whole, such as a norm, on some of the rows of its input, which are along the
// last dim but one: tokens, or the heads of a rank. The gradients of its parameters are sums over rows: one sum for
// each part, and these are added in the tree of all ranks.
type pieces struct {
	across
	own    int             // parts of this rank
	ranks  int             // that share the module
	tokens bool            // the input is whole, and this rank computes its tokens
	names  map[string]bool // of the module's parameters
}

// runs are those of the parts of an input of n rows: where they begin, and how many rows each has.
func (p *pieces) runs(c *nn.Ctx, n int) []tensor.Range {
	list := make([]tensor.Range, p.own)
	length, first := n/p.own, 0
	switch {
	case p.tokens:
		parts := p.own * p.ranks
		length = (n + parts - 1) / parts
		first = p.rank() * p.own
	case n%p.own != 0:
		panic(&tensor.Error{Op: "tp.Parts", Where: c.Path(), Msg: fmt.Sprintf("%s: %d heads of this rank: want a "+
			"multiple of %d, its parts of the gradients", p.path, n, p.own)})
	}
	for i := range list {
		list[i] = tensor.Range{Start: min((first+i)*length, n), Stop: min((first+i+1)*length, n)}
	}
	return list
}

func (p *pieces) rank() int {
	if p.group == nil {
		return 0
	}
	return p.group.Rank()
}

// around is nn.Hooks.Around.
func (p *pieces) around(c *nn.Ctx, run nn.RunFunc, in []*tensor.Tensor) []*tensor.Tensor {
	x := in[0]
	if x.Dim() < 2 || len(in) > 1 || !p.tokens && x.Dim() < 3 {
		panic(&tensor.Error{Op: "tp.Parts", Where: c.Path(), Msg: fmt.Sprintf("%s: %d inputs, the first of shape %v: "+
			"want one, of rows along its last dim but one", p.path, len(in), x.Shape())})
	}
	rows := x.Dim() - 2
	ranges, n := p.runs(c, x.Size(rows)), x.Size(rows)
	start := 0
	if p.tokens && p.group != nil {
		start = ranges[0].Start
		x = p.split(n).own(c, x)
	}
	if !p.tokens { // an op cuts no heads of a rank's, unless their tokens lie in one dim with them
		shape := x.Shape()
		x = tensor.Reshape(c.Ctx, tensor.Flatten(c.Ctx, x, 0, rows), shape...)
	}
	weights := map[string][]*tensor.Tensor{}
	var outs []*tensor.Tensor
	for i, r := range ranges {
		part := c.WithParam(func(c *nn.Ctx, name string, t *tensor.Tensor) *tensor.Tensor {
			if !p.names[name] {
				return t
			}
			if weights[name] == nil {
				weights[name] = p.shared(c, t)
			}
			return weights[name][i]
		})
		outs = append(outs, run(part, []*tensor.Tensor{tensor.Slice(c.Ctx, x, rows, r.Start-start, r.Stop-start)})...)
	}
	y := tensor.Concat(c.Ctx, rows, outs...)
	if p.tokens && p.group != nil {
		y = p.split(n).whole(c, y)
	}
	return []*tensor.Tensor{y}
}

// shared is a parameter for each part. Its gradient is the sum of theirs.
func (p *pieces) shared(c *nn.Ctx, t *tensor.Tensor) []*tensor.Tensor {
	return tensor.Custom(c.Ctx, tensor.CustomOp{
		Name: "tp.parts",
		Forward: func(_ *tensor.Ctx, in []*tensor.Tensor) (out, saved []*tensor.Tensor) {
			for range p.own {
				out = append(out, in[0])
			}
			return out, nil
		},
		Backward: func(c *tensor.Ctx, _, grads []*tensor.Tensor, need []bool) []*tensor.Tensor {
			if !need[0] {
				return []*tensor.Tensor{nil}
			}
			for i, g := range grads {
				if g == nil {
					grads[i] = tensor.ZerosLike(c, t)
				}
			}
			sum := tensor.Clone(c, treeSum(c, grads))
			if p.group != nil {
				p.sum(c, sum)()
			}
			return []*tensor.Tensor{sum}
		},
	}, t)
}

// treeSum adds neighbours at distance 1, 2, 4, …, as the ranks' sums are added.
func treeSum(c *tensor.Ctx, ts []*tensor.Tensor) *tensor.Tensor {
	if len(ts) == 1 {
		return ts[0]
	}
	left := 1 << (bits.Len(uint(len(ts)-1)) - 1)
	return tensor.Add(c, treeSum(c, ts[:left]), treeSum(c, ts[left:]))
}

// tokenSplit divides n tokens among ranks, along the last dim but one.
type tokenSplit struct {
	*pieces
	n int
}

func (p *pieces) split(n int) tokenSplit { return tokenSplit{p, n} }

// own are this rank's tokens of x; the gradients of all ranks' are put together.
func (s tokenSplit) own(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return s.op("tp.split", s.cut, s.gather)(c, []*tensor.Tensor{x})[0]
}

// whole has the tokens of all ranks; each keeps its part of the gradient.
func (s tokenSplit) whole(c *nn.Ctx, y *tensor.Tensor) *tensor.Tensor {
	return s.op("tp.gather", s.gather, s.cut)(c, []*tensor.Tensor{y})[0]
}

func (s tokenSplit) most() int {
	parts := s.pieces.own * s.ranks
	return s.pieces.own * ((s.n + parts - 1) / parts)
}

func (s tokenSplit) cut(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
	start := min(s.rank()*s.most(), s.n)
	return tensor.Contiguous(c, tensor.Slice(c, x, x.Dim()-2, start, min(start+s.most(), s.n)))
}

func (s tokenSplit) gather(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
	rows := x.Dim() - 2
	x = tensor.Transpose(c, x, 0, rows) // tokens first
	shape := x.Shape()
	width := 1
	for _, n := range shape[1:] {
		width *= n
	}
	flat := tensor.Reshape(c, tensor.Contiguous(c, x), shape[0], width)
	if short := s.most() - shape[0]; short > 0 { // calls have the same length on all ranks
		flat = tensor.Concat(c, 0, flat, tensor.Zeros(c, flat.DType(), short, width))
	}
	all := tensor.Slice(c, s.stacked(c, flat), 0, 0, s.n)
	all = tensor.Reshape(c, all, append([]int{s.n}, shape[1:]...)...)
	return tensor.Contiguous(c, tensor.Transpose(c, all, 0, rows))
}
