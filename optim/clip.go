package optim

import (
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

// GradNorm is the L2 norm of all gradients together. Squares are summed in float64, in
// blocks of 4096 elements and in the order of params, so that the bits do not depend on
// workers or sharding.
func GradNorm(c *tensor.Ctx, params []Param) float64 {
	c = c.NoGrad()
	var sum float64
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		var partials []*tensor.Tensor
		for _, p := range params {
			if g := p.Grad(); g != nil {
				partials = append(partials, tensor.SumSquares(c, g))
			}
		}
		if len(partials) > 0 {
			for _, s := range tensor.ToSlice[float64](c, tensor.Concat(c, 0, partials...)) {
				sum += s
			}
		}
		return nil
	})
	return math.Sqrt(sum)
}

// ClipGradNorm scales all gradients by maxNorm/(norm+1e-6) if their joint L2 norm exceeds
// maxNorm, as torch.nn.utils.clip_grad_norm_, and returns the norm before (Pascanu et al.
// 2013). With maxNorm 0 it only measures. A norm that is not finite leaves the gradients
// alone.
func ClipGradNorm(c *tensor.Ctx, params []Param, maxNorm float64) float64 {
	norm := GradNorm(c, params)
	scale := maxNorm / (norm + 1e-6)
	if maxNorm > 0 && scale < 1 && !math.IsInf(norm, 0) && !math.IsNaN(norm) {
		for _, p := range params {
			if g := p.Grad(); g != nil {
				tensor.ScaleInto(c.NoGrad(), g, scale)
			}
		}
	}
	return norm
}
