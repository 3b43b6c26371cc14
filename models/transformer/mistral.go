// SPDX-License-Identifier: Apache-2.0

package transformer

// Mistral (Jiang et al. 2023): Llama with grouped queries and, if sliding_window is not null, a window in all layers.
func init() {
	register("mistral", family{
		causal: "MistralForCausalLM", classifier: "MistralForSequenceClassification",
		defaults: `{"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
			"bos_token_id": 1, "eos_token_id": 2, "sliding_window": 4096}`,
		spec: func(c *Config) spec { return spec{windows: c.sameWindow()} },
	})
}
