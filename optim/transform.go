// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"github.com/lockstep-ml/lockstep/tensor"
)

// L2 adds WeightDecay·p to the gradient: decay coupled with what follows in the chain.
type L2 struct{}

// State is empty.
func (L2) State(tensor.Named) []StateTensor { return nil }

// Apply adds the decay term.
func (L2) Apply(c *tensor.Ctx, p tensor.Named, g *Group, _ *Slot, u *tensor.Tensor) {
	if g.WeightDecay != 0 {
		tensor.AxpbyInto(c, u, 1, u, g.WeightDecay, p.Tensor)
	}
}

// DecoupledDecay shrinks the parameter by 1 − lr·WeightDecay, apart from the update
// (Loshchilov & Hutter 2019).
type DecoupledDecay struct{}

// State is empty.
func (DecoupledDecay) State(tensor.Named) []StateTensor { return nil }

// Apply shrinks p.
func (DecoupledDecay) Apply(c *tensor.Ctx, p tensor.Named, g *Group, _ *Slot, _ *tensor.Tensor) {
	if g.WeightDecay != 0 {
		tensor.ScaleInto(c, p.Tensor, 1-g.LR*g.WeightDecay)
	}
}

// Elementwise promises that L2 computes each element by itself.
func (L2) Elementwise() {}

// Elementwise promises that DecoupledDecay computes each element by itself.
func (DecoupledDecay) Elementwise() {}

// OnDevice promises that L2 reads no numbers.
func (L2) OnDevice() {}

// OnDevice promises that DecoupledDecay reads no numbers.
func (DecoupledDecay) OnDevice() {}
