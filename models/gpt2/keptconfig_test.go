// SPDX-License-Identifier: Apache-2.0

package gpt2_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// What transformers wrote into config.json is there, in its order, after a model was loaded and saved.
func TestLoadedConfigIsKept(t *testing.T) {
	const dir = "testdata/tiny"
	original, err := os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	m, err := models.LoadPretrained(tensor.CPU(), dir)
	require.NoError(t, err)
	saved, err := models.ConfigJSON(m)
	require.NoError(t, err)
	keys := func(text []byte) map[string]any {
		var all map[string]any
		require.NoError(t, json.Unmarshal(text, &all))
		return all
	}
	want, got := keys(original), keys(saved)
	for key, v := range want {
		require.Equal(t, v, got[key], key)
	}
	require.Contains(t, want, "transformers_version", "a key that the model does not read")
	require.Less(t, strings.Index(string(saved), `"activation_function"`), strings.Index(string(saved), `"vocab_size"`))

	clone, err := nn.Clone(m.(*gpt2.Model), tensor.CPU())
	require.NoError(t, err)
	again, err := models.ConfigJSON(clone)
	require.NoError(t, err)
	require.Equal(t, string(saved), string(again), "a rank's copy has it too")

	m.(*gpt2.Model).Cfg.ResidPdrop = 0.25
	saved, err = models.ConfigJSON(m)
	require.NoError(t, err)
	require.Equal(t, 0.25, keys(saved)["resid_pdrop"], "what the model does read is its own")
	require.Equal(t, want["transformers_version"], keys(saved)["transformers_version"])
}

func TestConfigOfTheNewerDTypeKey(t *testing.T) {
	m, err := models.FromConfig(nn.NewInit(tensor.CPU(), 1),
		[]byte(`{"model_type":"gpt2","vocab_size":8,"n_positions":4,"n_embd":4,"n_layer":1,"n_head":1}`))
	require.NoError(t, err)
	m.(*gpt2.Model).KeepConfig(`{"dtype":"bfloat16","task_specific_params":{"b":1,"a":[2]},"model_type":"gpt2"}`)
	text, err := models.ConfigJSON(m)
	require.NoError(t, err)
	require.Contains(t, string(text), `"dtype": "float32"`, "the dtype of the weights that are saved")
	require.NotContains(t, string(text), "torch_dtype")
	require.True(t, strings.HasPrefix(string(text), "{\n  \"dtype\""))
	require.Contains(t, string(text), "\"b\": 1,\n    \"a\"")
}

func TestSidecars(t *testing.T) {
	dir := t.TempDir()
	none, err := models.Sidecars(dir)
	require.NoError(t, err)
	require.Empty(t, none)
	for _, name := range []string{"tokenizer_config.json", "generation_config.json", "notes.txt", "model.safetensors"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	got, err := models.Sidecars(dir)
	require.NoError(t, err)
	require.Equal(t, []models.Sidecar{{Name: "tokenizer_config.json", Data: []byte("tokenizer_config.json")},
		{Name: "generation_config.json", Data: []byte("generation_config.json")}}, got)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "vocab.json"), 0o700))
	_, err = models.Sidecars(dir)
	require.ErrorContains(t, err, "vocab.json")
}
