// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
	"github.com/lockstep-ml/lockstep/tensor"
)

var defaultAdEMAMix = register("ademamix", AdEMAMix{})

// AdEMAMix is AdamW with a second, slower mean of gradients (Pagliardini et al. 2024, "The AdEMAMix Optimizer: Better,
// Faster, Older"), as bitsandbytes' AdEMAMix.
type AdEMAMix struct {
	Beta1 float64 `json:"adam_beta1"`
	Beta2 float64 `json:"adam_beta2"`
	Eps   float64 `json:"adam_epsilon"`
	Beta3 float64 `json:"beta3"` // of the slow mean
	Alpha float64 `json:"alpha"` // its weight
	// TAlpha and TBeta3 are the steps in which Alpha rises from 0 and Beta3 from Beta1; 0: they are constant.
	TAlpha int64 `json:"t_alpha"`
	TBeta3 int64 `json:"t_beta3"`
}

// DefaultAdEMAMix has the defaults of bitsandbytes' AdEMAMix.
func DefaultAdEMAMix() AdEMAMix { return defaultAdEMAMix }

// New makes the optimizer over groups.
func (o AdEMAMix) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	return New(c, "ademamix", groups, DecoupledDecay{}, ScaleByAdEMAMix(o))
}

// ScaleByAdEMAMix replaces the update by (m₁/(1−Beta1ᵗ) + α·m₂)/(√v/√(1−Beta2ᵗ) + Eps), with the means m₁ and m₂ of
// updates and v of their squares.
type ScaleByAdEMAMix AdEMAMix

// Traits promises all.
func (o ScaleByAdEMAMix) Traits() Traits {
	return Traits{Elementwise: true, OnDevice: true, host: o.host}
}

// State is the three means.
func (ScaleByAdEMAMix) State(p tensor.Named) []StateTensor {
	return append(Like(p, "exp_avg", "exp_avg_slow"), squares(p, "exp_avg_sq")...)
}

// Apply replaces the update.
func (o ScaleByAdEMAMix) Apply(c *tensor.Ctx, _ tensor.Named, _ *Group, s *Slot, u *tensor.Tensor) {
	fast, slow, v := s.Tensors["exp_avg"], s.Tensors["exp_avg_slow"], s.Tensors["exp_avg_sq"]
	t := float64(s.Step)
	alpha, beta3 := o.at(t)
	tensor.AxpbyInto(c, fast, o.Beta1, fast, 1-o.Beta1, u)
	tensor.AxpbyInto(c, slow, beta3, slow, 1-beta3, u)
	tensor.AxpbyInto(c, v, o.Beta2, v, 1-o.Beta2, tensor.Mul(c, u, u))
	tensor.AxpbyInto(c, u, 1/(1-math.Pow(o.Beta1, t)), fast, alpha, slow)
	root := tensor.Affine(c, tensor.Sqrt(c, v), 1/math.Sqrt(1-math.Pow(o.Beta2, t)), o.Eps)
	tensor.CopyInto(c, u, tensor.Div(c, u, root))
}

// at are alpha and beta3 of step t. While Beta3 rises, the half-life of the slow mean grows by the same number of steps
// in each step.
func (o ScaleByAdEMAMix) at(t float64) (alpha, beta3 float64) {
	alpha, beta3 = o.Alpha, o.Beta3
	if o.TAlpha > 0 {
		alpha = min(t*alpha/float64(o.TAlpha), alpha)
	}
	if o.TBeta3 > 0 {
		x, first, last := t/float64(o.TBeta3), math.Log(o.Beta1), math.Log(o.Beta3)
		beta3 = min(math.Exp(first*last/((1-x)*last+x*first)), beta3)
	}
	return alpha, beta3
}

func (o ScaleByAdEMAMix) host(_ *Group, step int64) func(e *elements) {
	t := float64(step)
	alpha, beta3 := o.at(t)
	first, second := 1/(1-math.Pow(o.Beta1, t)), 1/math.Sqrt(1-math.Pow(o.Beta2, t))
	return func(e *elements) {
		fast, slow, v := e.state[0], e.state[1], e.state[2]
		vecmath.Axpby(fast, float32(o.Beta1), fast, float32(1-o.Beta1), e.u)
		vecmath.Axpby(slow, float32(beta3), slow, float32(1-beta3), e.u)
		vecmath.Mul(e.free, e.u, e.u)
		vecmath.Axpby(v, float32(o.Beta2), v, float32(1-o.Beta2), e.free)
		vecmath.Axpby(e.u, float32(first), fast, float32(alpha), slow)
		e.divideByRoot(v, second, o.Eps)
	}
}
