// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/gguf"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/tensor"
)

// architectures are llama.cpp's names of the families.
var architectures = map[string]string{"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
	"smollm3": "smollm3", "olmo2": "olmo2", "phi3": "phi3", "gemma2": "gemma2", "gemma3_text": "gemma3"}

// architectureOf is that of a model, "" if llama.cpp has none.
func architectureOf(m models.Configured) string {
	switch m := m.(type) {
	case *transformer.Model:
		return architectures[m.Cfg.ModelType]
	case *gpt2.Model:
		return "gpt2"
	}
	return ""
}

// gpt2 sets the keys of GPT-2.
func (b *builder) gpt2(c *gpt2.Config) {
	b.want(c.ActivationFunction == "gelu_new", "activation_function %s: llama.cpp computes gelu_new",
		c.ActivationFunction)
	b.want(c.ScaleAttnWeights, "scale_attn_weights false: llama.cpp scales the scores of attention")
	inner := 4 * c.NEmbd
	if c.NInner != nil {
		inner = *c.NInner
	}
	b.own("block_count", gguf.Uint32(c.NLayer))
	b.own("context_length", gguf.Uint32(c.NPositions))
	b.own("embedding_length", gguf.Uint32(c.NEmbd))
	b.own("feed_forward_length", gguf.Uint32(inner))
	b.own("attention.head_count", gguf.Uint32(c.NHead))
	b.own("attention.layer_norm_epsilon", gguf.Float32(c.LayerNormEpsilon))
}

// decoder sets the keys of Llama and its relatives, and refuses what the architecture lacks.
func (b *builder) decoder(c *transformer.Config) {
	b.own("block_count", gguf.Uint32(c.NumHiddenLayers))
	b.own("context_length", gguf.Uint32(c.MaxPositions))
	b.own("embedding_length", gguf.Uint32(c.HiddenSize))
	b.own("feed_forward_length", gguf.Uint32(c.IntermediateSize))
	b.own("attention.head_count", gguf.Uint32(c.NumAttentionHeads))
	b.own("attention.head_count_kv", gguf.Uint32(c.NumKeyValueHeads))
	b.own("attention.layer_norm_rms_epsilon", gguf.Float32(c.RMSNormEps))
	b.own("rope.freq_base", gguf.Float32(c.RoPE.Theta))
	b.scaling(c)
	activation, name := "silu", cmp.Or(c.HiddenAct, c.HiddenActivation)
	if strings.HasPrefix(b.arch, "gemma") {
		activation = "gelu_pytorch_tanh"
	}
	same := name == activation || activation == "silu" && name == "swish" ||
		activation == "gelu_pytorch_tanh" && name == "gelu_new"
	b.want(same, "hidden_act %s: llama.cpp computes %s", name, activation)
	switch b.arch {
	case "llama", "smollm3", "qwen3", "gemma2", "gemma3":
		b.own("attention.key_length", gguf.Uint32(c.HeadDim))
		b.own("attention.value_length", gguf.Uint32(c.HeadDim))
	default:
		b.want(c.HeadDim*c.NumAttentionHeads == c.HiddenSize, "head_dim %d: llama.cpp has heads of "+
			"hidden_size/num_attention_heads = %d", c.HeadDim, c.HiddenSize/c.NumAttentionHeads)
	}
	if b.arch != "llama" {
		b.want(!c.AttentionBias, "attention_bias: llama.cpp has none")
		b.want(!c.MLPBias, "mlp_bias: llama.cpp has none")
	}
	if b.permuted {
		b.own("vocab_size", gguf.Uint32(c.VocabSize))
		b.own("rope.dimension_count", gguf.Uint32(c.HeadDim))
	}
	switch b.arch {
	case "llama":
		b.withoutWindow(c)
	case "smollm3":
		b.smollm3(c)
	case "qwen2", "qwen3":
		b.want(!windowed(c), "use_sliding_window: llama.cpp has no windows for it")
	case "phi3":
		b.phi3(c)
	case "gemma2":
		b.gemma(c, 2, 46)
	case "gemma3":
		b.gemma(c, 6, 62)
	}
}

// windowed reports whether a layer has a window.
func windowed(c *transformer.Config) bool {
	return c.SlidingWindow != nil && slices.Contains(c.LayerTypes, transformer.SlidingAttention)
}

// withoutWindow sets the window of an architecture for which llama.cpp computes none.
func (b *builder) withoutWindow(c *transformer.Config) {
	if c.SlidingWindow == nil {
		return
	}
	b.own("attention.sliding_window", gguf.Uint32(*c.SlidingWindow))
	if *c.SlidingWindow < c.MaxPositions {
		b.model.context = *c.SlidingWindow
		b.note("sliding_window is %d, and llama.cpp computes no window here: beyond so many tokens its results differ",
			*c.SlidingWindow)
	}
}

func (b *builder) smollm3(c *transformer.Config) {
	b.want(!windowed(c), "use_sliding_window: llama.cpp has no windows for it")
	for layer := range c.NumHiddenLayers {
		if rotated := (layer+1)%4 != 0; (c.NoRopeLayers[layer] != 0) != rotated {
			b.want(false, "no_rope_layers[%d] = %d: llama.cpp has RoPE in all layers but each fourth", layer,
				c.NoRopeLayers[layer])
			break
		}
	}
}

func (b *builder) phi3(c *transformer.Config) {
	if c.SlidingWindow == nil {
		b.own("attention.sliding_window", gguf.Uint32(0))
	}
	b.withoutWindow(c)
	rotated := c.HeadDim
	if c.RoPE.Partial != 0 {
		rotated = int(float64(c.HeadDim) * c.RoPE.Partial)
	}
	b.own("rope.dimension_count", gguf.Uint32(rotated))
	if c.OriginalPositions > 0 {
		b.own("rope.scaling.original_context_length", gguf.Uint32(c.OriginalPositions))
	}
}

// gemma sets the keys of Gemma 2 and 3: a window in all layers but each n-th, and, for the models of 27B parameters,
// which llama.cpp knows by their number of layers, another scale of attention.
func (b *builder) gemma(c *transformer.Config, n, layers int) {
	b.want(c.SlidingWindow != nil, "sliding_window null: llama.cpp's Gemma has windows")
	for layer, kind := range c.LayerTypes {
		if (kind == transformer.FullAttention) != ((layer+1)%n == 0) {
			b.want(false, "layer_types[%d] is %s: llama.cpp has a window in all layers but each %d.", layer, kind, n)
			break
		}
	}
	if c.SlidingWindow != nil {
		b.own("attention.sliding_window", gguf.Uint32(*c.SlidingWindow))
	}
	if local := c.LocalRoPE; local != nil {
		b.want(local.Type == "default", "rope_type %s of layers with a window: llama.cpp computes the default",
			local.Type)
		b.own("rope.freq_base_swa", gguf.Float32(local.Theta))
	}
	if limit := c.AttnSoftCap; b.arch == "gemma2" {
		b.want(limit != nil && *limit > 0 && c.FinalSoftCap != nil && *c.FinalSoftCap > 0, "attn_logit_softcapping or "+
			"final_logit_softcapping null: llama.cpp's Gemma 2 has both")
		if limit != nil {
			b.own("attn_logit_softcapping", gguf.Float32(*limit))
		}
	}
	if limit := c.FinalSoftCap; limit != nil && *limit > 0 {
		b.own("final_logit_softcapping", gguf.Float32(*limit))
	}
	scalar := c.HeadDim
	if c.NumHiddenLayers == layers {
		scalar = c.HiddenSize / c.NumAttentionHeads
	}
	b.want(c.QueryScalar == float64(scalar), "query_pre_attn_scalar %g: llama.cpp computes with %d", c.QueryScalar,
		scalar)
}

// scaling sets how RoPE is scaled.
func (b *builder) scaling(c *transformer.Config) {
	r := &c.RoPE
	factor := r.Factor
	if factor == 0 && r.OriginalPositions > 0 {
		factor = float64(c.MaxPositions) / float64(r.OriginalPositions)
	}
	if b.arch != "phi3" {
		b.want(r.Partial == 0 || r.Partial == 1, "partial_rotary_factor %g: llama.cpp rotates whole heads", r.Partial)
	}
	switch r.Type {
	case "default":
	case "linear":
		b.own("rope.scaling.type", gguf.Text("linear"))
		b.own("rope.scaling.factor", gguf.Float32(factor))
	case "yarn":
		b.want(r.AttentionFactor == nil && r.MScale == 0 && r.MScaleAllDim == 0, "attention_factor and mscale of "+
			"yarn: llama.cpp computes 0.1·ln(factor) + 1")
		b.want(r.Truncate == nil || *r.Truncate, "truncate false of yarn: llama.cpp truncates")
		b.own("rope.scaling.type", gguf.Text("yarn"))
		b.own("rope.scaling.factor", gguf.Float32(factor))
		b.own("rope.scaling.original_context_length", gguf.Uint32(r.OriginalPositions))
		if r.BetaFast > 0 {
			b.own("rope.scaling.yarn_beta_fast", gguf.Float32(r.BetaFast))
		}
		if r.BetaSlow > 0 {
			b.own("rope.scaling.yarn_beta_slow", gguf.Float32(r.BetaSlow))
		}
	case "llama3":
		b.want(b.arch == "llama", "rope_type llama3: llama.cpp has it for Llama alone")
		b.factors("rope_freqs.weight", llama3(c))
	case "longrope":
		b.want(b.arch == "phi3", "rope_type longrope: llama.cpp has it for Phi-3 alone")
		b.longRoPE(c, factor)
	default:
		b.want(false, "rope_type %s: llama.cpp has none, linear, yarn, llama3 and longrope", r.Type)
	}
}

// longRoPE sets the two lists of factors, of which llama.cpp takes one by the length of the context that it is given.
func (b *builder) longRoPE(c *transformer.Config, factor float64) {
	r := &c.RoPE
	magnitude := 1.0
	switch {
	case r.AttentionFactor != nil:
		magnitude = *r.AttentionFactor
	case factor > 1:
		magnitude = math.Sqrt(1 + math.Log(factor)/math.Log(float64(r.OriginalPositions)))
	}
	b.own("rope.scaling.attn_factor", gguf.Float32(magnitude))
	b.factors("rope_factors_long.weight", r.LongFactor)
	b.factors("rope_factors_short.weight", r.ShortFactor)
	b.note("llama.cpp takes the long or the short factors of longrope by the size of its context (more than %d tokens "+
		"or not), not by the length of a text", r.OriginalPositions)
}

// llama3 are the numbers by which Llama 3.1's RoPE divides its frequencies.
func llama3(c *transformer.Config) []float64 {
	r := &c.RoPE
	list := make([]float64, c.HeadDim/2)
	for i := range list {
		turns := float64(r.OriginalPositions) * math.Pow(r.Theta, -2*float64(i)/float64(c.HeadDim)) / (2 * math.Pi)
		smooth := min(max((turns-r.LowFreqFactor)/(r.HighFreqFactor-r.LowFreqFactor), 0), 1)
		list[i] = 1 / ((1-smooth)/r.Factor + smooth)
	}
	return list
}

// factors adds a tensor of settings, before the weights.
func (b *builder) factors(name string, list []float64) {
	var raw []byte
	for _, x := range list {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(x)))
	}
	t := gguf.NewTensor{Name: name, Shape: []int{len(list)}, Type: gguf.F32, DType: tensor.Float32,
		Elements: bytes.NewReader(raw)}
	b.model.tensors = slices.Insert(b.model.tensors, 0, t)
}
