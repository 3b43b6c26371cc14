// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/lockstep-ml/lockstep/tensor"

// The activations as modules, for Sequential; your Forward calls the functions of package tensor. Their blank fields
// make each of them a distinct variable, with a distinct path.

// ReLU is max(x, 0).
type ReLU struct{ _ byte }

// Forward keeps x's shape.
func (l *ReLU) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.ReLU(c.Ctx, x) }, x)
}

// LeakyReLU is x where x > 0 and Slope·x elsewhere, as torch.nn.LeakyReLU; see tensor.LeakyReLU.
type LeakyReLU struct {
	Slope float64 // 0 means 0.01
}

// Forward keeps x's shape.
func (l *LeakyReLU) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.LeakyReLU(c.Ctx, x, or(l.Slope, 0.01))
	}, x)
}

// ELU is x where x > 0 and Alpha·(eˣ − 1) elsewhere, as torch.nn.ELU; see tensor.ELU.
type ELU struct {
	Alpha float64 // 0 means 1
}

// Forward keeps x's shape.
func (l *ELU) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.ELU(c.Ctx, x, or(l.Alpha, 1)) }, x)
}

// Softplus is ln(1 + e^(Beta·x))/Beta, and x where Beta·x > Threshold, as torch.nn.Softplus; see tensor.Softplus.
type Softplus struct {
	Beta      float64 // 0 means 1
	Threshold float64 // 0 means 20
}

// Forward keeps x's shape.
func (l *Softplus) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.Softplus(c.Ctx, x, or(l.Beta, 1), or(l.Threshold, 20))
	}, x)
}

// or is v, or the default where v is 0.
func or(v, def float64) float64 {
	if v == 0 {
		return def
	}
	return v
}

// GELU is x·Φ(x), or GPT-2's approximation of it; see tensor.GELU and tensor.GELUTanh.
type GELU struct {
	Tanh bool // the approximation
}

// Forward keeps x's shape.
func (l *GELU) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		if l.Tanh {
			return tensor.GELUTanh(c.Ctx, x)
		}
		return tensor.GELU(c.Ctx, x)
	}, x)
}

// SiLU is x·σ(x).
type SiLU struct{ _ byte }

// Forward keeps x's shape.
func (l *SiLU) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.SiLU(c.Ctx, x) }, x)
}

// Tanh is the hyperbolic tangent.
type Tanh struct{ _ byte }

// Forward keeps x's shape.
func (l *Tanh) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Tanh(c.Ctx, x) }, x)
}

// Sigmoid is 1/(1+e⁻ˣ).
type Sigmoid struct{ _ byte }

// Forward keeps x's shape.
func (l *Sigmoid) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Sigmoid(c.Ctx, x) }, x)
}
