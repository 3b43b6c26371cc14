// SPDX-License-Identifier: Apache-2.0

package optim

import "github.com/lockstep-ml/lockstep/tensor"

// updateHalf changes a parameter of a half type. The chain works on a float32 copy, so that decay and update are
// rounded once, together.
func (o *Optimizer) updateHalf(c *tensor.Ctx, p tensor.Named, g *Group, s *Slot, grad *tensor.Tensor) {
	wide := tensor.Cast(c, p.Tensor, tensor.Float32)
	o.apply(c, tensor.Named{Name: p.Name, Tensor: wide}, g, s, grad)
	tensor.CopyInto(c, p.Tensor, wide)
}
