// SPDX-License-Identifier: Apache-2.0

package tensor

import "slices"

// Checkpoint runs f without keeping what its gradient needs, and runs it again during
// Backward (gradient checkpointing, Chen et al. 2016). params are the leaves that f uses
// in addition to its inputs; neither they nor the inputs may change in between. Random
// ops in f draw the same numbers both times.
func Checkpoint(c *Ctx, name string, f func(c *Ctx, in []*Tensor) []*Tensor, in, params []*Tensor) []*Tensor {
	again, drawn := *c, *c.draws // before f draws
	out := slices.Clone(c.NoGrad().Scope(func(c *Ctx) []*Tensor { return f(c, in) }))
	if !c.grad {
		return out
	}
	for i, t := range out {
		out[i] = t.alias()
	}
	ins := slices.Clone(in)
	for _, p := range params {
		if !slices.Contains(ins[len(in):], p) { // tied parameters count once
			ins = append(ins, p)
		}
	}
	saved := slices.Clone(ins)
	for i, p := range saved[len(in):] {
		saved[len(in)+i] = c.stand(p)
	}
	c.record(name, out, ins, saved, func(b *Back) {
		redo := again
		redo.grad, redo.scope, redo.draws = true, b.scope, new(uint64)
		*redo.draws = drawn
		r := newRun(&redo)
		r.delayed = b.node.run.delayed
		args, now, later := make([]*Tensor, len(in)), []int(nil), []int(nil)
		for i, t := range ins {
			if t == nil {
				continue
			}
			need := b.Need(i)
			switch {
			case i < len(in) && need:
				t = t.Boundary()
				args[i] = t
			case i < len(in):
				args[i] = t.alias()
			}
			switch {
			case need && b.delays(i):
				r.wrtDelayed, later = append(r.wrtDelayed, t), append(later, i)
			case need:
				r.wrt, now = append(r.wrt, t), append(now, i)
			}
		}
		var roots, grads []*Tensor
		for i, y := range f(&redo, args) {
			if b.Grad(i) != nil && y.takesPart() {
				roots, grads = append(roots, y), append(grads, b.Grad(i))
			}
		}
		if len(roots) == 0 {
			return
		}
		for j, g := range r.walk(roots, grads) {
			b.Set(now[j], g)
		}
		if len(later) > 0 {
			b.task.add(func(b *Back) {
				for j, g := range r.results(b.Ctx, r.wrtDelayed) {
					b.Set(later[j], g)
				}
			}, nil)
		}
	})
	return out
}
