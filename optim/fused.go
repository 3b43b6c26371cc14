// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Fused is one pass over parameters in place of a chain of transforms and of the step after it, with the same bits.
// A transform of the chain declares it in its Traits.
type Fused struct {
	// Chain is the chain that the pass stands for, and its oracle. An optimizer of an equal chain takes the pass where
	// it can, the transforms of any other run one by one. Each transform keeps no state, or tensors like the parameter.
	Chain []Transform
	// Numbers are what the pass reads of a group's rates and of a step count, always as many. One copy brings those of
	// all parameters to the device, where Run finds them in FusedUpdate.Numbers. nil: there are none.
	Numbers func(g *Group, step int64) []float64
	// Takes reports whether the pass can make a step of a parameter, whose chain runs otherwise; nil: of any.
	Takes func(c *tensor.Ctx, u *FusedUpdate) bool
	// Run makes a step of parameters.
	Run func(c *tensor.Ctx, updates []FusedUpdate)
}

// FusedUpdate is the part of one parameter in a fused pass, or of a piece of it. The tensors are contiguous, of one
// shape and dtype, float32 or float64.
type FusedUpdate struct {
	P, Grad *tensor.Tensor
	State   []*tensor.Tensor // in the order in which the chain describes it
	Group   *Group
	Step    int64
	Factor  float64 // multiplies the gradient; 1: nothing to do
	// Scale is Factor on the device, one element of float64, and Numbers are Fused.Numbers there. Both are nil where
	// the host knows them; else Factor is 1.
	Scale, Numbers *tensor.Tensor

	opt *Optimizer
}

// Scaled is the gradient times the factor: Grad itself if there is none.
func (u *FusedUpdate) Scaled(c *tensor.Ctx) *tensor.Tensor { return u.opt.scaled(c, u.Grad) }

// fusedPass is the pass that a transform of a chain has for it; nil: none.
func fusedPass(chain []Transform) *Fused {
	for _, t := range chain {
		if f := t.Traits().Fused; f != nil && slices.Equal(f.Chain, chain) {
			return f
		}
	}
	return nil
}

// fusible is the part of w in the pass with p in place of its parameter, if the pass can take it: the dtype computes in
// itself, the layouts are plain.
func (o *Optimizer) fusible(c *tensor.Ctx, w *work, p *tensor.Tensor) (u FusedUpdate, ok bool) {
	dt := p.DType()
	if o.fused == nil || dt != tensor.Float32 && dt != tensor.Float64 || w.grad.DType() != dt ||
		!p.IsContiguous() || !w.grad.IsContiguous() {
		return u, false
	}
	u = o.fusedUpdate(w, p, w.grad, w.s.chain)
	return u, o.fused.Takes == nil || o.fused.Takes(c, &u)
}

// fusedUpdate is the part of w in the pass.
func (o *Optimizer) fusedUpdate(w *work, p, grad *tensor.Tensor, state []*tensor.Tensor) FusedUpdate {
	u := FusedUpdate{P: p, Grad: grad, State: state, Group: w.g, Step: w.s.Step, Factor: o.factor, opt: o}
	if o.by != nil {
		u.Scale, u.Numbers = o.by.scale, w.row
	}
	return u
}

// piece is how many elements are changed at a time where copies are made of them, which then stay in the cache.
const piece = 1 << 17

// part is the update of the elements from lo to hi.
func (u *FusedUpdate) part(c *tensor.Ctx, lo, hi int) FusedUpdate {
	v := *u
	v.P, v.Grad, v.State = flatPart(c, u.P, lo, hi), flatPart(c, u.Grad, lo, hi), make([]*tensor.Tensor, len(u.State))
	for i, t := range u.State {
		if v.State[i] = t; t.Numel() == u.P.Numel() {
			v.State[i] = flatPart(c, t, lo, hi)
		} else {
			v.State[i] = blocksPart(c, t, lo, hi)
		}
	}
	return v
}

func flatPart(c *tensor.Ctx, t *tensor.Tensor, lo, hi int) *tensor.Tensor {
	return tensor.Slice(c, tensor.Reshape(c, t, t.Numel()), 0, lo, hi)
}

// descent makes what is subtracted from a parameter of a gradient and the state.
type descent func(c *tensor.Ctx, u *FusedUpdate, g *tensor.Tensor) *tensor.Tensor

// descend is the pass of gradient descent with L2 decay, p ← p − lr·b, where b is the gradient, or what add makes of it
// and the state. Without decay and factor it reads the gradient where it is.
func descend(chain []Transform, add descent) *Fused {
	return &Fused{Chain: chain, Run: func(c *tensor.Ctx, updates []FusedUpdate) {
		for i := range updates {
			u, n := &updates[i], updates[i].P.Numel()
			copies := u.Group.WeightDecay != 0 || u.opt.scales()
			if !copies || n <= piece || !c.Device().HostMemory() {
				u.descend(c, add)
				continue
			}
			for lo := 0; lo < n; lo += piece {
				c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
					part := u.part(c, lo, min(lo+piece, n))
					part.descend(c, add)
					return nil
				})
			}
		}
	}}
}

func (u *FusedUpdate) descend(c *tensor.Ctx, add descent) {
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		g, p := u.Scaled(c), u.P
		if decay := u.Group.WeightDecay; decay != 0 {
			if g == u.Grad {
				g = tensor.Clone(c, g)
			}
			tensor.AxpbyInto(c, g, 1, g, decay, p)
		}
		if add != nil {
			g = add(c, u, g)
		}
		tensor.AxpbyInto(c, p, 1, p, -u.Group.LR, g)
		return nil
	})
}
