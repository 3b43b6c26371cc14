// SPDX-License-Identifier: Apache-2.0

// Package transformer is the decoder of Llama and its relatives (Llama, Qwen 2, Qwen 3, Mistral, SmolLM3, Gemma 2,
// Gemma 3, Phi-3, OLMo 2): one stack with a configuration for each family. Use it to train or fine-tune these language
// models, or a classifier on one. Start with [ParseConfig] or [DefaultConfig], and [New]; models.LoadPretrained reads
// the folders that transformers writes, and transformers reads ours.
//
// Each family registers itself with package models under its model_type. An unknown key of config.json is an error that
// names it, because it may change results.
package transformer

import (
	"fmt"
	"strconv"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Decoder is the stack without a head.
type Decoder struct {
	Embed  *nn.Embedding `nn:"embed_tokens"`
	Layers []*Block      `nn:"layers"`
	Norm   *nn.RMSNorm   `nn:"norm"`

	Cfg Config
}

// spec is what the stack computes.
func (d *Decoder) spec() spec { return families[d.Cfg.ModelType].spec(&d.Cfg) }

// Block is attention and a gated feed-forward part. Norms that its family does not have are nil.
type Block struct {
	InputNorm    *nn.RMSNorm            `nn:"input_layernorm"`
	Attn         *nn.MultiheadAttention `nn:"self_attn"`
	PostAttnNorm *nn.RMSNorm            `nn:"post_attention_layernorm"` // before the MLP; with PostMLPNorm behind Attn
	PreMLPNorm   *nn.RMSNorm            `nn:"pre_feedforward_layernorm"`
	MLP          *nn.GatedMLP           `nn:"mlp"`
	PostMLPNorm  *nn.RMSNorm            `nn:"post_feedforward_layernorm"`
}

func newDecoder(in *nn.Init, cfg Config) *Decoder {
	d := &Decoder{Cfg: cfg}
	s := d.spec()
	d.Embed = &nn.Embedding{Weight: in.Sub("embed_tokens").Normal("weight", cfg.InitializerRange, cfg.VocabSize,
		cfg.HiddenSize)}
	for i := range cfg.NumHiddenLayers {
		d.Layers = append(d.Layers, d.newBlock(in.Sub("layers").Sub(strconv.Itoa(i)), s, i))
	}
	d.Norm = d.newNorm(in.Sub("norm"), s)
	return d
}

func (d *Decoder) newNorm(in *nn.Init, s spec) *nn.RMSNorm {
	return nn.NewRMSNorm(in, nn.RMSNormConfig{Dim: d.Cfg.HiddenSize, Eps: d.Cfg.RMSNormEps, Offset: s.normOffset})
}

func (d *Decoder) newBlock(in *nn.Init, s spec, layer int) *Block {
	cfg := &d.Cfg
	std := max(cfg.InitializerRange, 1e-30) // 0 means another distribution there
	b := &Block{PostAttnNorm: d.newNorm(in.Sub("post_attention_layernorm"), s)}
	if s.norms != postNorm {
		b.InputNorm = d.newNorm(in.Sub("input_layernorm"), s)
	}
	if s.norms == sandwichNorm {
		b.PreMLPNorm = d.newNorm(in.Sub("pre_feedforward_layernorm"), s)
	}
	if s.norms != preNorm {
		b.PostMLPNorm = d.newNorm(in.Sub("post_feedforward_layernorm"), s)
	}
	b.Attn = nn.NewMultiheadAttention(in.Sub("self_attn"), nn.AttentionConfig{Width: cfg.HiddenSize,
		Heads: cfg.NumAttentionHeads, KVHeads: cfg.NumKeyValueHeads, HeadDim: cfg.HeadDim, NoQKVBias: !s.qkvBias,
		NoOutBias: !s.outBias, QKNorm: s.qkNorm, WideQKNorm: s.wideQKNorm, NormEps: cfg.RMSNormEps,
		NormOffset: s.normOffset, Std: std, Causal: true, Window: s.window(layer), Scale: s.attnScale,
		SoftCap: s.attnCap, DropoutP: cfg.AttentionDropout})
	b.MLP = nn.NewGatedMLP(in.Sub("mlp"), nn.GatedMLPConfig{Width: cfg.HiddenSize, Inner: cfg.IntermediateSize,
		NoBias: !s.mlpBias, Std: std, Activation: cfg.activationOf()})
	return b
}

// window is that of a layer, 0 for none.
func (s *spec) window(layer int) int {
	if s.windows == nil {
		return 0
	}
	return s.windows[layer]
}

// Forward keeps x's shape [B,T,C].
func (b *Block) Forward(c *nn.Ctx, x *tensor.Tensor, in nn.AttentionInput) *tensor.Tensor {
	return nn.AttentionUnit(c, b, func(c *nn.Ctx, x *tensor.Tensor, in nn.AttentionInput) *tensor.Tensor {
		before, behind := b.PostAttnNorm, (*nn.RMSNorm)(nil)
		if b.PostMLPNorm != nil {
			before, behind = b.PreMLPNorm, b.PostAttnNorm
		}
		x = tensor.Add(c.Ctx, x, normed(c, behind, b.Attn.Forward(c, lowered(c, b.InputNorm, x), in)))
		return tensor.Add(c.Ctx, x, normed(c, b.PostMLPNorm, b.MLP.Forward(c, lowered(c, before, x))))
	}, x, in)
}

// normed is x behind a norm, if there is one.
func normed(c *nn.Ctx, norm *nn.RMSNorm, x *tensor.Tensor) *tensor.Tensor {
	if norm == nil {
		return x
	}
	return norm.Forward(c, x)
}

// lowered is normed for results that only products read.
func lowered(c *nn.Ctx, norm *nn.RMSNorm, x *tensor.Tensor) *tensor.Tensor {
	if norm == nil {
		return x
	}
	return norm.Lowered(c, x)
}

// units are the blocks.
func (d *Decoder) units() []nn.Module {
	units := make([]nn.Module, len(d.Layers))
	for i, b := range d.Layers {
		units[i] = b
	}
	return units
}

// parts are the embeddings, the blocks, and the last norm with the head.
func (d *Decoder) parts(head nn.Module) []nn.Part {
	return models.BlockParts(nn.Part{d.Embed}, d.Layers, nn.Part{d.Norm, head})
}

// plan divides attention by its heads, the feed-forward part by its inner features, and the embeddings by tokens.
func (d *Decoder) plan(head, style string) map[string]string {
	s := d.spec()
	plan := map[string]string{"model.embed_tokens": "embedding_rowwise", head: style}
	for _, name := range []string{"q_proj", "k_proj", "v_proj"} {
		plan["model.layers.*.self_attn."+name] = "colwise"
		if s.wideQKNorm { // all heads are in one norm
			plan["model.layers.*.self_attn."+name] = "colwise_gather_output"
		}
	}
	plan["model.layers.*.self_attn.o_proj"] = "rowwise"
	switch {
	case s.wideQKNorm:
		plan["model.layers.*.self_attn.o_proj"] = "rowwise_split_input"
	case s.qkNorm:
		for _, name := range []string{"q_norm", "k_norm"} {
			plan["model.layers.*.self_attn."+name] = "replicated_with_grad_allreduce"
		}
	}
	plan["model.layers.*.mlp.gate_proj"], plan["model.layers.*.mlp.up_proj"] = "colwise", "colwise"
	plan["model.layers.*.mlp.down_proj"] = "rowwise"
	return plan
}

// weightMap reads and writes the fused projections of families that have them; arrays of old files that the model does
// not need are passed over.
func (d *Decoder) weightMap() []models.WeightRule {
	const layer = "model.layers.*."
	rules := []models.WeightRule{{Saved: layer + "self_attn.rotary_emb.inv_freq"}, {Saved: "model.rotary_emb.*"}}
	if !families[d.Cfg.ModelType].fused {
		return rules
	}
	for saved, names := range map[string][]string{
		"self_attn.qkv_proj.": {"self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."},
		"mlp.gate_up_proj.":   {"mlp.gate_proj.", "mlp.up_proj."},
	} {
		rule := models.WeightRule{Saved: layer + saved + "*"}
		for _, name := range names {
			rule.Params = append(rule.Params, layer+name+"*")
		}
		rules = append(rules, rule)
	}
	return rules
}

// forward maps x, the ids [B,T] or what a stage of a pipeline has received, to hidden states [B,T,C]. With a cache, ids
// continue what the cache holds.
func (d *Decoder) forward(c *nn.Ctx, ids, x, keys *tensor.Tensor, cache *nn.KVCache) *tensor.Tensor {
	return nn.Unit1(c, d, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		d.check(c, ids, cache)
		x = nn.RunPart1(c, nn.Part{d.Embed}, func(ids *tensor.Tensor) *tensor.Tensor { return d.embed(c, ids) }, x)
		in := d.inputs(c, ids, keys, cache.Len())
		for i, b := range d.Layers {
			x = nn.RunPart1(c, nn.Part{b}, func(x *tensor.Tensor) *tensor.Tensor {
				own := in(i)
				own.Cache = cache.Layer(i)
				return b.Forward(c, x, own)
			}, x)
		}
		cache.Advance(ids.Size(1))
		return nn.RunPart1(c, nn.Part{d.Norm}, func(x *tensor.Tensor) *tensor.Tensor { return d.Norm.Lowered(c, x) }, x)
	}, x)
}

// embed maps ids [B,T] to the input [B,T,C] of the blocks. As in transformers, the scale has the table's dtype.
func (d *Decoder) embed(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := d.Embed.Forward(c, ids)
	scale := d.spec().embedScale
	if scale == 0 {
		return x
	}
	return tensor.Mul(c.Ctx, x, tensor.Scalar(c.Ctx, x.DType(), scale))
}

// inputs are what the attention of each layer reads, except for its cache.
func (d *Decoder) inputs(c *nn.Ctx, ids, keys *tensor.Tensor, past int) func(layer int) nn.AttentionInput {
	positions := c.TokenPositions(ids, past)
	tables := func(r *RoPE) nn.AttentionInput {
		length := past + ids.Size(1)
		if r.byLength() {
			length = d.length(c, ids, past)
		}
		cos, sin := r.table(&d.Cfg, length).Tables(c, positions)
		return nn.AttentionInput{Mask: keys, Cos: cos, Sin: sin}
	}
	full := tables(&d.Cfg.RoPE)
	local := full
	if d.Cfg.LocalRoPE != nil {
		local = tables(d.Cfg.LocalRoPE)
	}
	s := d.spec()
	return func(layer int) nn.AttentionInput {
		switch {
		case s.unrotated != nil && s.unrotated[layer]:
			return nn.AttentionInput{Mask: keys}
		case s.window(layer) > 0:
			return local
		}
		return full
	}
}

// length is that of the longest sequence, which dynamic RoPE and LongRoPE depend on. Positions that are given are read
// from the device.
func (d *Decoder) length(c *nn.Ctx, ids *tensor.Tensor, past int) int {
	if c.Divided() {
		refuse(c, "%s RoPE depends on the length of the whole sequence, of which this rank has a part: want cp_size 1",
			d.Cfg.RoPE.Type)
	}
	if c.Positions == nil || c.Device().Name() == "meta" {
		return past + ids.Size(1)
	}
	longest := tensor.Max(c.Ctx, tensor.Reshape(c.Ctx, tensor.Cast(c.Ctx, c.Positions, tensor.Float32), -1), 0, false)
	return int(tensor.Item(c.Ctx, longest)) + 1
}

// check refuses ids that are no [B,T], or that no cache has room for.
func (d *Decoder) check(c *nn.Ctx, ids *tensor.Tensor, cache *nn.KVCache) {
	if ids.Dim() != 2 {
		refuse(c, "input_ids of shape %v: want [batch, tokens]", ids.Shape())
	}
	if n := cache.Len() + ids.Size(1); cache != nil && n > cache.Cap() {
		refuse(c, "%d tokens after %d: want at most %d in all", ids.Size(1), cache.Len(), cache.Cap())
	}
}

func refuse(c *nn.Ctx, format string, args ...any) {
	panic(&tensor.Error{Op: "transformer.Forward", Msg: fmt.Sprintf(format, args...), Where: c.Path()})
}

// flops are the floating-point operations of a forward and a backward pass per token of context length t: 6 per weight
// of the matrix products, and attention's 12·t per layer and element of the heads, of which a window needs its part
// (Chowdhery et al. 2022, appendix B). head is the number of the head's weights.
func (d *Decoder) flops(t, head int) float64 {
	cfg := &d.Cfg
	heads, keys := cfg.NumAttentionHeads*cfg.HeadDim, cfg.NumKeyValueHeads*cfg.HeadDim
	layer := cfg.HiddenSize * (2*heads + 2*keys + 3*cfg.IntermediateSize)
	total := 6 * (float64(cfg.NumHiddenLayers)*float64(layer) + float64(head))
	s := d.spec()
	for i := range cfg.NumHiddenLayers {
		seen := t
		if w := s.window(i); w > 0 {
			seen = min(t, w)
		}
		total += 12 * float64(seen) * float64(heads)
	}
	return total
}
