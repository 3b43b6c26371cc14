// SPDX-License-Identifier: Apache-2.0

package transformer_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models/modeltest"
)

// small is a configuration of small sizes, with more keys.
func small(t *testing.T, modelType, more string) string {
	cfg := map[string]any{"model_type": modelType, "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12,
		"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6,
		"max_position_embeddings": 8, "initializer_range": 0.3, "pad_token_id": 10}
	require.NoError(t, json.Unmarshal([]byte("{"+more+"}"), &cfg))
	text, err := json.Marshal(cfg)
	require.NoError(t, err)
	return string(text)
}

func TestSuite(t *testing.T) {
	for _, model := range []struct{ name, modelType, more string }{
		{"llama", "llama", `"attention_bias":true,"mlp_bias":true,"tie_word_embeddings":true`},
		{"llama classifier", "llama", `"architectures":["LlamaForSequenceClassification"],"num_labels":3`},
		{"mistral", "mistral", `"sliding_window":3`},
		{"qwen2", "qwen2", `"use_sliding_window":true,"sliding_window":3,"max_window_layers":1`},
		{"qwen3", "qwen3", `"attention_dropout":0.2`},
		{"smollm3", "smollm3", `"no_rope_layer_interval":2`},
		{"gemma2", "gemma2", `"sliding_window":3,"attn_logit_softcapping":2,"final_logit_softcapping":1.5`},
		{"gemma3", "gemma3_text", `"sliding_window":3,"sliding_window_pattern":2`},
		{"olmo2", "olmo2", ``},
		{"phi3", "phi3", `"rope_parameters":{"rope_type":"longrope","short_factor":[1,1.5,2],"long_factor":[2,3,4],
			"rope_theta":10000},"original_max_position_embeddings":4`},
		{"dynamic", "llama", `"rope_scaling":{"type":"dynamic","factor":2},"partial_rotary_factor":0.67`},
	} {
		t.Run(model.name, func(t *testing.T) { modeltest.Run(t, small(t, model.modelType, model.more), 8) })
	}
}
