// SPDX-License-Identifier: Apache-2.0

package transformer

import "math"

// Gemma 2 (Gemma Team 2024): norms before and behind attention and MLP, of weights that begin at 0, soft caps of
// attention's scores and of logits, and a window in every other layer.
func init() {
	register("gemma2", family{
		causal: "Gemma2ForCausalLM", classifier: "Gemma2ForSequenceClassification",
		defaults: `{"vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
			"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_act": "",
			"hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192, "tie_word_embeddings": true,
			"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "attention_bias": false,
			"query_pre_attn_scalar": 256, "sliding_window": 4096, "layer_types": null,
			"final_logit_softcapping": 30, "attn_logit_softcapping": 50}`,
		harmless: []string{"cache_implementation", "sliding_window_size"},
		only:     map[string][]string{"use_bidirectional_attention": {"false", "null"}},
		resolve: func(c *Config) {
			c.HiddenAct = "" // files have both names, and the model reads the other
			c.fillLayerTypes(func(layer int) bool { return layer%2 == 0 })
		},
		spec: func(c *Config) spec {
			s := gemma(c)
			s.attnCap = value(c.AttnSoftCap)
			return s
		},
	})
}

// gemma is what Gemma 2 and 3 have in common.
func gemma(c *Config) spec {
	return spec{norms: sandwichNorm, normOffset: 1, qkvBias: c.AttentionBias, outBias: c.AttentionBias,
		embedScale: math.Sqrt(float64(c.HiddenSize)), attnScale: 1 / math.Sqrt(c.QueryScalar),
		finalCap: value(c.FinalSoftCap), windows: c.slidingWindows()}
}

// Gemma 3 (Gemma Team 2025), the text model: norms before and behind attention and MLP, of weights that begin at 0,
// norms of queries and keys, and five layers with a window for each one without, with their own RoPE.
func init() {
	register("gemma3_text", family{
		causal: "Gemma3ForCausalLM", classifier: "Gemma3TextForSequenceClassification",
		defaults: `{"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
			"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_act": "",
			"hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "rope_theta": 1000000,
			"rope_local_base_freq": 10000, "tie_word_embeddings": true, "bos_token_id": 2, "eos_token_id": 1,
			"pad_token_id": 0, "attention_bias": false, "query_pre_attn_scalar": 256, "sliding_window": 4096,
			"layer_types": null, "sliding_window_pattern": 6, "final_logit_softcapping": null}`,
		harmless: []string{"attn_logit_softcapping", "_sliding_window_pattern", "cache_implementation"},
		only:     map[string][]string{"use_bidirectional_attention": {"false", "null"}},
		resolve: func(c *Config) {
			c.HiddenAct = "" // files have both names, and the model reads the other
			c.fillLayerTypes(func(layer int) bool { return (layer+1)%max(c.SlidingPattern, 1) != 0 })
		},
		spec: func(c *Config) spec {
			s := gemma(c)
			s.qkNorm = true
			return s
		},
	})
}
