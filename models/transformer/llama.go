// SPDX-License-Identifier: Apache-2.0

package transformer

// Llama (Touvron et al. 2023), whose architecture SmolLM, SmolLM2, TinyLlama and the distilled DeepSeek-R1 of it have.
func init() {
	register("llama", family{
		causal: "LlamaForCausalLM", classifier: "LlamaForSequenceClassification",
		defaults: `{"max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2, "attention_bias": false,
			"mlp_bias": false}`,
		harmless: []string{"is_llama_config"}, // SmolLM2
		spec: func(c *Config) spec {
			return spec{qkvBias: c.AttentionBias, outBias: c.AttentionBias, mlpBias: c.MLPBias}
		},
	})
}
