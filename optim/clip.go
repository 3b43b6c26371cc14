// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

// GradNorm is the L2 norm of all gradients together. Squares are summed in float64, in
// blocks of 4096 elements and in the order of params, so that the bits do not depend on
// workers or sharding.
func GradNorm(c *tensor.Ctx, params []tensor.Named) float64 {
	c = c.NoGrad()
	var sum float64
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		if gs := gradients(params); len(gs) > 0 {
			for _, s := range tensor.ToSlice[float64](c, tensor.SumSquaresAll(c, gs)) {
				sum += s
			}
		}
		return nil
	})
	return math.Sqrt(sum)
}

func gradients(params []tensor.Named) (gs []*tensor.Tensor) {
	for _, p := range params {
		if g := p.Grad(); g != nil {
			gs = append(gs, g)
		}
	}
	return gs
}

// MeasureGrads computes GradNorm and ClipFactor on the device, with the same bits, and waits for nothing. dst, float64
// of tensor.ClipLen elements, is what tensor.ClipFactor makes of them: the norm divided by scale, the scale of the
// loss; the factor, divided by it too; and whether the norm and losses (float64, or nil) are finite. It is what
// Optimizer.StepBy takes.
func MeasureGrads(c *tensor.Ctx, dst *tensor.Tensor, params []tensor.Named, losses *tensor.Tensor,
	maxNorm, scale float64) {
	c.NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		tensor.ClipFactor(c, dst, tensor.SumSquaresAll(c, gradients(params)), losses, maxNorm, scale)
		return nil
	})
}

// ClipFactor is the factor for gradients with the joint L2 norm norm, so that it does not exceed maxNorm:
// maxNorm/(norm+1e-6) if that is below one, as in torch.nn.utils.clip_grad_norm_, else 1 (Pascanu et al. 2013). A
// maxNorm of 0 clips nothing, and gradients of a norm that is not finite stay unchanged.
func ClipFactor(norm, maxNorm float64) float64 {
	factor := maxNorm / (norm + 1e-6)
	if maxNorm > 0 && factor < 1 && !math.IsInf(norm, 0) && !math.IsNaN(norm) {
		return factor
	}
	return 1
}

// ClipGradNorm scales all gradients by ClipFactor and returns their norm before. Optimizer.ScaleGrads
// does that in the pass that reads them anyway.
func ClipGradNorm(c *tensor.Ctx, params []tensor.Named, maxNorm float64) float64 {
	norm := GradNorm(c, params)
	if factor := ClipFactor(norm, maxNorm); factor != 1 {
		for _, p := range params {
			if g := p.Grad(); g != nil {
				tensor.ScaleInto(c.NoGrad(), g, factor)
			}
		}
	}
	return norm
}
