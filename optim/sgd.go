// SPDX-License-Identifier: Apache-2.0

package optim

import "github.com/lockstep-ml/lockstep/tensor"

var _ = register("sgd", SGD{})

// SGD is stochastic gradient descent with L2 decay and, if Momentum is not 0, momentum, as torch.optim.SGD.
type SGD struct {
	Momentum  float64 `json:"momentum"`
	Dampening float64 `json:"dampening"`
	Nesterov  bool    `json:"nesterov"`
}

// New makes the optimizer over groups.
func (o SGD) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	if o.Momentum == 0 {
		return New(c, "sgd", groups, L2{})
	}
	return New(c, "sgd", groups, L2{}, Momentum(o))
}

// Momentum replaces the update by a running sum of updates, b ← Momentum·b + (1−Dampening)·u,
// which begins as the first update (Sutskever et al. 2013, in PyTorch's form). With
// Nesterov the update is u + Momentum·b.
type Momentum struct {
	Momentum, Dampening float64
	Nesterov            bool
}

// Traits has the pass of gradient descent with momentum, except Nesterov's.
func (m Momentum) Traits() Traits {
	t := Traits{Elementwise: true, OnDevice: true}
	if !m.Nesterov {
		t.Fused = descend([]Transform{L2{}, m}, func(c *tensor.Ctx, u *FusedUpdate, g *tensor.Tensor) *tensor.Tensor {
			return m.add(c, u.State[0], u.Step, g)
		})
	}
	return t
}

// State is the momentum buffer.
func (Momentum) State(p tensor.Named) []StateTensor { return Like(p, "momentum_buffer") }

// add adds an update to the buffer b.
func (m Momentum) add(c *tensor.Ctx, b *tensor.Tensor, step int64, u *tensor.Tensor) *tensor.Tensor {
	if step == 1 {
		tensor.CopyInto(c, b, u)
	} else {
		tensor.AxpbyInto(c, b, m.Momentum, b, 1-m.Dampening, u)
	}
	return b
}

// Apply replaces the update.
func (m Momentum) Apply(c *tensor.Ctx, _ tensor.Named, _ *Group, s *Slot, u *tensor.Tensor) {
	b := m.add(c, s.Tensors["momentum_buffer"], s.Step, u)
	if m.Nesterov {
		tensor.AxpbyInto(c, u, 1, u, m.Momentum, b)
	} else {
		tensor.CopyInto(c, u, b)
	}
}
