// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
	"github.com/lockstep-ml/lockstep/tensor"
)

var _ = register("rmsprop", RMSprop{})

// RMSprop divides gradients by a running root of their squares (Hinton 2012), as torch.optim.RMSprop, with L2 decay.
type RMSprop struct {
	Alpha float64 `json:"alpha"`
	Eps   float64 `json:"eps"`
	// Momentum, if not 0, sums the updates.
	Momentum float64 `json:"momentum"`
	// Centered divides by the standard deviation of gradients instead (Graves 2013).
	Centered bool `json:"centered"`
}

// New makes the optimizer over groups.
func (o RMSprop) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	chain := []Transform{L2{}, ScaleByRMS{o.Alpha, o.Eps, o.Centered}}
	if o.Momentum != 0 {
		chain = append(chain, Momentum{Momentum: o.Momentum})
	}
	return New(c, "rmsprop", groups, chain...)
}

// ScaleByRMS replaces the update u by u/(√v + Eps), where v ← Alpha·v + (1−Alpha)·u². Centered subtracts the square of
// the same mean of u from v.
type ScaleByRMS struct {
	Alpha, Eps float64
	Centered   bool
}

// Traits promises all.
func (r ScaleByRMS) Traits() Traits { return Traits{Elementwise: true, OnDevice: true, host: r.host} }

// State is the running mean of squares, and that of gradients.
func (r ScaleByRMS) State(p tensor.Named) []StateTensor {
	list := squares(p, "square_avg")
	if r.Centered {
		list = append(list, Like(p, "grad_avg")...)
	}
	return list
}

// Apply replaces the update.
func (r ScaleByRMS) Apply(c *tensor.Ctx, _ tensor.Named, _ *Group, s *Slot, u *tensor.Tensor) {
	v := s.Tensors["square_avg"]
	tensor.AxpbyInto(c, v, r.Alpha, v, 1-r.Alpha, tensor.Mul(c, u, u))
	if r.Centered {
		m := s.Tensors["grad_avg"]
		tensor.AxpbyInto(c, m, r.Alpha, m, 1-r.Alpha, u)
		v = tensor.Sub(c, v, tensor.Mul(c, m, m))
	}
	divideByRoot(c, u, v, r.Eps)
}

func (r ScaleByRMS) host(*Group, int64) func(e *elements) {
	return func(e *elements) {
		v := e.state[0]
		vecmath.Mul(e.free, e.u, e.u)
		vecmath.Axpby(v, float32(r.Alpha), v, float32(1-r.Alpha), e.free)
		if r.Centered {
			m := e.state[1]
			vecmath.Axpby(m, float32(r.Alpha), m, float32(1-r.Alpha), e.u)
			vecmath.Mul(e.free, m, m)
			vecmath.Sub(e.free, v, e.free)
			v = e.free
		}
		e.divideByRoot(v, 1, r.Eps)
	}
}
