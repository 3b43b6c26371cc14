// SPDX-License-Identifier: Apache-2.0

package transformer

// Qwen 2 and 2.5 (Yang et al. 2024) have biases in the projections to queries, keys and values; Qwen 3 (2025) has norms
// of queries and keys in their place.
func init() {
	const windows = `"use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28, "layer_types": null`
	const sizes = `{"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, `
	register("qwen2", family{
		causal: "Qwen2ForCausalLM", classifier: "Qwen2ForSequenceClassification",
		defaults: sizes + windows + `}`,
		only:     map[string][]string{"use_mrope": {"false"}},
		resolve:  resolveQwen,
		spec:     func(c *Config) spec { return spec{qkvBias: true, windows: c.slidingWindows()} },
	})
	register("qwen3", family{
		causal: "Qwen3ForCausalLM", classifier: "Qwen3ForSequenceClassification",
		defaults: sizes + `"head_dim": 128, "attention_bias": false, ` + windows + `}`,
		resolve:  resolveQwen,
		spec: func(c *Config) spec {
			return spec{qkNorm: true, qkvBias: c.AttentionBias, outBias: c.AttentionBias, windows: c.slidingWindows()}
		},
	})
}

// resolveQwen gives the layers from max_window_layers on the window, if it is used.
func resolveQwen(c *Config) {
	if !c.UseSlidingWindow {
		c.SlidingWindow = nil
	}
	c.fillLayerTypes(func(layer int) bool { return c.SlidingWindow != nil && layer >= c.MaxWindowLayers })
}
