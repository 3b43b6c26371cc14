// SPDX-License-Identifier: Apache-2.0

package transformer

// OLMo 2 (Team OLMo 2024): norms behind attention and MLP alone, and norms of all queries and all keys of a token.
func init() {
	register("olmo2", family{
		causal: "Olmo2ForCausalLM", classifier: "Olmo2ForSequenceClassification",
		defaults: `{"vocab_size": 50304, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "pad_token_id": 1,
			"eos_token_id": 50279, "attention_bias": false}`,
		spec: func(c *Config) spec {
			return spec{norms: postNorm, wideQKNorm: true, qkvBias: c.AttentionBias, outBias: c.AttentionBias}
		},
	})
}
