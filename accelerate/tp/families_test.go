// SPDX-License-Identifier: Apache-2.0

package tp_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	_ "github.com/lockstep-ml/lockstep/models/transformer"
)

// The families of models/transformer train to the same bits on any number of ranks: those with grouped queries, with
// biases, with norms of queries and keys, with an embedding that is scaled and tied, and with soft caps.
func TestFamiliesKeepTheBits(t *testing.T) {
	for name, more := range map[string]string{
		"llama": `"attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true`,
		"qwen2": `"use_sliding_window": true, "sliding_window": 3, "max_window_layers": 1`,
		"qwen3": `"attention_dropout": 0.1`,
		"gemma2": `"sliding_window": 3, "attn_logit_softcapping": 0.5, "final_logit_softcapping": 0.7,
			"query_pre_attn_scalar": 6`,
		"gemma3_text": `"sliding_window": 3`,
		"olmo2":       `"rms_norm_eps": 1e-6`,
	} {
		s := settings{parts: 4, steps: 4, recompute: true, config: fmt.Sprintf(`{"model_type": %q, "vocab_size": %d,
			"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
			"num_key_value_heads": 4, "head_dim": 6, "max_position_embeddings": 7, %s}`, name, vocabulary, more)}
		one := s.run(t, 1)
		for _, ranks := range []int{2, 4} {
			require.Equal(t, one, s.run(t, ranks), "%s on %d ranks", name, ranks)
		}
		s.parts = 2
		require.NotEqual(t, one.hash, s.run(t, 2).hash, "%s: a control: other parts", name)
	}
}

// Ranks that do not add their gradients of norms of queries and keys, each of its heads, end with different weights.
func TestGradientsOfHeadsAreSums(t *testing.T) {
	s := settings{parts: 2, steps: 2, config: fmt.Sprintf(`{"model_type": "qwen3", "vocab_size": %d, "hidden_size": 32,
		"intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
		"head_dim": 6, "max_position_embeddings": 7}`, vocabulary)}
	require.Equal(t, s.run(t, 1), s.run(t, 2))
	s.plan = map[string]string{"model.layers.*.self_attn.q_norm": "replicate"}
	hashes, mu := map[string]bool{}, sync.Mutex{}
	require.NoError(t, local.Run(2, comm.Options{}, func(g *comm.Group) error {
		r, err := s.rank(t, g)
		mu.Lock()
		defer mu.Unlock()
		hashes[r.hash] = true
		return err
	}))
	require.Len(t, hashes, 2)
}
