// SPDX-License-Identifier: Apache-2.0

package gpt2

import (
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Block is one pre-norm transformer layer.
type Block struct {
	LN1  *nn.LayerNorm `nn:"ln_1"`
	Attn *Attention    `nn:"attn"`
	LN2  *nn.LayerNorm `nn:"ln_2"`
	MLP  *MLP          `nn:"mlp"`
}

func newBlock(in *nn.Init, cfg Config) *Block {
	norm := nn.LayerNormConfig{Dim: cfg.NEmbd, Eps: cfg.LayerNormEpsilon}
	return &Block{
		LN1: nn.NewLayerNorm(in.Sub("ln_1"), norm), Attn: newAttention(in.Sub("attn"), cfg),
		LN2: nn.NewLayerNorm(in.Sub("ln_2"), norm), MLP: newMLP(in.Sub("mlp"), cfg),
	}
}

// Forward keeps x's shape [B,T,C].
func (b *Block) Forward(c *nn.Ctx, x *tensor.Tensor, in nn.AttentionInput) *tensor.Tensor {
	return nn.AttentionUnit(c, b, func(c *nn.Ctx, x *tensor.Tensor, in nn.AttentionInput) *tensor.Tensor {
		x = tensor.Add(c.Ctx, x, b.Attn.Forward(c, b.LN1.Lowered(c, x), in))
		return tensor.Add(c.Ctx, x, b.MLP.Forward(c, b.LN2.Lowered(c, x)))
	}, x, in)
}

// Attention is causal self-attention with one projection for queries, keys and values.
type Attention struct {
	CAttn *Conv1D     `nn:"c_attn"`
	CProj *Conv1D     `nn:"c_proj"`
	Drop  *nn.Dropout `nn:"resid_dropout"`

	Config nn.AttentionConfig
}

func newAttention(in *nn.Init, cfg Config) *Attention {
	a := &Attention{
		CAttn: newConv1D(in.Sub("c_attn"), cfg.NEmbd, 3*cfg.NEmbd, cfg.InitializerRange),
		CProj: newConv1D(in.Sub("c_proj"), cfg.NEmbd, cfg.NEmbd, residualStd(cfg)),
		Drop:  &nn.Dropout{P: cfg.ResidPdrop},
		Config: nn.AttentionConfig{Width: cfg.NEmbd, Heads: cfg.NHead, KVHeads: cfg.NHead,
			HeadDim: cfg.NEmbd / cfg.NHead, Causal: true, DropoutP: cfg.AttnPdrop},
	}
	if !cfg.ScaleAttnWeights {
		a.Config.Scale = 1
	}
	return a
}

// Traits give the size of a head.
func (a *Attention) Traits() nn.Traits {
	return nn.Traits{HeadDim: a.Config.HeadDim, Heads: a.Config.Heads, KVHeads: a.Config.KVHeads}
}

// Forward keeps x's shape.
func (a *Attention) Forward(c *nn.Ctx, x *tensor.Tensor, in nn.AttentionInput) *tensor.Tensor {
	return nn.AttentionUnit(c, a, func(c *nn.Ctx, x *tensor.Tensor, in nn.AttentionInput) *tensor.Tensor {
		qkv := a.CAttn.Forward(c, x)
		w := qkv.Size(2) / 3
		heads := tensor.Split(c.Ctx, qkv, 2, w, w, w)
		for i := range heads {
			heads[i] = nn.SplitHeads(c, heads[i], a.Config.HeadDim)
		}
		return a.Drop.Forward(c, a.CProj.Forward(c, a.Config.Attend(c, heads[0], heads[1], heads[2], in)))
	}, x, in)
}

// MLP is the feed-forward part.
type MLP struct {
	CFC   *Conv1D     `nn:"c_fc"`
	CProj *Conv1D     `nn:"c_proj"`
	Drop  *nn.Dropout `nn:"dropout"`

	Activation string
}

func newMLP(in *nn.Init, cfg Config) *MLP {
	return &MLP{
		CFC:   newConv1D(in.Sub("c_fc"), cfg.NEmbd, cfg.inner(), cfg.InitializerRange),
		CProj: newConv1D(in.Sub("c_proj"), cfg.inner(), cfg.NEmbd, residualStd(cfg)),
		Drop:  &nn.Dropout{P: cfg.ResidPdrop}, Activation: cfg.ActivationFunction,
	}
}

// activations are the functions that config.json may name.
var activations = map[string]tensor.Activation{
	"gelu_new": tensor.ActivationGELUTanh,
	"gelu":     tensor.ActivationGELU,
	"relu":     tensor.ActivationReLU,
	"silu":     tensor.ActivationSiLU,
}

// Forward keeps x's shape.
func (m *MLP) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		h := m.CFC.activated(c, x, activations[m.Activation])
		return m.Drop.Forward(c, m.CProj.Forward(c, h))
	}, x)
}

// Conv1D is a linear layer whose weight is [in, out], as GPT-2's checkpoints have it.
type Conv1D struct {
	Weight *nn.Parameter `nn:"weight"`
	Bias   *nn.Parameter `nn:"bias"`
	nn.LoRA
}

// Traits marks parameters that only products read.
func (*Conv1D) Traits() nn.Traits { return nn.Traits{Projection: true, InOut: true} }

func newConv1D(in *nn.Init, nin, nout int, std float64) *Conv1D {
	return &Conv1D{Weight: in.Normal("weight", std, nin, nout), Bias: in.Full("bias", 0, nout)}
}

// Forward maps x [..., in] to [..., out].
func (l *Conv1D) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, l, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return l.Adapt(c, x, tensor.AddMM(c.Ctx, c.Param(l.Bias), x, c.Param(l.Weight)))
	}, x)
}

// activated is f(Forward), computed as one op.
func (l *Conv1D) activated(c *nn.Ctx, x *tensor.Tensor, f tensor.Activation) *tensor.Tensor {
	return nn.Unit1(c, l, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		if l.Adapted(c) {
			return nn.Activate(c, l.Adapt(c, x, tensor.AddMM(c.Ctx, c.Param(l.Bias), x, c.Param(l.Weight))), f)
		}
		return tensor.AddMMActivated(c.Ctx, c.Param(l.Bias), x, c.Param(l.Weight), f)
	}, x)
}
