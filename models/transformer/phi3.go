// SPDX-License-Identifier: Apache-2.0

package transformer

// Phi-3 and Phi-4 (Abdin et al. 2024): Llama whose projections are saved as fused matrices, and LongRoPE.
func init() {
	none := []string{"0", "0.0", "null"}
	register("phi3", family{
		causal: "Phi3ForCausalLM", classifier: "Phi3ForSequenceClassification",
		defaults: `{"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
			"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
			"bos_token_id": 1, "eos_token_id": 32000, "pad_token_id": 32000, "sliding_window": null,
			"partial_rotary_factor": 1}`,
		only: map[string][]string{"resid_pdrop": none, "embd_pdrop": none, "attention_bias": {"false"},
			"mlp_bias": {"false"}, "lm_head_bias": {"false"}, "full_attn_mod": {"1"}},
		harmless: []string{"interpolate_factor"},
		spec:     func(c *Config) spec { return spec{windows: c.sameWindow()} },
		fused:    true,
	})
}
