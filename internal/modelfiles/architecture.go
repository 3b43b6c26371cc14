// SPDX-License-Identifier: Apache-2.0

package modelfiles

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/gguf"
)

// architecture is what a general.architecture of GGUF is in transformers.
type architecture struct {
	modelType string
	// blocks are transformers' names of what is in a block, where they differ from blockNames.
	blocks map[string]string
	// top and layers are transformers' names of what is outside of the blocks, and of the blocks; nil and "": topNames
	// and model.layers.
	top    map[string]string
	layers string
	// postNorm: a norm behind attention has its own name.
	postNorm bool
	// inOut: matrices are [in, out] in transformers.
	inOut bool
	// permuted: the rows of queries and keys lie in the order of a RoPE that turns neighbours.
	permuted bool
	// offset is what the file has added to the weights of norms.
	offset float32
	// own reads the keys that only this architecture has.
	own func(m *metadata, c settings)
	// config reads all keys, if those of most architectures are not its own.
	config func(m *metadata) settings
}

// settings are the keys of a config.json.
type settings map[string]any

// architectures are those of the families of models/transformer, as llama.cpp's converter writes them.
var architectures = map[string]architecture{
	"llama": {modelType: "llama", permuted: true, own: func(m *metadata, c settings) {
		biases(m, c, "mlp_bias")
		if w := m.numberOr("attention.sliding_window", 0); w > 0 { // Mistral 7B's first version
			c["model_type"], c["sliding_window"] = "mistral", w
		}
	}},
	"qwen2": {modelType: "qwen2"},
	"qwen3": {modelType: "qwen3", own: func(m *metadata, c settings) { biases(m, c, "") }},
	"smollm3": {modelType: "smollm3", permuted: true, own: func(m *metadata, c settings) {
		biases(m, c, "mlp_bias")
		c["no_rope_layer_interval"] = 4 // llama.cpp knows no other
	}},
	"olmo2": {modelType: "olmo2", postNorm: true, own: func(m *metadata, c settings) { biases(m, c, "") },
		blocks: map[string]string{"post_ffw_norm": "post_feedforward_layernorm"}},
	"phi3": {modelType: "phi3", own: phi3,
		blocks: map[string]string{"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}},
	"gemma2": {modelType: "gemma2", postNorm: true, offset: 1, own: gemma2, blocks: gemmaBlocks},
	"gemma3": {modelType: "gemma3_text", postNorm: true, offset: 1, own: gemma3, blocks: gemmaBlocks},
	"gpt2": {modelType: "gpt2", layers: "transformer.h.", inOut: true, config: gpt2Config,
		top: map[string]string{"token_embd": "transformer.wte", "position_embd": "transformer.wpe",
			"output_norm": "transformer.ln_f", "output": "lm_head"},
		blocks: map[string]string{"attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
			"ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}},
}

// gemmaBlocks are the names of Gemma's norms.
var gemmaBlocks = map[string]string{
	"ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}

// blockNames are the names of what is in a block.
var blockNames = map[string]string{
	"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
	"post_attention_norm": "post_attention_layernorm",
	"attn_q":              "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
	"attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
	"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}

// topNames are the names of what is outside of the blocks.
var topNames = map[string]string{
	"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
}

// The tensors that hold settings of RoPE.
const (
	ropeFreqs = "rope_freqs.weight"
	ropeLong  = "rope_factors_long.weight"
	ropeShort = "rope_factors_short.weight"
)

// architectureOf finds the architecture of a file.
func architectureOf(f *gguf.File) (name string, a architecture, err error) {
	v := f.Metadata["general.architecture"]
	name, _ = v.Text()
	a, ok := architectures[name]
	if !ok {
		return "", a, fmt.Errorf("general.architecture is %s: want one of %s", v,
			strings.Join(slices.Sorted(maps.Keys(architectures)), ", "))
	}
	return name, a, nil
}

// config is the config.json of a file.
func config(f *gguf.File) ([]byte, error) {
	name, a, err := architectureOf(f)
	if err != nil {
		return nil, err
	}
	m := &metadata{file: f, arch: name, used: map[string]bool{}}
	var c settings
	if a.config != nil {
		c = a.config(m)
	} else {
		c = m.decoder(&a)
	}
	embeddings, ok := f.Tensor("token_embd.weight")
	if !ok || len(embeddings.Shape) != 2 {
		return nil, errors.New("it has no tensor token_embd.weight of 2 dims: want a language model's file")
	}
	_, head := f.Tensor("output.weight")
	if c["model_type"] == nil {
		c["model_type"] = a.modelType
	}
	c["vocab_size"], c["tie_word_embeddings"] = embeddings.Shape[0], !head
	c["dtype"] = parametersOf(embeddings.Type)
	if err := m.err(); err != nil {
		return nil, err
	}
	vocab, err := readSpecial(f)
	if err != nil {
		return nil, err
	}
	vocab.ids(c)
	return encode(c)
}

// decoder reads the keys of Llama and its relatives.
func (m *metadata) decoder(a *architecture) settings {
	c := settings{
		"hidden_size":             m.number("embedding_length"),
		"intermediate_size":       m.number("feed_forward_length"),
		"num_hidden_layers":       m.number("block_count"),
		"num_attention_heads":     m.number("attention.head_count"),
		"max_position_embeddings": m.number("context_length"),
		"rms_norm_eps":            m.float("attention.layer_norm_rms_epsilon"),
	}
	c["num_key_value_heads"] = m.numberOr("attention.head_count_kv", c.int("num_attention_heads"))
	heads(m, c)
	m.passOver("vocab_size", "attention.causal", "tensor_data_layout", "rope.scaling.finetuned")
	for _, key := range []string{"expert_count", "expert_used_count", "leading_dense_block_count"} {
		m.only(key, 0, "mixtures of experts")
	}
	rope(m, c)
	if a.own != nil {
		a.own(m, c)
	}
	return c
}

// gpt2Config reads the keys of GPT-2.
func gpt2Config(m *metadata) settings {
	c := settings{
		"n_positions":         m.number("context_length"),
		"n_embd":              m.number("embedding_length"),
		"n_layer":             m.number("block_count"),
		"n_head":              m.number("attention.head_count"),
		"n_inner":             m.number("feed_forward_length"),
		"layer_norm_epsilon":  m.float("attention.layer_norm_epsilon"),
		"activation_function": "gelu_new", // llama.cpp computes no other
	}
	if n := m.numberOr("attention.head_count_kv", c.int("n_head")); n != c.int("n_head") {
		m.fault("gpt2.attention.head_count_kv is %d: want that of head_count, %d", n, c.int("n_head"))
	}
	m.passOver("vocab_size", "attention.causal", "tensor_data_layout")
	return c
}

func (c settings) int(key string) int {
	n, _ := c[key].(int)
	return n
}

// heads reads the width of a head. The whole head is rotated, except where partial RoPE is a setting.
func heads(m *metadata, c settings) {
	width := 0
	if n := c.int("num_attention_heads"); n > 0 {
		width = c.int("hidden_size") / n
	}
	dim := m.numberOr("attention.key_length", width)
	c["head_dim"] = dim
	if v := m.numberOr("attention.value_length", dim); v != dim {
		m.fault("%s.attention.value_length is %d and attention.key_length %d: want the same", m.arch, v, dim)
	}
	if rotated := m.numberOr("rope.dimension_count", dim); rotated != dim && m.arch != "phi3" {
		m.fault("%s.rope.dimension_count is %d, of heads of %d: want the whole head", m.arch, rotated, dim)
	}
}

// biases says which projections have biases.
func biases(m *metadata, c settings, mlp string) {
	if _, ok := m.file.Tensor("blk.0.attn_q.bias"); ok {
		c["attention_bias"] = true
	}
	if _, ok := m.file.Tensor("blk.0.ffn_up.bias"); ok && mlp != "" {
		c[mlp] = true
	}
}

// parametersOf is the dtype that config.json names: that of the embeddings, unless they are quantized.
func parametersOf(t gguf.Type) string {
	if dt := t.DType(); dt != dtype.Invalid {
		return dt.String()
	}
	return dtype.Float32.String()
}

func phi3(m *metadata, c settings) {
	width := 0
	if n := c.int("num_attention_heads"); n > 0 {
		width = c.int("hidden_size") / n
	}
	delete(c, "head_dim") // the config class has none
	if key := m.numberOr("attention.key_length", width); key != width {
		m.fault("phi3.attention.key_length is %d: want hidden_size/num_attention_heads = %d", key, width)
	}
	if rotated := m.numberOr("rope.dimension_count", width); rotated != width && width > 0 {
		c["partial_rotary_factor"] = float64(rotated) / float64(width)
	}
	if w := m.numberOr("attention.sliding_window", 0); w > 0 {
		c["sliding_window"] = w
	}
}

// gemma reads the keys of Gemma 2 and 3, of which the models of 27B parameters have so many layers.
func gemma(m *metadata, c settings, layers int) {
	c["sliding_window"] = m.numberOr("attention.sliding_window", 4096)
	c["query_pre_attn_scalar"] = c.int("head_dim")
	if n := c.int("num_attention_heads"); c.int("num_hidden_layers") == layers && n > 0 {
		c["query_pre_attn_scalar"] = c.int("hidden_size") / n
	}
}

func gemma2(m *metadata, c settings) {
	gemma(m, c, 46)
	c["attn_logit_softcapping"] = m.floatOr("attn_logit_softcapping", 50)
	c["final_logit_softcapping"] = m.floatOr("final_logit_softcapping", 30)
	m.only("attention.sliding_window_pattern", 2, "another order of layers with a window")
}

func gemma3(m *metadata, c settings) {
	m.number("attention.sliding_window")
	gemma(m, c, 62)
	c["rope_local_base_freq"] = m.floatOr("rope.freq_base_swa", 10_000)
	c["sliding_window_pattern"] = m.numberOr("attention.sliding_window_pattern", 6)
	m.only("attn_logit_softcapping", 0, "soft caps of scores")
	if limit := m.floatOr("final_logit_softcapping", 0); limit != 0 {
		c["final_logit_softcapping"] = limit
	}
}

// encode writes JSON as transformers does.
func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return out.Bytes(), err
}
