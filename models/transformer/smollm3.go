// SPDX-License-Identifier: Apache-2.0

package transformer

// SmolLM3 (2025): Llama with every fourth layer without RoPE (Yang et al. 2025, "Rope to Nope and Back Again").
func init() {
	register("smollm3", family{
		causal: "SmolLM3ForCausalLM", classifier: "SmolLM3ForSequenceClassification",
		defaults: `{"vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
			"num_key_value_heads": 4, "rope_theta": 2000000, "tie_word_embeddings": true, "bos_token_id": 128000,
			"eos_token_id": 128001, "pad_token_id": 128004, "use_sliding_window": false, "sliding_window": null,
			"no_rope_layers": null, "no_rope_layer_interval": 4, "layer_types": null, "attention_bias": false,
			"mlp_bias": false}`,
		harmless: []string{"max_window_layers"},
		resolve: func(c *Config) {
			if c.NoRopeLayers == nil {
				for layer := range min(c.NumHiddenLayers, maxLayers) {
					rotated := 1
					if c.NoRopeInterval > 0 && (layer+1)%c.NoRopeInterval == 0 {
						rotated = 0
					}
					c.NoRopeLayers = append(c.NoRopeLayers, rotated)
				}
			}
			c.fillLayerTypes(func(layer int) bool {
				return c.UseSlidingWindow && c.SlidingWindow != nil && layer < len(c.NoRopeLayers) &&
					c.NoRopeLayers[layer] == 0
			})
		},
		spec: func(c *Config) spec {
			s := spec{qkvBias: c.AttentionBias, outBias: c.AttentionBias, mlpBias: c.MLPBias,
				unrotated: make([]bool, c.NumHiddenLayers)}
			if c.UseSlidingWindow {
				s.windows = c.slidingWindows()
			}
			for layer := range s.unrotated {
				s.unrotated[layer] = c.NoRopeLayers[layer] == 0
			}
			return s
		},
	})
}
