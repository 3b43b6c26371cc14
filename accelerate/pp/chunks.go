// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"context"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/tensor"
)

// chunks is how many chunks a micro-batch has, on all ranks: 1 if its sequences are whole.
func (p *Pipeline) chunks() int {
	if p.cfg.Tokens == nil {
		return 1
	}
	return p.cfg.Tokens.Layout().Chunks
}

// ownChunks is how many of them this rank has.
func (p *Pipeline) ownChunks() int {
	if p.cfg.Tokens == nil {
		return 1
	}
	return p.cfg.Tokens.Layout().PerRank()
}

// shares reports whether the strategy adds up what ranks along cp have of gradients.
func (p *Pipeline) shares(t *trained) bool {
	return p.cfg.Parted && (p.cfg.Strategy == nil || t.Shards() != nil)
}

// chunkSums are the weight gradients of a stage for a micro-batch, which each chunk adds its own summand to: see
// cp.Gradients.
type chunkSums struct {
	*cp.Gradients
	root  *tensor.Ctx
	stage *stage
	taken bool               // the strategy gets this rank's sums as they come
	heads [][]*tensor.Tensor // the gradients of tied parameters, by tie and chunk: lookups are added to them first
}

func (r *runner) chunkSums(s *stage) *chunkSums {
	u := &chunkSums{root: r.root, stage: s, taken: r.shares(s.trained), heads: make([][]*tensor.Tensor, len(s.ties))}
	for i := range u.heads {
		u.heads[i] = make([]*tensor.Tensor, r.ownChunks())
	}
	var take func(i int, sum *tensor.Tensor)
	if u.taken {
		take = u.take
	}
	u.Gradients = r.cfg.Tokens.Gradients(r.root, s.params, take)
	return u
}

// take gives the strategy a sum.
func (u *chunkSums) take(i int, sum *tensor.Tensor) {
	switch {
	case sum != nil:
		tensor.Backward(u.root, []*tensor.Tensor{u.stage.params[i].Tensor}, []*tensor.Tensor{sum}, nil)
	case u.stage.sends:
		u.stage.Ready(i)
	}
}

// backward runs backward from roots of a chunk, and returns the gradients of inputs.
func (u *chunkSums) backward(c *tensor.Ctx, roots, grads, inputs []*tensor.Tensor, chunk int,
	options []tensor.BackwardOption) []*tensor.Tensor {
	wrt := slices.Clone(inputs)
	for _, t := range u.stage.ties {
		wrt = append(wrt, t.param.Tensor)
	}
	found := u.Backward(c, roots, grads, wrt, chunk, options...)
	for i, g := range found[len(inputs):] {
		u.heads[i][chunk] = g
	}
	return found[:len(inputs)]
}

// pop computes the gradients that wait in the store of a chunk.
func (u *chunkSums) pop(store *tensor.WeightGradStore, chunk int) {
	list := slices.Clone(u.stage.params)
	for _, t := range u.stage.ties {
		list = append(list, t.param)
	}
	homes, filled := make([]*tensor.Tensor, len(list)), make([]bool, len(list))
	for i, q := range list {
		filled[i] = q.Grad() != nil
		homes[i] = q.SwapGrad(nil, false)
	}
	sends := u.stage.sends
	u.stage.sends = false // until all chunks have them
	store.Pop(u.root)
	u.stage.sends = sends
	own := len(u.stage.params)
	came := make([]*tensor.Tensor, len(list))
	for i, q := range list {
		came[i] = q.Grad()
		q.SwapGrad(homes[i], filled[i])
	}
	for i, g := range came[:own] {
		u.Arrive(i, chunk, g)
	}
	for i, g := range came[own:] {
		u.heads[i][chunk] = g
	}
}

// deliver gives the strategy the sums over the chunks of all ranks, unless it adds them up by itself.
func (u *chunkSums) deliver(ctx context.Context) error {
	defer u.Free()
	if u.taken {
		return nil
	}
	sums, err := u.Sums(ctx)
	if err != nil {
		return err
	}
	var params, grads []*tensor.Tensor
	for i, sum := range sums {
		if sum != nil {
			params, grads = append(params, u.stage.params[i].Tensor), append(grads, sum)
		}
	}
	if len(params) > 0 {
		cp.Accumulate(u.root, params, grads)
	}
	return nil
}

// addChunks adds what each of this rank's chunks of a micro-batch has of a tie's gradient; nil: nothing.
func (r *runner) addChunks(t *tie, parts []*tensor.Tensor) error {
	if r.cfg.Tokens == nil {
		t.add(r.root, parts[0])
		return nil
	}
	g := r.cfg.Tokens.Gradients(r.root, []tensor.Named{t.param}, nil)
	defer g.Free()
	for i, part := range parts {
		g.Arrive(0, i, part)
	}
	sums, err := g.OwnSums(), error(nil)
	if !r.shares(t.trained) {
		sums, err = g.Sums(r.ctx)
	}
	if err != nil {
		return err
	}
	g.GiveUp(0)
	t.add(r.root, sums[0])
	return nil
}
