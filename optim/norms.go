// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

// norm is the L2 norm of t on the device, a scalar of float64.
func norm(c *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor {
	return tensor.Sqrt(c, tensor.Sum(c, tensor.SumSquares(c, t), nil, false))
}

// rms is the root of the mean of squares of t on the device, a scalar of float64.
func rms(c *tensor.Ctx, t *tensor.Tensor) *tensor.Tensor {
	return tensor.Affine(c, norm(c, t), 1/math.Sqrt(float64(max(t.Numel(), 1))), 0)
}

// divideBy divides u by a scalar of float64 on the device.
func divideBy(c *tensor.Ctx, u, scalar *tensor.Tensor) {
	tensor.CopyInto(c, u, tensor.Div(c, u, tensor.Cast(c, scalar, u.DType())))
}

// multiplyBy multiplies u by a scalar of float64 on the device.
func multiplyBy(c *tensor.Ctx, u, scalar *tensor.Tensor) {
	tensor.CopyInto(c, u, tensor.Mul(c, u, tensor.Cast(c, scalar, u.DType())))
}
