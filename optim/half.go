// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// HalfUpdate says how parameters of bfloat16 and float16 take updates that are smaller than their precision. Parameters
// of other dtypes are not affected.
type HalfUpdate string

// The choices.
const (
	// HalfPlain rounds to the nearest number: an update below half the distance of two numbers is lost. It is what
	// PyTorch does.
	HalfPlain HalfUpdate = "plain"
	// HalfKahan keeps what rounding takes away in a second tensor of the parameter's dtype, the state
	// "kahan_compensation", and adds it in the next step (Kahan 1965; Zamirai et al. 2020, "Revisiting BFloat16
	// Training"). It is the default.
	HalfKahan HalfUpdate = "kahan"
	// HalfStochastic rounds up or down by chance, the nearer number more often, so that the mean of many updates is
	// right (Gupta et al. 2015). It needs no memory. The random bits follow from seed, parameter, step and element.
	HalfStochastic HalfUpdate = "stochastic"
)

// HalfUpdates lists the choices.
func HalfUpdates() []HalfUpdate { return []HalfUpdate{HalfPlain, HalfKahan, HalfStochastic} }

// compensation is the name of a Kahan update's state.
const compensation = "kahan_compensation"

// SetHalfUpdate chooses how parameters of half types are updated. seed is that of the random bits of HalfStochastic. It
// panics if the optimizer has taken a step or was asked for its state.
func (o *Optimizer) SetHalfUpdate(h HalfUpdate, seed uint64) {
	if !slices.Contains(HalfUpdates(), h) {
		panic(&tensor.Error{Op: "optim.SetHalfUpdate",
			Msg: fmt.Sprintf("half update %q: want one of %q", h, HalfUpdates())})
	}
	for _, s := range o.slots {
		if s.Tensors != nil {
			panic(&tensor.Error{Op: "optim.SetHalfUpdate",
				Msg: "the optimizer has its state already: want the call before its first step"})
		}
	}
	o.half, o.seed = h, seed
}

// compensates reports whether p has a compensation.
func (o *Optimizer) compensates(p tensor.Named) bool {
	return o.half == HalfKahan && p.DType().IsHalf()
}

// updateHalf changes a parameter of a half type. The chain works on a float32 copy, so that decay and update are
// rounded once, together.
func (o *Optimizer) updateHalf(c *tensor.Ctx, w *work) {
	p, s, grad := w.p, w.s, w.grad
	u := halfUpdate{o: o, p: p, s: s, comp: s.Tensors[compensation]}
	whole := o.fusedUpdate(w, p.Tensor, grad, s.chain)
	if o.fused == nil || !p.IsContiguous() || !grad.IsContiguous() ||
		o.fused.Takes != nil && !o.fused.Takes(c, &whole) {
		u.run(c, p.Tensor, u.comp, 0, func(c *tensor.Ctx, wide *tensor.Tensor) {
			o.apply(c, w, tensor.Named{Name: p.Name, Tensor: wide})
		})
		return
	}
	n := p.Numel()
	for lo := 0; lo < n; lo += piece {
		hi := min(lo+piece, n)
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			part := whole.part(c, lo, hi)
			var comp *tensor.Tensor
			if u.comp != nil {
				comp = flatPart(c, u.comp, lo, hi)
			}
			u.run(c, part.P, comp, lo, func(c *tensor.Ctx, wide *tensor.Tensor) {
				part.P = wide
				o.fused.Run(c, []FusedUpdate{part})
			})
			return nil
		})
	}
}

// halfUpdate is one update of a parameter of a half type.
type halfUpdate struct {
	o    *Optimizer
	p    tensor.Named
	s    *Slot
	comp *tensor.Tensor // nil: none
}

// run changes a part of the parameter, whose first element is number first: change works on a float32 copy.
func (u *halfUpdate) run(c *tensor.Ctx, part, comp *tensor.Tensor, first int,
	change func(c *tensor.Ctx, wide *tensor.Tensor)) {
	wide := tensor.Cast(c, part, tensor.Float32)
	if comp != nil {
		tensor.AddInto(c, wide, tensor.Cast(c, comp, tensor.Float32))
	}
	change(c, wide)
	if u.o.half == HalfStochastic {
		wide = u.rounded(c, wide, first)
	}
	tensor.CopyInto(c, part, wide)
	if comp != nil {
		tensor.AxpbyInto(c, wide, 1, wide, -1, tensor.Cast(c, part, tensor.Float32))
		tensor.CopyInto(c, comp, wide)
	}
}

// rounded is x rounded by chance.
func (u *halfUpdate) rounded(c *tensor.Ctx, x *tensor.Tensor, first int) *tensor.Tensor {
	y := tensor.Zeros(c, u.p.DType(), x.Shape()...)
	tensor.StochasticRoundInto(c.WithRandom(u.o.seed, u.s.Step).Sub(u.p.Name), y, x, first)
	return y
}
