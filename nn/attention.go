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
		panic(&tensor.Error{Op: "nn.SplitHeads", Msg: fmt.Sprintf("width %d does not divide into %d heads", w, heads), Where: c.Path()})
	}
	return tensor.Transpose(c.Ctx, tensor.Reshape(c.Ctx, x, b, t, heads, w/heads), 1, 2)
}

// MergeHeads is the inverse of SplitHeads; the output of tensor.Attention needs no copy.
func MergeHeads(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return tensor.Flatten(c.Ctx, tensor.Transpose(c.Ctx, x, 1, 2), 2, 3)
}

// MultiheadAttention is self-attention with separate projections of queries, keys,
// values and output (Vaswani et al. 2017), grouped if KVHeads < Heads.
type MultiheadAttention struct {
	Q   *Linear `nn:"q_proj"`
	K   *Linear `nn:"k_proj"`
	V   *Linear `nn:"v_proj"`
	Out *Linear `nn:"o_proj"`

	Heads, KVHeads int
	Causal         bool
	Window         int     // only keys less than this many positions away are seen; 0: all
	DropoutP       float64 // of the attention weights, while training
}

// NewMultiheadAttention makes self-attention over the given width. It panics unless heads
// divides width and kvHeads divides heads.
func NewMultiheadAttention(in *Init, width, heads, kvHeads int, bias, causal bool) *MultiheadAttention {
	if heads < 1 || kvHeads < 1 || width%heads != 0 || heads%kvHeads != 0 {
		panic(&tensor.Error{Op: "nn.NewMultiheadAttention", Msg: fmt.Sprintf(
			"width %d, %d heads, %d key heads: want a width that divides into heads, and heads that divide into key heads", width, heads, kvHeads)})
	}
	kv := width / heads * kvHeads
	return &MultiheadAttention{
		Q: NewLinear(in.Sub("q_proj"), width, width, bias), K: NewLinear(in.Sub("k_proj"), width, kv, bias),
		V: NewLinear(in.Sub("v_proj"), width, kv, bias), Out: NewLinear(in.Sub("o_proj"), width, width, bias),
		Heads: heads, KVHeads: kvHeads, Causal: causal,
	}
}

// Forward keeps x's shape [B,T,C]. mask (may be nil) is Bool, broadcasts to [B,H,T,T],
// and is true where attention is allowed.
func (m *MultiheadAttention) Forward(c *Ctx, x, mask *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, m, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		opt := tensor.AttentionOptions{Causal: m.Causal, Window: m.Window, Mask: mask}
		if c.Training {
			opt.Dropout = m.DropoutP
		}
		q := SplitHeads(c, m.Q.Forward(c, x), m.Heads)
		k := SplitHeads(c, m.K.Forward(c, x), m.KVHeads)
		v := SplitHeads(c, m.V.Forward(c, x), m.KVHeads)
		y, _ := tensor.Attention(c.Ctx, q, k, v, opt)
		return m.Out.Forward(c, MergeHeads(c, y))
	}, x)
}
