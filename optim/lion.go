// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
	"github.com/lockstep-ml/lockstep/tensor"
)

var defaultLion = register("lion", Lion{})

// Lion moves parameters by the sign of a mean of gradients (Chen et al. 2023, "Symbolic Discovery of Optimization
// Algorithms"), as lion-pytorch and bitsandbytes' Lion, with decoupled decay.
type Lion struct {
	Beta1 float64 `json:"adam_beta1"`
	Beta2 float64 `json:"adam_beta2"`
}

// DefaultLion has the defaults of the paper: 0.9 and 0.99. With package trainer they are adam_beta1 and adam_beta2.
func DefaultLion() Lion { return defaultLion }

// New makes the optimizer over groups.
func (o Lion) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	return New(c, "lion", groups, DecoupledDecay{}, ScaleByLion(o), Sign{})
}

// ScaleByLion replaces the update u by Beta1·m + (1−Beta1)·u; then m ← Beta2·m + (1−Beta2)·u.
type ScaleByLion struct{ Beta1, Beta2 float64 }

// Traits promises all.
func (o ScaleByLion) Traits() Traits { return Traits{Elementwise: true, OnDevice: true, host: o.host} }

// State is the mean of gradients.
func (ScaleByLion) State(p tensor.Named) []StateTensor { return Like(p, "exp_avg") }

// Apply replaces the update.
func (o ScaleByLion) Apply(c *tensor.Ctx, _ tensor.Named, _ *Group, s *Slot, u *tensor.Tensor) {
	m, grad := s.Tensors["exp_avg"], tensor.Clone(c, u)
	tensor.AxpbyInto(c, u, o.Beta1, m, 1-o.Beta1, grad)
	tensor.AxpbyInto(c, m, o.Beta2, m, 1-o.Beta2, grad)
}

// Sign replaces each element of the update by its sign: −1, 0 or 1.
type Sign struct{}

// Traits promises all.
func (Sign) Traits() Traits { return Traits{Elementwise: true, OnDevice: true, host: sign} }

// State is empty.
func (Sign) State(tensor.Named) []StateTensor { return nil }

// Apply replaces the update.
func (Sign) Apply(c *tensor.Ctx, _ tensor.Named, _ *Group, _ *Slot, u *tensor.Tensor) {
	zero := tensor.Scalar(c, u.DType(), 0)
	positive, negative := tensor.Gt(c, u, zero), tensor.Lt(c, u, zero)
	tensor.AxpbyInto(c, u, 1, tensor.Cast(c, positive, u.DType()), -1, tensor.Cast(c, negative, u.DType()))
}

func (o ScaleByLion) host(*Group, int64) func(e *elements) {
	b1, a1, b2, a2 := float32(o.Beta1), float32(1-o.Beta1), float32(o.Beta2), float32(1-o.Beta2)
	return func(e *elements) {
		m := e.state[0]
		vecmath.Axpby(e.free, b1, m, a1, e.u)
		vecmath.Axpby(m, b2, m, a2, e.u)
		copy(e.u, e.free)
	}
}

func sign(*Group, int64) func(e *elements) {
	return func(e *elements) {
		for i, v := range e.u {
			switch {
			case v > 0:
				e.u[i] = 1
			case v < 0:
				e.u[i] = -1
			default:
				e.u[i] = 0
			}
		}
	}
}
