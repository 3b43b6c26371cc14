// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Linear is y = x·Wᵀ + b with W [out, in] and b [out], as torch.nn.Linear.
type Linear struct {
	Weight *Parameter `nn:"weight"`
	Bias   *Parameter `nn:"bias"` // nil: none
	LoRA
}

// LinearConfig is the sizes of a Linear. Fields that are not set have the defaults of torch.nn.Linear.
type LinearConfig struct {
	In, Out int
	NoBias  bool
	Std     float64 // 0, or the deviation of a normal distribution that weights are drawn from, with biases 0
}

// NewLinear makes a Linear with torch.nn.Linear's initialisation, U(±1/√in), unless cfg has a Std. It panics unless
// the sizes are positive.
func NewLinear(in *Init, cfg LinearConfig) *Linear {
	wantPositive(in, "NewLinear", size{"In", cfg.In}, size{"Out", cfg.Out})
	if cfg.Std > 0 {
		l := &Linear{Weight: in.Normal("weight", cfg.Std, cfg.Out, cfg.In)}
		if !cfg.NoBias {
			l.Bias = in.Full("bias", 0, cfg.Out)
		}
		return l
	}
	l := &Linear{Weight: in.KaimingUniform("weight", cfg.Out, cfg.In)}
	if !cfg.NoBias {
		l.Bias = in.Uniform("bias", 1/math.Sqrt(float64(cfg.In)), cfg.Out)
	}
	return l
}

// Traits marks parameters that only products read.
func (*Linear) Traits() Traits { return Traits{Projection: true} }

// Forward maps x [..., in] to [..., out].
func (l *Linear) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return l.Adapt(c, x, tensor.Linear(c.Ctx, x, c.Param(l.Weight), c.Param(l.Bias)))
	}, x)
}

// Activated is f(Forward), computed as one op unless adapters add to it; the module's hooks see the activated result.
func (l *Linear) Activated(c *Ctx, x *tensor.Tensor, f tensor.Activation) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		if l.Adapted(c) {
			return Activate(c, l.Adapt(c, x, tensor.Linear(c.Ctx, x, c.Param(l.Weight), c.Param(l.Bias))), f)
		}
		return tensor.LinearActivated(c.Ctx, x, c.Param(l.Weight), c.Param(l.Bias), f)
	}, x)
}

// Embedding looks up rows of Weight [V, C] by id.
type Embedding struct {
	Weight *Parameter `nn:"weight"`
}

// EmbeddingConfig is the size of an Embedding. Fields that are not set have the defaults of torch.nn.Embedding.
type EmbeddingConfig struct {
	Rows, Dim int
	Std       float64 // of the normal distribution that rows are drawn from; 0 means 1
}

// NewEmbedding makes a table whose elements are drawn from N(0, Std²). It panics unless the sizes are positive.
func NewEmbedding(in *Init, cfg EmbeddingConfig) *Embedding {
	wantPositive(in, "NewEmbedding", size{"Rows", cfg.Rows}, size{"Dim", cfg.Dim})
	return &Embedding{Weight: in.Normal("weight", or(cfg.Std, 1), cfg.Rows, cfg.Dim)}
}

// Traits marks the table.
func (*Embedding) Traits() Traits { return Traits{Embedding: true} }

// Forward maps ids of any shape to ids' shape with C appended.
func (e *Embedding) Forward(c *Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, e, func(c *Ctx, ids *tensor.Tensor) *tensor.Tensor {
		return e.disturbed(c, tensor.Embedding(c.Ctx, c.Param(e.Weight), ids))
	}, ids)
}

// LayerNorm normalises the last dim (Ba et al. 2016).
type LayerNorm struct {
	Weight *Parameter `nn:"weight"`
	Bias   *Parameter `nn:"bias"`
	Eps    float64
}

// LayerNormConfig is the size of a LayerNorm. Fields that are not set have the defaults of torch.nn.LayerNorm.
type LayerNormConfig struct {
	Dim int     // the size of the last dim
	Eps float64 // 0 means 1e-5
}

// NewLayerNorm makes a LayerNorm with weights 1 and biases 0. It panics unless Dim is positive.
func NewLayerNorm(in *Init, cfg LayerNormConfig) *LayerNorm {
	wantPositive(in, "NewLayerNorm", size{"Dim", cfg.Dim})
	return &LayerNorm{Weight: in.Full("weight", 1, cfg.Dim), Bias: in.Full("bias", 0, cfg.Dim), Eps: or(cfg.Eps, 1e-5)}
}

// Traits marks a normalization layer.
func (*LayerNorm) Traits() Traits { return Traits{Norm: true} }

// Forward keeps x's shape.
func (l *LayerNorm) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.LayerNorm(c.Ctx, x, c.Param(l.Weight), c.Param(l.Bias), l.Eps)
	}, x)
}

// Lowered is Forward for a result that only products read, as Linear's: under Autocast it has the products' dtype at
// once, which saves their conversion of it and changes no bit.
func (l *LayerNorm) Lowered(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.LayerNormLowered(c.Ctx, x, c.Param(l.Weight), c.Param(l.Bias), l.Eps)
	}, x)
}

// RMSNorm divides the last dim by its root mean square and scales it by Offset + Weight (Zhang & Sennrich 2019).
type RMSNorm struct {
	Weight *Parameter `nn:"weight"`
	Eps    float64
	Offset float64
}

// RMSNormConfig is the size of an RMSNorm. Fields that are not set have the defaults of transformers' LlamaRMSNorm.
type RMSNormConfig struct {
	Dim    int     // the size of the last dim
	Eps    float64 // 0 means 1e-6
	Offset float64 // what is added to weights: 1 in Gemma, whose weights begin at 0
}

// NewRMSNorm makes an RMSNorm that scales by 1. It panics unless Dim is positive.
func NewRMSNorm(in *Init, cfg RMSNormConfig) *RMSNorm {
	wantPositive(in, "NewRMSNorm", size{"Dim", cfg.Dim})
	return &RMSNorm{Weight: in.Full("weight", 1-cfg.Offset, cfg.Dim), Eps: or(cfg.Eps, 1e-6), Offset: cfg.Offset}
}

// Traits marks a normalization layer.
func (*RMSNorm) Traits() Traits { return Traits{Norm: true} }

// Forward keeps x's shape.
func (l *RMSNorm) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return l.norm(c, x, tensor.RMSNorm)
	}, x)
}

// Lowered is Forward for a result that only products read, as LayerNorm's Lowered.
func (l *RMSNorm) Lowered(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return l.norm(c, x, tensor.RMSNormLowered)
	}, x)
}

// norm computes f. With an Offset, half types are computed in float32, where weights near 0 are not lost beside it.
func (l *RMSNorm) norm(c *Ctx, x *tensor.Tensor,
	f func(c *tensor.Ctx, x, weight *tensor.Tensor, eps float64) *tensor.Tensor) *tensor.Tensor {
	w := c.Param(l.Weight)
	if l.Offset == 0 {
		return f(c.Ctx, x, w, l.Eps)
	}
	scale := tensor.Affine(c.Ctx, single(c, w), 1, l.Offset)
	if !x.DType().IsHalf() || c.Lower() != tensor.Invalid {
		return f(c.Ctx, x, scale, l.Eps)
	}
	return tensor.Cast(c.Ctx, f(c.Ctx, single(c, x), scale, l.Eps), x.DType())
}

// Dropout zeroes elements with probability P while training. Dim 0 of its input must
// count samples.
type Dropout struct{ P float64 }

// Forward keeps x's shape.
func (d *Dropout) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, d, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		if !c.drops() {
			return x
		}
		return tensor.Dropout(c.Ctx, x, d.P)
	}, x)
}
