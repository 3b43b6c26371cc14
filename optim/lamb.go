// SPDX-License-Identifier: Apache-2.0

package optim

import "github.com/lockstep-ml/lockstep/tensor"

var defaultLamb = register("lamb", Lamb{})

// Lamb is Adam whose update of each parameter has the parameter's norm (You et al. 2020, "Large Batch Optimization for
// Deep Learning"), as timm's Lamb. Decay is a part of the update.
type Lamb struct {
	Beta1 float64 `json:"adam_beta1"`
	Beta2 float64 `json:"adam_beta2"`
	Eps   float64 `json:"adam_epsilon"`
	// AlwaysAdapt scales updates of parameters without weight decay too.
	AlwaysAdapt bool `json:"always_adapt"`
	// TrustClip never makes an update larger.
	TrustClip bool `json:"trust_clip"`
}

// DefaultLamb has the defaults of timm's Lamb, with an epsilon of 1e-6.
func DefaultLamb() Lamb { return defaultLamb }

// New makes the optimizer over groups.
func (o Lamb) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	return New(c, "lamb", groups, ScaleByAdam{o.Beta1, o.Beta2, o.Eps}, L2{},
		ScaleByTrust{o.AlwaysAdapt, o.TrustClip})
}

// ScaleByTrust multiplies the update by the norm of the parameter over that of the update, unless one of them is 0.
type ScaleByTrust struct{ AlwaysAdapt, TrustClip bool }

// Traits: the norms are those of whole parameters.
func (ScaleByTrust) Traits() Traits { return Traits{OnDevice: true} }

// State is empty.
func (ScaleByTrust) State(tensor.Named) []StateTensor { return nil }

// Apply scales the update.
func (o ScaleByTrust) Apply(c *tensor.Ctx, p tensor.Named, g *Group, _ *Slot, u *tensor.Tensor) {
	if g.WeightDecay == 0 && !o.AlwaysAdapt || u.Numel() == 0 {
		return
	}
	weight, update := norm(c, p.Tensor), norm(c, u)
	zero, one := tensor.Scalar(c, tensor.Float64, 0), tensor.Scalar(c, tensor.Float64, 1)
	both := tensor.And(c, tensor.Gt(c, weight, zero), tensor.Gt(c, update, zero))
	ratio := tensor.Where(c, both, tensor.Div(c, weight, update), one)
	if o.TrustClip {
		ratio = tensor.Minimum(c, ratio, one)
	}
	multiplyBy(c, u, ratio)
}
