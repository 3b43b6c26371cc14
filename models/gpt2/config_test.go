// SPDX-License-Identifier: Apache-2.0

package gpt2_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func TestParseConfigDefaults(t *testing.T) {
	cfg, err := gpt2.ParseConfig([]byte(`{"n_layer": 3, "n_inner": 8, "unknown_field": [1]}`))
	require.NoError(t, err)
	want, inner := gpt2.DefaultConfig(), 8
	want.NLayer, want.NInner = 3, &inner
	require.Equal(t, want, cfg)

	text, err := os.ReadFile(filepath.Join("testdata", "tiny", "config.json"))
	require.NoError(t, err)
	cfg, err = gpt2.ParseConfig(text)
	require.NoError(t, err)
	require.Equal(t, 211, cfg.VocabSize)
	require.Equal(t, 48, cfg.NEmbd)
	require.Equal(t, 210, *cfg.EosTokenID)
}

func TestParseConfigErrors(t *testing.T) {
	for _, k := range []struct{ text, want string }{
		{`{`, "gpt2: config.json: line 1, column 2: the text ends too early: want }"},
		{`[]`, "gpt2: config.json: it is a list: want an object"},
		{`{"n_layer": "two"}`, `gpt2: config.json: n_layer is "two": want a whole number`},
		{`{"n_layer": null}`, "gpt2: config.json: n_layer is null: want a whole number"},
		{`{"n_layer": 1, "n_layer": 2}`, `gpt2: config.json: it has the key "n_layer" twice`},
		{`{"scale_attn_by_inverse_layer_idx": true}`,
			"gpt2: config.json: scale_attn_by_inverse_layer_idx = true is not supported: want false"},
		{`{"reorder_and_upcast_attn": true}`,
			"gpt2: config.json: reorder_and_upcast_attn = true is not supported: want false"},
		{`{"add_cross_attention": true}`, "gpt2: config.json: add_cross_attention = true is not supported: want false"},
		{`{"n_embd": 10, "n_head": 3}`, "gpt2: config: n_embd = 10, n_head = 3: want a positive multiple of n_head"},
		{`{"vocab_size": 0, "n_positions": -1, "n_layer": 0, "n_head": 0, "n_inner": 0, "activation_function": "swish",
			"resid_pdrop": 1, "embd_pdrop": -0.1, "attn_pdrop": 2, "layer_norm_epsilon": 0, "initializer_range": -1}`,
			"gpt2: config: vocab_size = 0: want at least 1; n_positions = -1: want at least 1; n_layer = 0: want at " +
				"least 1; " +
				"n_embd = 768, n_head = 0: want a positive multiple of n_head; n_inner = 0: want null or at least 1; " +
				`activation_function = "swish": want gelu_new, gelu, relu or silu; resid_pdrop = 1: want a probability in [0, 1); ` +
				"embd_pdrop = -0.1: want a probability in [0, 1); attn_pdrop = 2: want a probability in [0, 1); " +
				"layer_norm_epsilon = 0: want a positive number; initializer_range = -1: want at least 0"},
	} {
		_, err := gpt2.ParseConfig([]byte(k.text))
		require.EqualError(t, err, k.want)
	}
	_, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), gpt2.Config{})
	require.ErrorContains(t, err, "gpt2: config: vocab_size = 0: want at least 1; ")
	_, err = models.FromConfig(nn.NewInit(tensor.CPU(), 1), []byte(`{"model_type": "gpt2", "n_layer": 0}`))
	require.EqualError(t, err, "gpt2: config: n_layer = 0: want at least 1")
}

// The config.json that we write is read back as the same model, and carries what
// transformers looks for.
func TestConfigRoundTrip(t *testing.T) {
	cfg := smallConfig()
	cfg.TieWordEmbeddings, cfg.ScaleAttnWeights, cfg.ActivationFunction, cfg.EosTokenID = false, false, "silu", nil
	m := newModel(t, tensor.CPU(), cfg)
	text, err := models.ConfigJSON(m)
	require.NoError(t, err)
	back, err := gpt2.ParseConfig(text)
	require.NoError(t, err)
	require.Equal(t, cfg, back)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(text, &fields))
	require.Equal(t, "gpt2", fields["model_type"])
	require.Equal(t, []any{"GPT2LMHeadModel"}, fields["architectures"])
	require.EqualValues(t, cfg.NPositions, fields["n_ctx"])
	require.Equal(t, "float32", fields["torch_dtype"])
}
