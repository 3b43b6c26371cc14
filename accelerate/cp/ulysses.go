// SPDX-License-Identifier: Apache-2.0

package cp

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Ulysses exchanges tokens for heads (Jacobs et al. 2023): each rank computes the attention of all tokens for some of
// the heads, and sends the results back. The number of ranks must divide that of key heads. Dropout draws what it draws
// for Gather; on several ranks only a CPU does, see tensor.AttentionOptions.FirstHead.
var Ulysses = &Method{name: "ulysses", forward: ulyssesForward, backward: ulyssesBackward, divide: divideHeads}

func divideHeads(keyHeads, ranks int) error {
	if keyHeads%ranks == 0 {
		return nil
	}
	fit := []string{"1"}
	for n := 2; keyHeads%n == 0; n *= 2 {
		fit = append(fit, strconv.Itoa(n))
	}
	return fmt.Errorf("%s on %d ranks: want a cp_size (sp_size) among %s, powers of two that divide the key heads, or "+
		"cp_strategy gather", quantity.Of(keyHeads, "key head"), ranks, strings.Join(fit, ", "))
}

func ulyssesForward(r *round, parts []*part) (err error) {
	root := parts[0].c // the graphs are the first part's: all chunks' backward passes end in the same scope
	r.root.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		var in [3]*tensor.Tensor // by chunks: [S,B,H/c,L,D]
		for i, of := range []func(*part) *tensor.Tensor{
			func(p *part) *tensor.Tensor { return p.q },
			func(p *part) *tensor.Tensor { return p.k },
			func(p *part) *tensor.Tensor { return p.v },
		} {
			if in[i], err = r.toHeads(c, parts, of, "heads"); err != nil {
				return nil
			}
		}
		var mask *tensor.Tensor
		if mask, err = r.masks(c, parts); err != nil {
			return nil
		}
		if heads := in[0].Size(2); mask != nil && mask.Size(1) > 1 {
			mask = tensor.Slice(c, mask, 1, r.layout.Rank*heads, (r.layout.Rank+1)*heads)
		}
		k, v := r.join(c, in[1], 2), r.join(c, in[2], 2)
		var states []tensor.RandomState
		if states, err = r.randomStates(parts); err != nil {
			return nil
		}
		opt := parts[0].opt
		opt.FirstHead += r.layout.Rank * in[0].Size(2)
		graphs, out := []*graph(nil), []*tensor.Tensor(nil)
		for slot, chunk := range r.layout.Order() {
			g := r.attend(root.WithRandomState(states[slot]), chunk, tensor.Select(c, in[0], 0, slot), k, v, mask, opt)
			graphs, out = append(graphs, g), append(out, g.out)
		}
		parts[0].graph = graphs
		err = r.toTokens(c.NoGrad(), tensor.Stack(c, 0, out...), "outputs", func(i int, y *tensor.Tensor) {
			parts[i].y = tensor.Clone(parts[i].c.NoGrad(), y)
		})
		return nil
	})
	return err
}

// randomStates are those of all chunks, in the order of Layout.Order, where dropout draws; the ranks tell each other.
func (r *round) randomStates(parts []*part) ([]tensor.RandomState, error) {
	states := make([]tensor.RandomState, r.layout.Chunks)
	if parts[0].opt.Dropout == 0 {
		return states, nil
	}
	var mine []int64
	for _, p := range parts {
		s := p.c.RandomState()
		mine = append(mine, int64(s.Key), int64(s.Draws))
		p.c.SkipDraws(1) // of the attention, which another context computes
	}
	all := mine
	if g := r.cfg.Group; g != nil && g.Size() > 1 {
		all = make([]int64, 2*len(states))
		if err := ended(g.AllGather(comm.Of(all), comm.Of(mine), comm.Label("random states"))); err != nil {
			return nil, err
		}
	}
	for i := range states {
		states[i] = tensor.RandomState{Key: uint64(all[2*i]), Draws: uint64(all[2*i+1])}
	}
	return states, nil
}

func ulyssesBackward(r *round, parts []*part) (err error) {
	r.root.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		var dy *tensor.Tensor
		dy, err = r.toHeads(c, parts, func(p *part) *tensor.Tensor { return p.dy }, "gradients of outputs")
		if err != nil {
			return nil
		}
		var dq []*tensor.Tensor
		dk, dv := r.newTally(c), r.newTally(c)
		for slot, g := range parts[0].graph {
			grads := g.backward(c, tensor.Select(c, dy, 0, slot))
			dq = append(dq, grads[0])
			dk.add(grads[1])
			dv.add(grads[2])
		}
		for _, x := range []struct {
			chunks *tensor.Tensor
			give   func(p *part, g *tensor.Tensor)
		}{
			{tensor.Stack(c, 0, dq...), func(p *part, g *tensor.Tensor) { p.dq = g }},
			{tensor.Cast(c, dk.sum(), parts[0].k.DType()), func(p *part, g *tensor.Tensor) { p.dk = g }},
			{tensor.Cast(c, dv.sum(), parts[0].v.DType()), func(p *part, g *tensor.Tensor) { p.dv = g }},
		} {
			err = r.toTokens(c, x.chunks, "gradients of heads", func(i int, g *tensor.Tensor) {
				x.give(parts[i], tensor.Clone(parts[i].c, g))
			})
			if err != nil {
				return nil
			}
		}
		return nil
	})
	return err
}

// toHeads sends each rank its share of the heads of this rank's chunks, and returns this rank's share of the heads of
// all chunks: [S,B,H/c,L,D].
func (r *round) toHeads(c *tensor.Ctx, parts []*part, of func(*part) *tensor.Tensor, what string) (*tensor.Tensor,
	error) {
	var out []*tensor.Tensor
	for to := range r.layout.Size {
		for _, p := range parts {
			x := of(p)
			n := x.Size(1) / r.layout.Size
			out = append(out, tensor.Slice(c, x, 1, to*n, (to+1)*n))
		}
	}
	return r.allToAll(c, tensor.Stack(c, 0, out...), what)
}

// toTokens is the inverse of toHeads. What give gets lives as long as c's scope.
func (r *round) toTokens(c *tensor.Ctx, x *tensor.Tensor, what string, give func(i int, x *tensor.Tensor)) error {
	x, err := r.allToAll(c, x, what)
	if err != nil {
		return err
	}
	n := r.layout.PerRank()
	for i := range n {
		heads := make([]*tensor.Tensor, r.layout.Size)
		for from := range heads {
			heads[from] = tensor.Select(c, x, 0, from*n+i)
		}
		give(i, tensor.Concat(c, 1, heads...))
	}
	return nil
}

// allToAll sends the k-th of c equal parts of x to rank k, and returns what the ranks sent, in their order.
func (r *round) allToAll(c *tensor.Ctx, x *tensor.Tensor, what string) (*tensor.Tensor, error) {
	g := r.cfg.Group
	if g == nil || g.Size() == 1 {
		return x, nil
	}
	y := tensor.Empty(c, x.DType(), x.Shape()...)
	return y, ended(g.AllToAll(comm.OfTensor(c, y), comm.OfTensor(c, x), comm.Label(what)))
}
