// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/lockstep-ml/lockstep/tensor"

// GatedMLP is the feed-forward part of Llama and its relatives, down(f(gate(x))·up(x)) (Shazeer, "GLU Variants Improve
// Transformer", 2020), under transformers' names.
type GatedMLP struct {
	Gate *Linear `nn:"gate_proj"`
	Up   *Linear `nn:"up_proj"`
	Down *Linear `nn:"down_proj"`

	Activation tensor.Activation // f
}

// GatedMLPConfig is the configuration of a GatedMLP.
type GatedMLPConfig struct {
	Width, Inner int
	NoBias       bool
	Std          float64           // of the weights at first; see LinearConfig
	Activation   tensor.Activation // f; 0: SiLU
}

// NewGatedMLP makes a GatedMLP. It panics unless the sizes are positive.
func NewGatedMLP(in *Init, cfg GatedMLPConfig) *GatedMLP {
	wantPositive(in, "NewGatedMLP", size{"Width", cfg.Width}, size{"Inner", cfg.Inner})
	if cfg.Activation == tensor.ActivationNone {
		cfg.Activation = tensor.ActivationSiLU
	}
	wide := LinearConfig{In: cfg.Width, Out: cfg.Inner, NoBias: cfg.NoBias, Std: cfg.Std}
	back := LinearConfig{In: cfg.Inner, Out: cfg.Width, NoBias: cfg.NoBias, Std: cfg.Std}
	return &GatedMLP{Gate: NewLinear(in.Sub("gate_proj"), wide), Up: NewLinear(in.Sub("up_proj"), wide),
		Down: NewLinear(in.Sub("down_proj"), back), Activation: cfg.Activation}
}

// Forward keeps x's shape [..., Width].
func (m *GatedMLP) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, m, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		if m.Activation == tensor.ActivationSiLU {
			return m.Down.Forward(c, tensor.SwiGLU(c.Ctx, m.Gate.Forward(c, x), m.Up.Forward(c, x)))
		}
		gate := m.Gate.Activated(c, x, m.Activation)
		return m.Down.Forward(c, tensor.Mul(c.Ctx, gate, m.Up.Forward(c, x)))
	}, x)
}
