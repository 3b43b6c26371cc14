// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

var defaultStableAdamW = register("stable_adamw", StableAdamW{})

// StableAdamW is AdamW that divides the learning rate of a parameter by the root mean square of its gradients over
// their second moment, where that exceeds 1 (Wortsman et al. 2023, "Stable and low-precision training for large-scale
// vision-language models"), as torch-optimi's StableAdamW.
type StableAdamW struct {
	Beta1 float64 `json:"adam_beta1"`
	Beta2 float64 `json:"adam_beta2"`
	Eps   float64 `json:"adam_epsilon"`
	// DecoupleLR decays by WeightDecay·lr/MaxLR instead of WeightDecay·lr.
	DecoupleLR bool `json:"decouple_lr"`
	// MaxLR is the largest learning rate; 0: the largest of the groups.
	MaxLR float64 `json:"max_lr"`
}

// DefaultStableAdamW has the defaults of AdamW.
func DefaultStableAdamW() StableAdamW { return defaultStableAdamW }

// New makes the optimizer over groups.
func (o StableAdamW) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	for _, g := range groups {
		if o.MaxLR == 0 {
			o.MaxLR = max(o.MaxLR, g.LR)
		}
	}
	return New(c, "stable_adamw", groups, ScaleByStableAdam(o))
}

// ScaleByStableAdam replaces the update by that of StableAdamW, and shrinks the parameter.
type ScaleByStableAdam StableAdamW

// Traits: the mean is that of a whole parameter.
func (ScaleByStableAdam) Traits() Traits { return Traits{OnDevice: true} }

// State is the two moments.
func (ScaleByStableAdam) State(p tensor.Named) []StateTensor { return ScaleByAdam{}.State(p) }

// Apply replaces the update.
func (o ScaleByStableAdam) Apply(c *tensor.Ctx, p tensor.Named, g *Group, s *Slot, u *tensor.Tensor) {
	if u.Numel() == 0 {
		return
	}
	m, v, t := s.Tensors["exp_avg"], s.Tensors["exp_avg_sq"], float64(s.Step)
	keep1, keep2 := unbiased(o.Beta1, t), unbiased(o.Beta2, t)
	square := tensor.Mul(c, u, u)
	tensor.AxpbyInto(c, m, keep1, m, 1-keep1, u)
	tensor.AxpbyInto(c, v, keep2, v, 1-keep2, square)
	ratio := tensor.Div(c, square, tensor.Clamp(c, v, o.Eps*o.Eps, math.Inf(1)))
	excess := tensor.Clamp(c, rms(c, tensor.Sqrt(c, ratio)), 1, math.Inf(1))

	decay := g.LR * g.WeightDecay
	if o.DecoupleLR && decay != 0 {
		decay /= o.MaxLR
	}
	if decay != 0 {
		inverse := tensor.PowScalar(c, excess, -1)
		multiplyBy(c, p.Tensor, tensor.Affine(c, inverse, -decay, 1))
	}
	tensor.CopyInto(c, u, m)
	divideByRoot(c, u, v, o.Eps)
	divideBy(c, u, excess)
}

// unbiased is the share that a mean of t values keeps of its old value, so that it needs no correction.
func unbiased(beta, t float64) float64 {
	power := math.Pow(beta, t)
	return (power - beta) / (power - 1)
}
