// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models/transformer"
)

func TestCompare(t *testing.T) {
	var out bytes.Buffer
	b := bench{threads: 1, rounds: 1, batch: 1, tokens: 4, out: &out}
	require.NoError(t, b.compare("qwen3", `{"model_type": "qwen3", "hidden_size": 8, "intermediate_size": 16,
		"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 50}`))
	require.Regexp(t, `(?m)^qwen3 +\S+ s$`, out.String())
}

func TestFamilies(t *testing.T) {
	for name, config := range families {
		cfg, err := transformer.ParseConfig([]byte(config))
		require.NoError(t, err, name)
		require.Equal(t, name, cfg.ModelType)
	}
}
