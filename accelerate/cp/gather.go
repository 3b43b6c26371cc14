// SPDX-License-Identifier: Apache-2.0

package cp

import (
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Gather gathers the keys and values of all chunks on each rank, as Llama 3 was trained (Dubey et al. 2024, section
// 3.3.2). A rank holds them for one layer at a time: it gathers them again for the backward pass. Their gradients are
// summed over the chunks of all ranks, in float32 for half types.
//
// A rank begins to gather the keys of a chunk when that chunk comes to its attention, while it computes others.
var Gather = &Method{name: "gather", arrive: gatherArrive, forward: gatherForward, backward: gatherBackward}

// whole is the keys and values of all chunks.
type whole struct{ k, v *tensor.Tensor }

// coming is the keys and values of one chunk of each rank on their way: [ranks,B,H,L,D].
type coming struct {
	k, v  *tensor.Tensor
	calls []*comm.Handle
	close func(...*tensor.Tensor) // frees them
}

// end waits for the calls and frees what they have brought. It does so once.
func (o *coming) end() {
	if o != nil && o.close != nil {
		_ = ended(o.calls...) // for those who care, wholes has waited already
		o.close()
		o.close = nil
	}
}

// gatherArrive begins to gather the keys and values of a chunk and of those in its place on other ranks.
func gatherArrive(r *round, p *part) {
	g := r.cfg.Group
	if g == nil || g.Size() == 1 || p.backward && p.whole == nil {
		return
	}
	c, end := r.root.NoGrad().OpenScope()
	o := &coming{close: end}
	p.coming = o
	begin := func(t *tensor.Tensor, what string) *tensor.Tensor {
		all := tensor.Empty(c, t.DType(), append([]int{g.Size()}, t.Shape()...)...)
		mine := comm.OfTensor(c, tensor.Contiguous(c, t))
		o.calls = append(o.calls, g.AllGather(comm.OfTensor(c, all), mine, comm.Label(what)))
		return all
	}
	o.k, o.v = begin(p.k, "keys"), begin(p.v, "values")
}

// gatherWhole waits for them.
func (r *round) gatherWhole(c *tensor.Ctx, parts []*part) (w whole, err error) {
	keys, values := make([]*tensor.Tensor, r.layout.Chunks), make([]*tensor.Tensor, r.layout.Chunks)
	for slot, chunk := range r.layout.Order() {
		p := parts[slot%len(parts)]
		if p.coming == nil { // there are no other ranks
			keys[chunk], values[chunk] = p.k, p.v
			continue
		}
		if err := ended(p.coming.calls...); err != nil {
			return w, err
		}
		keys[chunk] = tensor.Select(c, p.coming.k, 0, slot/len(parts))
		values[chunk] = tensor.Select(c, p.coming.v, 0, slot/len(parts))
	}
	w = whole{tensor.Concat(c, 2, keys...), tensor.Concat(c, 2, values...)}
	for _, p := range parts {
		p.coming.end()
	}
	return w, nil
}

func gatherForward(r *round, parts []*part) (err error) {
	r.root.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		var w whole
		if w, err = r.gatherWhole(c, parts); err != nil {
			return nil
		}
		var mask *tensor.Tensor
		if mask, err = r.masks(c, parts); err != nil {
			return nil
		}
		for _, p := range parts {
			g := r.attend(p.c, p.chunk, p.q, w.k, w.v, mask, p.opt)
			p.graph, p.y, p.saved = []*graph{g}, g.out, []*tensor.Tensor{p.k, p.v}
		}
		if parts[0].c.Grad() && !parts[0].again { // else the backward pass comes next, or never
			for _, t := range []*tensor.Tensor{w.k, w.v} {
				c.Keep(t).Unload()
			}
			for _, p := range parts {
				p.whole = &w
			}
		}
		return nil
	})
	return err
}

func gatherBackward(r *round, parts []*part) (err error) {
	r.root.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		if old := parts[0].whole; old != nil {
			var w whole
			if w, err = r.gatherWhole(c, parts); err != nil {
				return nil
			}
			old.k.Reload(c.Keep(w.k))
			old.v.Reload(c.Keep(w.v))
			defer old.k.Free()
			defer old.v.Free()
		}
		dk, dv := r.newTally(c), r.newTally(c)
		for _, p := range parts {
			grads := p.graph[0].backward(p.c, p.dy)
			p.dq = grads[0]
			dk.add(grads[1])
			dv.add(grads[2])
		}
		err = r.scatter(c, dk.sum(), "gradients of keys", func(i int, g *tensor.Tensor) {
			parts[i].dk = tensor.Cast(parts[i].c, tensor.Clone(parts[i].c, g), parts[i].k.DType())
		})
		if err == nil {
			err = r.scatter(c, dv.sum(), "gradients of values", func(i int, g *tensor.Tensor) {
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
		if err := ended(call); err != nil {
			return err
		}
	}
	for i := range r.layout.PerRank() {
		give(i, tensor.Select(c, mine, 0, i))
	}
	return nil
}
