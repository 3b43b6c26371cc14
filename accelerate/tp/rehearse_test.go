// SPDX-License-Identifier: Apache-2.0

package tp_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// rehearse rehearses a model of a family on two ranks, by its plan with changes.
func rehearse(t *testing.T, family string, changes map[string]string) error {
	config := fmt.Sprintf(`{"model_type": %q, "vocab_size": 11, "hidden_size": 32, "intermediate_size": 64,
		"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 6,
		"max_position_embeddings": 7}`, family)
	if family == "gpt2" {
		config = `{"model_type": "gpt2", "vocab_size": 11, "n_positions": 7, "n_embd": 32, "n_layer": 2, "n_head": 4}`
	}
	m, err := models.FromConfig(nn.NewInit(tensor.NewMeta(), 1), []byte(config))
	require.NoError(t, err)
	text := m.(models.TensorParallel).TPPlan()
	for path, style := range changes {
		if text[path] = style; style == "" {
			delete(text, path)
		}
	}
	plan, err := tp.ParsePlan(maps.Clone(text))
	require.NoError(t, err)
	return plan.Rehearse(m, tp.Size{Ranks: 2, Parts: 2}, func(c *nn.Ctx, m nn.Module) {
		m.(models.Model).Forward(c, m.(models.Example).ExampleBatch(c.Ctx, 1, 5))
	})
}

// The plans that models bring fit, also with styles for their norms.
func TestPlansOfModelsFit(t *testing.T) {
	for _, family := range []string{"gpt2", "llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2", "phi3",
		"mistral"} {
		require.NoError(t, rehearse(t, family, nil), family)
	}
	require.NoError(t, rehearse(t, "gpt2", map[string]string{"transformer.h.*.ln_1": "sequence_parallel",
		"transformer.h.*.mlp.c_fc": "colwise_gather_output", "transformer.h.*.mlp.c_proj": "rowwise_split_input"}))
	require.NoError(t, rehearse(t, "llama", map[string]string{"model.layers.*.mlp.gate_proj": "colwise_gather_output",
		"model.layers.*.mlp.up_proj": "colwise_gather_output", "model.layers.*.mlp.down_proj": "rowwise_split_input"}))
}

// Layers whose rules do not fit each other are named before a step, also where the step would compute something else.
func TestRulesThatDoNotFit(t *testing.T) {
	const attn, mlp = "model.layers.*.self_attn.", "model.layers.*.mlp."
	for _, c := range []struct {
		family  string
		changes map[string]string
		want    string
	}{
		{"llama", map[string]string{mlp + "up_proj": "rowwise"}, "tp: model.layers.*.mlp.up_proj is rowwise, which " +
			"is for an input whose features are divided, and gets all of them from model.layers.*.self_attn.o_proj " +
			"(rowwise): want colwise or rowwise_split_input, or colwise in front of it"},
		{"llama", map[string]string{mlp + "down_proj": "replicate"}, "tp: model.layers.*.mlp.down_proj is replicate, " +
			"which is for a whole input, and gets a rank's part of its input ([1 5 32] of [1 5 64]) from " +
			"model.layers.*.mlp.up_proj (colwise): want rowwise, or colwise_gather_output for " +
			"model.layers.*.mlp.up_proj"},
		{"llama", map[string]string{mlp + "up_proj": "replicate"}, "tp: rules do not fit each other, where there are " +
			"a part from model.layers.*.mlp.gate_proj (colwise), and the whole from model.layers.*.mlp.up_proj " +
			"(replicate): tensor.SwiGLU"},
		{"llama", map[string]string{attn + "o_proj": "colwise"}, "o_proj is colwise, which is for a whole input"},
		{"llama", map[string]string{attn + "k_proj": "replicate", attn + "v_proj": "replicate"}, "a part from " +
			"model.layers.*.self_attn.q_proj (colwise), and the whole from model.layers.*.self_attn.v_proj " +
			"(replicate): nn.Attend: 4 of 8 heads of queries, and 2 of 2 of keys: want the same part of both"},
		{"qwen3", map[string]string{attn + "q_norm": ""}, "self_attn.q_norm has no rule, and gets a rank's part of " +
			"its input ([1 5 4 6] of [1 5 8 6]) from model.layers.*.self_attn.q_proj (colwise): want " +
			"replicated_with_grad_allreduce, or colwise_gather_output"},
		{"qwen3", map[string]string{"model.layers.*.input_layernorm": "replicated_with_grad_allreduce"},
			"input_layernorm is replicated_with_grad_allreduce, which is for an input whose features are " +
				"divided, and gets all of them from model.embed_tokens (embedding_rowwise): want " +
				"replicate, or colwise in front of it"},
		{"gpt2", map[string]string{"transformer.h.*.mlp.c_proj": "colwise", "transformer.h.*.mlp.c_fc": "replicate"},
			"a part from transformer.h.*.mlp.c_proj (colwise), and the whole from transformer.h.*.mlp.c_fc " +
				"(replicate): tensor.Add"},
		{"gpt2", map[string]string{"transformer.h.*.attn.c_attn": "colwise"}, "tp: transformer.h.0.attn.c_attn is " +
			"colwise, and has 12 heads in all, of an attention with 4 of queries and 4 of keys: want packed_colwise:3"},
	} {
		require.ErrorContains(t, rehearse(t, c.family, c.changes), c.want)
	}
}
