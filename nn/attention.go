// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"cmp"
	"fmt"

	"github.com/lockstep-ml/lockstep/tensor"
)

// SplitHeads returns x [B,T,H·D] as [B,H,T,D] for heads of D = headDim elements, a view if x is contiguous.
func SplitHeads(c *Ctx, x *tensor.Tensor, headDim int) *tensor.Tensor {
	b, t, w := x.Size(0), x.Size(1), x.Size(2)
	if headDim < 1 || w%headDim != 0 {
		refuse(c, "nn.SplitHeads", "width %d does not divide into heads of %d", w, headDim)
	}
	return tensor.Transpose(c.Ctx, tensor.Reshape(c.Ctx, x, b, t, w/headDim, headDim), 1, 2)
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

// SegmentMask is KeyMask where texts share the rows of a batch: a token sees only those with the same number in
// segments [B,T]. mask [B,T] may be nil, and so may segments. The result is [B,1,T,T]. In a context with only some of
// the tokens it is [B,1,1,T], int32, and has the numbers, from 1 on, of the tokens that may be seen: the attention
// there compares them.
func SegmentMask(c *Ctx, mask, segments *tensor.Tensor) *tensor.Tensor {
	keys := KeyMask(c, mask)
	if segments == nil {
		return keys
	}
	if c.segments != nil {
		c.segments.Used = true
	}
	if segments.Dim() != 2 {
		refuse(c, "nn.SegmentMask", "segment_ids of shape %v: want [batch, tokens]", segments.Shape())
	}
	b, t := segments.Size(0), segments.Size(1)
	if c.Divided() {
		number := tensor.Reshape(c.Ctx, tensor.Cast(c.Ctx, segments, tensor.Int32), b, 1, 1, t)
		number = tensor.Add(c.Ctx, number, tensor.Scalar(c.Ctx, tensor.Int32, 1))
		if keys == nil {
			return number
		}
		return tensor.Mul(c.Ctx, number, tensor.Cast(c.Ctx, keys, tensor.Int32))
	}
	same := tensor.Eq(c.Ctx, tensor.Reshape(c.Ctx, segments, b, 1, t, 1), tensor.Reshape(c.Ctx, segments, b, 1, 1, t))
	if keys == nil {
		return same
	}
	return tensor.And(c.Ctx, same, keys)
}

// AttentionInput is what the attentions of a model read besides their x. Its fields may be nil.
type AttentionInput struct {
	Mask     *tensor.Tensor // Bool, broadcasts to [B,H,T,T], true where attention is allowed: see KeyMask
	Cos, Sin *tensor.Tensor // rotate queries and keys: see RoPE
	Cache    *KVLayer       // x continues what it holds
}

// AttentionUnit is Unit for modules that map x to one output and read in: attentions, and blocks that contain them.
func AttentionUnit(c *Ctx, m Module, forward func(c *Ctx, x *tensor.Tensor, in AttentionInput) *tensor.Tensor,
	x *tensor.Tensor, in AttentionInput) *tensor.Tensor {
	return Unit(c, m, func(c *Ctx, ts []*tensor.Tensor) []*tensor.Tensor {
		return []*tensor.Tensor{forward(c, ts[0], AttentionInput{ts[1], ts[2], ts[3], in.Cache})}
	}, x, in.Mask, in.Cos, in.Sin)[0] // handed in, so that they live until the module is recomputed
}

// AttentionConfig is what self-attention is like.
type AttentionConfig struct {
	Width, Heads int
	KVHeads      int // of keys and values; 0: Heads
	HeadDim      int // elements of a head; 0: Width/Heads
	NoQKVBias    bool
	NoOutBias    bool
	QKNorm       bool    // queries and keys pass an RMSNorm, head by head
	WideQKNorm   bool    // they pass one over all heads together, as in OLMo 2
	NormEps      float64 // of these norms; 0: RMSNorm's
	NormOffset   float64 // of these norms; see RMSNorm
	Std          float64 // of the weights at first; see LinearConfig
	Causal       bool
	Window       int     // only keys less than this many positions away are seen; 0: all
	Scale        float64 // of the scores; 0: 1/√HeadDim
	SoftCap      float64 // of the scaled scores, see tensor.AttentionOptions; 0: none
	DropoutP     float64 // of the attention weights, while training
}

// Attend computes attention between any projections: attention of queries q [B,H,T,D] over keys and values [B,Hkv,T,D],
// which are rotated and extend the cache if in says so. The result has the heads merged: [B,T,H·D]. The numbers of
// heads are those of q, k and v, so that a module with a part of the projections computes a part of the heads. Call it
// inside the Unit of a module.
func (cfg AttentionConfig) Attend(c *Ctx, q, k, v *tensor.Tensor, in AttentionInput) *tensor.Tensor {
	if in.Cache.joined() {
		if in.Cos != nil {
			q, k = rotate(c, q, in), rotate(c, k, in)
		}
		return cfg.attendJoined(c, q, k, v, in)
	}
	opt := tensor.AttentionOptions{Scale: cfg.Scale, SoftCap: cfg.SoftCap, Causal: cfg.Causal, Window: cfg.Window,
		Mask: in.Mask, QueryOffset: in.Cache.Len(), KeyOffset: in.Cache.Start(q.Size(2))}
	cfg.checkHeads(c, q.Size(1), k.Size(1))
	if c.drops() {
		opt.Dropout = cfg.DropoutP
	}
	if part := q.Size(1); opt.Dropout > 0 && cfg.Heads > 0 && part != cfg.Heads {
		if c.headPart < 0 {
			refuse(c, "nn.Attend", "dropout %g of attention weights with %d of %d heads: want a hook with the number "+
				"of the part (Hooks.HeadPart), or no dropout", opt.Dropout, part, cfg.Heads)
		}
		opt.FirstHead = c.headPart * part
	}
	if in.Cos != nil {
		q, k = rotate(c, q, in), rotate(c, k, in)
	}
	if opt.Mask != nil && opt.KeyOffset > 0 && opt.Mask.Size(-1) > 1 {
		opt.Mask = tensor.Slice(c.Ctx, opt.Mask, -1, opt.KeyOffset, opt.Mask.Size(-1))
	}
	k, v = in.Cache.Extend(c, k, v)
	return MergeHeads(c, c.attend(q, k, v, opt))
}

// checkHeads refuses a part of the queries' heads with another part of the keys': a head would read another one's keys.
func (cfg AttentionConfig) checkHeads(c *Ctx, queries, keys int) {
	if all := cmp.Or(cfg.KVHeads, cfg.Heads); cfg.Heads > 0 && queries*all != keys*cfg.Heads {
		refuse(c, "nn.Attend", "%d of %d heads of queries, and %d of %d of keys: want the same part of both", queries,
			cfg.Heads, keys, all)
	}
}

// MultiheadAttention is self-attention with separate projections of queries, keys,
// values and output (Vaswani et al. 2017), grouped if KVHeads < Heads. Its names are those of transformers' Llama and
// Qwen 3.
type MultiheadAttention struct {
	Q     *Linear  `nn:"q_proj"`
	K     *Linear  `nn:"k_proj"`
	V     *Linear  `nn:"v_proj"`
	Out   *Linear  `nn:"o_proj"`
	QNorm *RMSNorm `nn:"q_norm"` // nil: none
	KNorm *RMSNorm `nn:"k_norm"` // nil: none

	Config AttentionConfig
}

// NewMultiheadAttention makes self-attention. It panics unless there is a size of heads, given or because heads divide
// the width, and key heads divide heads.
func NewMultiheadAttention(in *Init, cfg AttentionConfig) *MultiheadAttention {
	wantPositive(in, "NewMultiheadAttention", size{"Width", cfg.Width}, size{"Heads", cfg.Heads})
	if cfg.KVHeads == 0 {
		cfg.KVHeads = cfg.Heads
	}
	if cfg.HeadDim == 0 && cfg.Width%cfg.Heads == 0 {
		cfg.HeadDim = cfg.Width / cfg.Heads
	}
	if cfg.HeadDim < 1 || cfg.KVHeads < 1 || cfg.Heads%cfg.KVHeads != 0 {
		panic(&tensor.Error{Op: "nn.NewMultiheadAttention", Msg: fmt.Sprintf("width %d, %d heads, %d key heads: "+
			"want a width that divides into heads, or a HeadDim, and heads that divide into key heads", cfg.Width,
			cfg.Heads, cfg.KVHeads)})
	}
	project := func(name string, heads int) *Linear {
		return NewLinear(in.Sub(name), LinearConfig{In: cfg.Width, Out: heads * cfg.HeadDim, NoBias: cfg.NoQKVBias,
			Std: cfg.Std})
	}
	m := &MultiheadAttention{Config: cfg, Q: project("q_proj", cfg.Heads), K: project("k_proj", cfg.KVHeads),
		V: project("v_proj", cfg.KVHeads), Out: NewLinear(in.Sub("o_proj"),
			LinearConfig{In: cfg.Heads * cfg.HeadDim, Out: cfg.Width, NoBias: cfg.NoOutBias, Std: cfg.Std})}
	norm := func(name string, heads int) *RMSNorm {
		return NewRMSNorm(in.Sub(name), RMSNormConfig{Dim: heads * cfg.HeadDim, Eps: cfg.NormEps,
			Offset: cfg.NormOffset})
	}
	switch {
	case cfg.WideQKNorm:
		m.QNorm, m.KNorm = norm("q_norm", cfg.Heads), norm("k_norm", cfg.KVHeads)
	case cfg.QKNorm:
		m.QNorm, m.KNorm = norm("q_norm", 1), norm("k_norm", 1)
	}
	return m
}

// Forward keeps x's shape [B,T,C].
func (m *MultiheadAttention) Forward(c *Ctx, x *tensor.Tensor, in AttentionInput) *tensor.Tensor {
	return AttentionUnit(c, m, func(c *Ctx, x *tensor.Tensor, in AttentionInput) *tensor.Tensor {
		q, k := m.heads(c, m.Q, m.QNorm, x), m.heads(c, m.K, m.KNorm, x)
		return m.Out.Forward(c, m.Config.Attend(c, q, k, m.heads(c, m.V, nil, x), in))
	}, x, in)
}

// Traits give the size of a head.
func (m *MultiheadAttention) Traits() Traits {
	return Traits{HeadDim: m.Config.HeadDim, Heads: m.Config.Heads, KVHeads: m.Config.KVHeads}
}

// heads projects x, and normalises the result, or each head of it, if there is a norm.
func (m *MultiheadAttention) heads(c *Ctx, project *Linear, norm *RMSNorm, x *tensor.Tensor) *tensor.Tensor {
	y := project.Forward(c, x)
	switch {
	case norm != nil && m.Config.WideQKNorm:
		y = norm.Forward(c, y)
	case norm != nil:
		y = norm.Forward(c, tensor.Reshape(c.Ctx, y, x.Size(0), x.Size(1), -1, m.Config.HeadDim))
		y = tensor.Flatten(c.Ctx, y, 2, 3)
	}
	return SplitHeads(c, y, m.Config.HeadDim)
}
