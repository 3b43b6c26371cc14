// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
	"github.com/lockstep-ml/lockstep/tensor"
)

var (
	defaultAdamW = register("adamw", AdamW{})
	_            = register("adam", Adam{})
)

// AdamW is Adam with decoupled weight decay (Loshchilov & Hutter 2019), as torch.optim.AdamW.
type AdamW struct {
	Beta1 float64 `json:"adam_beta1"`
	Beta2 float64 `json:"adam_beta2"`
	Eps   float64 `json:"adam_epsilon"`
}

// DefaultAdamW has the defaults of torch.optim.AdamW: 0.9, 0.999 and 1e-8.
func DefaultAdamW() AdamW { return defaultAdamW }

// New makes the optimizer over groups.
func (a AdamW) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	return New(c, "adamw", groups, DecoupledDecay{}, ScaleByAdam(a))
}

// Adam is Adam (Kingma & Ba 2015) with L2 decay, as torch.optim.Adam. Its defaults are AdamW's.
type Adam AdamW

// New makes the optimizer over groups.
func (a Adam) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	return New(c, "adam", groups, L2{}, ScaleByAdam(a))
}

// ScaleByAdam replaces the update by Adam's direction, the bias-corrected mean of
// gradients over the root of that of their squares (Kingma & Ba 2015).
type ScaleByAdam struct{ Beta1, Beta2, Eps float64 }

// Traits has AdamW's pass.
func (a ScaleByAdam) Traits() Traits {
	return Traits{Elementwise: true, OnDevice: true, Fused: &Fused{Chain: []Transform{DecoupledDecay{}, a},
		Numbers: func(g *Group, step int64) []float64 { n := a.numbers(g, step); return n[:] },
		Run:     a.adamW}, host: a.host}
}

// State is the two moments.
func (ScaleByAdam) State(p tensor.Named) []StateTensor {
	moments := Like(p, "exp_avg", "exp_avg_sq")
	moments[1].NonNegative = true
	return moments
}

// Apply replaces the update.
func (a ScaleByAdam) Apply(c *tensor.Ctx, _ tensor.Named, _ *Group, s *Slot, u *tensor.Tensor) {
	t := float64(s.Step)
	tensor.AdamMoments(c, s.Tensors["exp_avg"], s.Tensors["exp_avg_sq"], u, u,
		a.Beta1, a.Beta2, a.Eps, 1-math.Pow(a.Beta1, t), 1-math.Pow(a.Beta2, t))
}

// numbers are those of tensor.AdamWStep.Numbers.
func (a ScaleByAdam) numbers(g *Group, step int64) [4]float64 {
	t := float64(step)
	return [4]float64{1 - math.Pow(a.Beta1, t), 1 - math.Pow(a.Beta2, t), g.LR, g.WeightDecay}
}

// adamW is AdamW's step of all parameters at once.
func (a ScaleByAdam) adamW(c *tensor.Ctx, updates []FusedUpdate) {
	list := make([]tensor.AdamWUpdate, len(updates))
	for i := range updates {
		u := &updates[i]
		n := a.numbers(u.Group, u.Step)
		list[i] = tensor.AdamWUpdate{P: u.P, M: u.State[0], V: u.State[1], Grad: u.Grad,
			Step: tensor.AdamWStep{Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, Correction1: n[0], Correction2: n[1],
				LR: n[2], WeightDecay: n[3], GradScale: u.Factor, Scale: u.Scale, Numbers: u.Numbers}}
	}
	tensor.AdamWAll(c, list)
}

func (a ScaleByAdam) host(_ *Group, step int64) func(e *elements) {
	t := float64(step)
	by := vecmath.NewAdam(a.Beta1, a.Beta2, a.Eps, 1-math.Pow(a.Beta1, t), 1-math.Pow(a.Beta2, t))
	return func(e *elements) { by.Moments(e.state[0], e.state[1], e.u, e.u) }
}
