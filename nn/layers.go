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
}

// LinearConfig is the sizes of a Linear. What is not set is as in torch.nn.Linear.
type LinearConfig struct {
	In, Out int
	NoBias  bool
}

// NewLinear makes a Linear with torch.nn.Linear's initialisation, U(±1/√in).
func NewLinear(in *Init, cfg LinearConfig) *Linear {
	l := &Linear{Weight: in.KaimingUniform("weight", cfg.Out, cfg.In)}
	if !cfg.NoBias {
		l.Bias = in.Uniform("bias", 1/math.Sqrt(float64(cfg.In)), cfg.Out)
	}
	return l
}

// Forward maps x [..., in] to [..., out].
func (l *Linear) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.Linear(c.Ctx, x, c.Param(l.Weight), c.Param(l.Bias))
	}, x)
}

// Activated is f(Forward), computed as one op; the module's hooks see the activated
// result.
func (l *Linear) Activated(c *Ctx, x *tensor.Tensor, f tensor.Activation) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.LinearActivated(c.Ctx, x, c.Param(l.Weight), c.Param(l.Bias), f)
	}, x)
}

// Embedding looks up rows of Weight [V, C] by id.
type Embedding struct {
	Weight *Parameter `nn:"weight"`
}

// NewEmbedding makes a table of n rows drawn from N(0, std²).
func NewEmbedding(in *Init, n, dim int, std float64) *Embedding {
	return &Embedding{Weight: in.Normal("weight", std, n, dim)}
}

// Forward maps ids of any shape to ids' shape with C appended.
func (e *Embedding) Forward(c *Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, e, func(c *Ctx, ids *tensor.Tensor) *tensor.Tensor {
		return tensor.Embedding(c.Ctx, c.Param(e.Weight), ids)
	}, ids)
}

// Logits multiplies hidden states h [..., C] by the rows of the table, which gives [..., V]: the head of a language
// model.
func (e *Embedding) Logits(c *Ctx, h *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, e, func(c *Ctx, h *tensor.Tensor) *tensor.Tensor { return tensor.Linear(c.Ctx, h, c.Param(e.Weight), nil) }, h)
}

// LossSum is the CrossEntropySum of Logits, which never exist as a whole: see LinearCrossEntropySum.
func (e *Embedding) LossSum(c *Ctx, h, labels *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, e, func(c *Ctx, h *tensor.Tensor) *tensor.Tensor {
		return LinearCrossEntropySum(c, h, e.Weight, nil, labels)
	}, h)
}

// LayerNorm normalises the last dim (Ba et al. 2016).
type LayerNorm struct {
	Weight *Parameter `nn:"weight"`
	Bias   *Parameter `nn:"bias"`
	Eps    float64
}

// NewLayerNorm makes a LayerNorm over a last dim of the given size.
func NewLayerNorm(in *Init, dim int, eps float64) *LayerNorm {
	return &LayerNorm{Weight: in.Full("weight", 1, dim), Bias: in.Full("bias", 0, dim), Eps: eps}
}

func (*LayerNorm) Normalizes() {}

// Forward keeps x's shape.
func (l *LayerNorm) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.LayerNorm(c.Ctx, x, c.Param(l.Weight), c.Param(l.Bias), l.Eps)
	}, x)
}

// RMSNorm divides the last dim by its root mean square (Zhang & Sennrich 2019).
type RMSNorm struct {
	Weight *Parameter `nn:"weight"`
	Eps    float64
}

// NewRMSNorm makes an RMSNorm over a last dim of the given size.
func NewRMSNorm(in *Init, dim int, eps float64) *RMSNorm {
	return &RMSNorm{Weight: in.Full("weight", 1, dim), Eps: eps}
}

func (*RMSNorm) Normalizes() {}

// Forward keeps x's shape.
func (l *RMSNorm) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.RMSNorm(c.Ctx, x, c.Param(l.Weight), l.Eps)
	}, x)
}

// Dropout zeroes elements with probability P while training. Dim 0 of its input must
// count samples.
type Dropout struct{ P float64 }

// Forward keeps x's shape.
func (d *Dropout) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, d, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		if !c.Training {
			return x
		}
		return tensor.Dropout(c.Ctx, x, d.P)
	}, x)
}
