// SPDX-License-Identifier: Apache-2.0

package optim

import "github.com/lockstep-ml/lockstep/tensor"

var (
	defaultAdamW8bit    = register("adamw_8bit", AdamW8bit{})
	defaultLion8bit     = register("lion_8bit", Lion8bit{})
	defaultAdEMAMix8bit = register("ademamix_8bit", AdEMAMix8bit{})
	_                   = register("rmsprop_8bit", RMSprop8bit{})
	_                   = register("adamw_torch_8bit", AdamWTorch8bit{})
)

// AdamW8bit is AdamW that stores its state in 8 bits, as bitsandbytes' AdamW8bit: in blocks of 256 elements, except for
// parameters of fewer than 4096 elements, and for embeddings, as HuggingFace's Trainer registers them (Dettmers et al.
// 2022, "8-bit Optimizers via Block-wise Quantization").
type AdamW8bit AdamW

// DefaultAdamW8bit has the defaults of AdamW.
func DefaultAdamW8bit() AdamW8bit { return defaultAdamW8bit }

// New makes the optimizer over groups.
func (a AdamW8bit) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	by := quantize(ScaleByAdam(a), groups)
	return by.optimizer(c, "adamw_8bit", groups, DecoupledDecay{}, by)
}

// Lion8bit is Lion that stores its state as AdamW8bit, as bitsandbytes' Lion8bit.
type Lion8bit Lion

// DefaultLion8bit has the defaults of Lion.
func DefaultLion8bit() Lion8bit { return defaultLion8bit }

// New makes the optimizer over groups.
func (o Lion8bit) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	by := quantize(ScaleByLion(o), groups)
	return by.optimizer(c, "lion_8bit", groups, DecoupledDecay{}, by, Sign{})
}

// AdEMAMix8bit is AdEMAMix that stores its state as AdamW8bit, as bitsandbytes' AdEMAMix8bit.
type AdEMAMix8bit AdEMAMix

// DefaultAdEMAMix8bit has the defaults of AdEMAMix.
func DefaultAdEMAMix8bit() AdEMAMix8bit { return defaultAdEMAMix8bit }

// New makes the optimizer over groups.
func (o AdEMAMix8bit) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	by := quantize(ScaleByAdEMAMix(o), groups)
	return by.optimizer(c, "ademamix_8bit", groups, DecoupledDecay{}, by)
}

// RMSprop8bit is RMSprop that stores its state as AdamW8bit, as bitsandbytes' RMSprop8bit.
type RMSprop8bit struct {
	Alpha float64 `json:"alpha"`
	Eps   float64 `json:"eps"`
}

// New makes the optimizer over groups.
func (o RMSprop8bit) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	by := quantize(ScaleByRMS{Alpha: o.Alpha, Eps: o.Eps}, groups)
	by.signed = true
	return by.optimizer(c, "rmsprop_8bit", groups, L2{}, by)
}

// AdamWTorch8bit is AdamW that stores its state in 8 bits as torchao's AdamW8bit: that of embeddings too, and none
// whose last block would be short.
type AdamWTorch8bit AdamW

// New makes the optimizer over groups.
func (a AdamWTorch8bit) New(c *tensor.Ctx, groups []*Group) *Optimizer {
	by := &quantized{of: ScaleByAdam(a), wholeBlocks: true}
	return by.optimizer(c, "adamw_torch_8bit", groups, DecoupledDecay{}, by)
}
