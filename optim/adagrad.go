// SPDX-License-Identifier: Apache-2.0

package optim

import "github.com/lockstep-ml/lockstep/tensor"

var _ = register("adagrad", Adagrad{})

// Adagrad divides gradients by the root of the sum of all their squares (Duchi et al. 2011), as torch.optim.Adagrad,
// with L2 decay.
type Adagrad struct {
	// LRDecay lowers the learning rate by 1/(1 + LRDecay·(step−1)).
	LRDecay float64 `json:"lr_decay"`
	Eps     float64 `json:"eps"`
}

// New makes the optimizer over groups.
func (a Adagrad) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	return New(c, "adagrad", groups, L2{}, ScaleByAdagrad(a))
}

// ScaleByAdagrad replaces the update u of step t by u/(√v + Eps)/(1 + LRDecay·(t−1)), where v ← v + u².
type ScaleByAdagrad struct{ LRDecay, Eps float64 }

// Traits promises all.
func (ScaleByAdagrad) Traits() Traits { return Traits{Elementwise: true, OnDevice: true} }

// State is the sum of squares.
func (ScaleByAdagrad) State(p tensor.Named) []StateTensor { return squares(p, "sum") }

// Apply replaces the update.
func (a ScaleByAdagrad) Apply(c *tensor.Ctx, _ tensor.Named, _ *Group, s *Slot, u *tensor.Tensor) {
	v := s.Tensors["sum"]
	tensor.AddInto(c, v, tensor.Mul(c, u, u))
	divideByRoot(c, u, v, a.Eps)
	if decay := 1 + a.LRDecay*float64(s.Step-1); decay != 1 {
		tensor.ScaleInto(c, u, 1/decay)
	}
}

// squares describes a state of sums or means of squares.
func squares(p tensor.Named, name string) []StateTensor {
	list := Like(p, name)
	list[0].NonNegative = true
	return list
}

// divideByRoot replaces u by u/(√v + eps).
func divideByRoot(c *tensor.Ctx, u, v *tensor.Tensor, eps float64) {
	tensor.CopyInto(c, u, tensor.Div(c, u, tensor.Affine(c, tensor.Sqrt(c, v), 1, eps)))
}
