// SPDX-License-Identifier: Apache-2.0

package tensor

import "slices"

// CustomOp is a differentiable function that users write themselves.
type CustomOp struct {
	// Name appears in errors and profiles.
	Name string
	// Forward computes the outputs, with ops that are not recorded, and lists the
	// tensors that Backward will read.
	Forward func(c *Ctx, in []*Tensor) (out, saved []*Tensor)
	// Backward returns the gradient of each input, given those of the outputs (nil where
	// none flows). Gradients that are not needed, according to need, may be nil.
	Backward func(c *Ctx, saved, grads []*Tensor, need []bool) []*Tensor
}

// Custom applies a user's op.
func Custom(c *Ctx, op CustomOp, in ...*Tensor) []*Tensor {
	in = slices.Clone(in) // the gradient reads it later
	for _, t := range in {
		t.check(c, op.Name)
	}
	out, saved := op.Forward(c.NoGrad(), in)
	out = slices.Clone(out) // it may be in
	for i, t := range out {
		if t.takesPart() || slices.Contains(in, t) {
			out[i] = t.alias() // an input passed through
		}
	}
	c.record(op.Name, out, in, saved, func(b *Back) {
		need := make([]bool, len(in))
		for i := range need {
			need[i] = b.Need(i)
		}
		arrived := make([]*Tensor, len(out))
		for i := range arrived {
			if arrived[i] = b.Grad(i); arrived[i] != nil {
				arrived[i] = b.convert(op.Name, arrived[i], out[i].dtype)
			}
		}
		grads := op.Backward(b.Ctx, saved, arrived, need)
		if len(grads) != len(in) {
			b.fail(op.Name, in, "Backward returned %d gradients: want %d, one for each input", len(grads), len(in))
		}
		for i, g := range grads {
			if g != nil && (g.dtype != in[i].dtype || !slices.Equal(g.Shape(), in[i].Shape())) {
				b.fail(op.Name, []*Tensor{in[i], g}, "the gradient of input %d does not have its shape and dtype", i)
			}
			b.Set(i, g)
		}
	})
	return out
}
