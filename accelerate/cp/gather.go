// SPDX-License-Identifier: Apache-2.0

package cp

import (
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Gather gathers the keys and values of all chunks on each rank, as Llama 3 was trained (Dubey et al. 2024, section
// 3.3.2). Their gradients are summed over the chunks of all ranks, in float32 for half types.
var Gather = &Method{name: "gather", forward: gatherForward, backward: gatherBackward}

func gatherForward(r *round, parts []*part) (err error) {
	r.root.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor { // graphs keep what they save
		var keys, values []*tensor.Tensor
		for _, p := range parts {
			keys, values = append(keys, p.k), append(values, p.v)
		}
		var k, v, mask *tensor.Tensor
		if k, err = r.gather(c, keys, 2, "keys"); err != nil {
			return nil
		}
		if v, err = r.gather(c, values, 2, "values"); err != nil {
			return nil
		}
		if mask, err = r.masks(c, parts); err != nil {
			return nil
		}
		for _, p := range parts {
			g := r.attend(p.c, p.chunk, p.q, k, v, mask, p.opt)
			p.graph, p.y = []*graph{g}, g.out
		}
		return nil
	})
	return err
}

func gatherBackward(r *round, parts []*part) (err error) {
	r.root.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		var dk, dv []*tensor.Tensor
		for _, p := range parts {
			grads := p.graph[0].backward(p.c, p.dy)
			p.dq = grads[0]
			dk, dv = append(dk, r.spread(c, grads[1])), append(dv, r.spread(c, grads[2]))
		}
		err = r.scatter(c, sumTree(c, dk), "gradients of keys", func(i int, g *tensor.Tensor) {
			parts[i].dk = tensor.Cast(parts[i].c, tensor.Clone(parts[i].c, g), parts[i].k.DType())
		})
		if err == nil {
			err = r.scatter(c, sumTree(c, dv), "gradients of values", func(i int, g *tensor.Tensor) {
				parts[i].dv = tensor.Cast(parts[i].c, tensor.Clone(parts[i].c, g), parts[i].v.DType())
			})
		}
		return nil
	})
	return err
}

// scatter adds all, [S,...] by the places of chunks, over the ranks, and gives each of this rank's chunks its part. The
// part lives as long as c's scope.
func (r *round) scatter(c *tensor.Ctx, all *tensor.Tensor, what string, give func(i int, g *tensor.Tensor)) error {
	mine := all
	if g := r.cfg.Group; g != nil && g.Size() > 1 {
		mine = tensor.Empty(c, all.DType(), append([]int{r.layout.PerRank()}, all.Shape()[1:]...)...)
		call := g.ReduceScatter(comm.OfTensor(c, mine), comm.OfTensor(c, all), comm.Sum, comm.Label(what))
		if err := call.Wait(r.ctx); err != nil {
			return err
		}
	}
	for i := range r.layout.PerRank() {
		give(i, tensor.Select(c, mine, 0, i))
	}
	return nil
}
