// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/tensor"
)

// SplitHeads returns x [B,T,H·D] as [B,H,T,D], a view if x is contiguous.
func SplitHeads(c *Ctx, x *tensor.Tensor, heads int) *tensor.Tensor {
	b, t, w := x.Size(0), x.Size(1), x.Size(2)
	if heads < 1 || w%heads != 0 {
		panic(&tensor.Error{Op: "nn.SplitHeads", Msg: fmt.Sprintf("width %d does not divide into %d heads", w, heads),
			Where: c.Path()})
	}
	return tensor.Transpose(c.Ctx, tensor.Reshape(c.Ctx, x, b, t, heads, w/heads), 1, 2)
}

// MergeHeads is the inverse of SplitHeads; the output of tensor.Attention needs no copy.
func MergeHeads(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.Flatten(c.Ctx, tensor.Transpose(c.Ctx, x, 1, 2), 2, 3)
}

// KeyMask turns an attention mask [B,T], which is not 0 where a token may be seen, into one for attention, [B,1,1,T];
// nil stays nil.
func KeyMask(c *Ctx, mask *tensor.Tensor) *tensor.Tensor {
	if mask == nil {
		return nil
	}
	return tensor.Reshape(c.Ctx, tensor.Cast(c.Ctx, mask, tensor.Bool), mask.Size(0), 1, 1, mask.Size(1))
}

// AttentionConfig is what self-attention is like.
type AttentionConfig struct {
	Width, Heads int
	KVHeads      int // of keys and values; 0: Heads
	NoBias       bool
	Causal       bool
	Window       int     // only keys less than this many positions away are seen; 0: all
	DropoutP     float64 // of the attention weights, while training
}

// MultiheadAttention is self-attention with separate projections of queries, keys,
// values and output (Vaswani et al. 2017), grouped if KVHeads < Heads.
type MultiheadAttention struct {
	Q   *Linear `nn:"q_proj"`
	K   *Linear `nn:"k_proj"`
	V   *Linear `nn:"v_proj"`
	Out *Linear `nn:"o_proj"`

	Config AttentionConfig
}

// NewMultiheadAttention makes self-attention. It panics unless heads divide the width and
// key heads divide heads.
func NewMultiheadAttention(in *Init, cfg AttentionConfig) *MultiheadAttention {
	wantPositive(in, "NewMultiheadAttention", size{"Width", cfg.Width}, size{"Heads", cfg.Heads})
	if cfg.KVHeads == 0 {
		cfg.KVHeads = cfg.Heads
	}
	if cfg.Heads < 1 || cfg.KVHeads < 1 || cfg.Width%cfg.Heads != 0 || cfg.Heads%cfg.KVHeads != 0 {
		panic(&tensor.Error{Op: "nn.NewMultiheadAttention", Msg: fmt.Sprintf("width %d, %d heads, %d key heads: "+
			"want a width that divides into heads, and heads that divide into key heads", cfg.Width, cfg.Heads,
			cfg.KVHeads)})
	}
	project := func(name string, out int) *Linear {
		return NewLinear(in.Sub(name), LinearConfig{In: cfg.Width, Out: out, NoBias: cfg.NoBias})
	}
	kv := cfg.Width / cfg.Heads * cfg.KVHeads
	return &MultiheadAttention{Q: project("q_proj", cfg.Width), K: project("k_proj", kv), V: project("v_proj", kv),
		Out: project("o_proj", cfg.Width), Config: cfg}
}

// Forward keeps x's shape [B,T,C]. mask (may be nil) is Bool, broadcasts to [B,H,T,T],
// and is true where attention is allowed. With a cache (may be nil) x continues what it holds.
func (m *MultiheadAttention) Forward(c *Ctx, x, mask *tensor.Tensor, cache *KVLayer) *tensor.Tensor {
	return Unit(c, m, func(c *Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		x, cfg := in[0], m.Config
		opt := tensor.AttentionOptions{Causal: cfg.Causal, Window: cfg.Window, Mask: in[1], QueryOffset: cache.Len()}
		if c.Training {
			opt.Dropout = cfg.DropoutP
		}
		q := SplitHeads(c, m.Q.Forward(c, x), cfg.Heads)
		k, v := cache.Extend(c, SplitHeads(c, m.K.Forward(c, x), cfg.KVHeads),
			SplitHeads(c, m.V.Forward(c, x), cfg.KVHeads))
		y, _ := tensor.Attention(c.Ctx, q, k, v, opt)
		return []*tensor.Tensor{m.Out.Forward(c, MergeHeads(c, y))}
	}, x, mask)[0]
}
