// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// BCEWithLogits is the binary cross entropy of σ(logits) and targets, element by element and without overflow:
// posWeight·y·ln(1+e⁻ˣ) + (1−y)·ln(1+eˣ), what torch.nn.functional.binary_cross_entropy_with_logits computes with
// reduction "none". Logits and targets, which need not be 0 or 1, have one shape and dtype; posWeight (nil: 1), the
// weight of the positive part, broadcasts to it and gets no gradient.
func BCEWithLogits(c *Ctx, logits, targets, posWeight *Tensor) *Tensor {
	const name = "BCEWithLogits"
	c.autocast(name, &logits, &targets, &posWeight)
	ins := []*Tensor{logits, targets}
	if posWeight != nil {
		ins = append(ins, posWeight)
	}
	c.wantFloat(name, ins...)
	c.sameDType(name, ins...)
	if !slices.Equal(logits.Shape(), targets.Shape()) || !slices.Equal(c.broadcast(name, ins...), logits.Shape()) {
		c.fail(name, ins, "want logits and targets of one shape, and a weight that broadcasts to it")
	}
	if c.grad && posWeight.takesPart() {
		c.fail(name, ins, "the weight gets no gradient: pass it through Detach")
	}
	y := c.emptyLike(name, logits)
	c.elementwise(backend.OpBCEWithLogits, &attrs{}, y, ins...)
	c.record(name, []*Tensor{y}, ins[:2], ins, func(b *Back) {
		if b.Need(0) {
			slope := b.emptyLike(name, logits)
			b.elementwise(backend.OpBCEWithLogitsSlope, &attrs{}, slope, ins...)
			b.Set(0, Mul(b.Ctx, slope, b.Grad(0)))
		}
		if b.Need(1) {
			yes, no := Softplus(b.Ctx, Neg(b.Ctx, logits), 1, math.Inf(1)), Softplus(b.Ctx, logits, 1, math.Inf(1))
			if posWeight != nil {
				yes = Mul(b.Ctx, yes, posWeight)
			}
			b.Set(1, Mul(b.Ctx, Sub(b.Ctx, yes, no), b.Grad(0)))
		}
	})
	return y
}
