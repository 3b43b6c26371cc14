// SPDX-License-Identifier: Apache-2.0

package transformer_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

var families = []string{"gemma2", "gemma3_text", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"}

// A family's defaults are those of transformers' config class, which testdata/configs.py wrote.
func TestDefaults(t *testing.T) {
	text, err := os.ReadFile("testdata/defaults.json")
	require.NoError(t, err)
	var want map[string]map[string]any
	require.NoError(t, json.Unmarshal(text, &want))
	for _, name := range families {
		cfg, err := transformer.DefaultConfig(name)
		require.NoError(t, err)
		m, err := transformer.New(nn.NewInit(tensor.NewMeta(), 1), cfg)
		require.NoError(t, err)
		text, err := models.ConfigJSON(m)
		require.NoError(t, err)
		var got map[string]any
		require.NoError(t, json.Unmarshal(text, &got))
		require.NotEmpty(t, want[name])
		for key, value := range want[name] {
			require.Equal(t, value, got[key], "%s: %s", name, key)
		}
	}
}

// Files of real models are read: those that transformers 4 wrote, and their notes and switches that change nothing.
func TestRealConfigs(t *testing.T) {
	text, err := os.ReadFile("testdata/configs.json")
	require.NoError(t, err)
	var all map[string]struct {
		Parameters int
		Config     json.RawMessage
	}
	require.NoError(t, json.Unmarshal(text, &all))
	require.Greater(t, len(all), 8)
	for name, c := range all {
		m, err := models.FromConfig(nn.NewInit(tensor.NewMeta(), 1), c.Config)
		require.NoError(t, err, name)
		require.Equal(t, c.Parameters, nn.NumParameters(m), name)
		text, err := models.ConfigJSON(m)
		require.NoError(t, err)
		_, err = transformer.ParseConfig(text)
		require.NoError(t, err, name)
	}
}

// The ledger names all keys that the family does not know, and all values that it does not compute.
func TestLedger(t *testing.T) {
	for _, k := range [][2]string{
		{`"shared_layers": 2, "altup": {}`, "config.json of llama: unknown: altup = {}, shared_layers = 2: this " +
			"family has no such key, and it may change what is computed: want a configuration without it"},
		{`"quantization_config": {"bits": 4}`, `quantization_config = {"bits": 4} is not supported: want null`},
		{`"rope_scaling": {"type": "yarn", "mrope_section": [1]}`, `it has the key "mrope_section", which is unknown`},
		{`"rope_scaling": {"rope_type": "spiral"}`, `rope_type = "spiral": want default, linear`},
		{`"rope_scaling": {"type": "linear"}`, "linear's factor = 0: want a positive number"},
		{`"hidden_act": "xielu"`, `hidden_act = "xielu": want one of gelu`},
		{`"architectures": ["LlamaForTokenClassification"]`, `want ["LlamaForCausalLM"] or ["LlamaForSeq`},
		{`"use_sliding_window": true`, "unknown: use_sliding_window"},
		{`"num_key_value_heads": 5`, "want a multiple"},
		{`"vocab_size": "many"`, `vocab_size is "many": want a whole number`},
		{`"hidden_size": null`, `hidden_size is null: want a whole number`},
		{`"hidden_size": 64, "hidden_size": 32`, `it has the key "hidden_size" twice`},
		{`"rope_scaling": {"type": "linear", "factor": 2, "factor": 4}`, `rope_scaling has the key "factor" twice`},
		{`"rope_theta": 0`, "rope_theta = 0: want a positive number"},
		{`"rope_theta": 0.0, "head_dim": 0`, "head_dim = 0: want a positive number; rope_theta = 0.0: want"},
		{`"rope_parameters": {"rope_type": "default", "rope_theta": 0}`, "rope_parameters.rope_theta = 0: want a pos"},
		{`"rope_theta": NaN`, "rope_theta: NaN is not a number in JSON"},
		{`"eos_token_id": [1, "x"]`, `eos_token_id[1] is "x": want a whole number`},
		{`"eos_token_id": "x"`, `eos_token_id is "x": want a token's number or a list of them`},
		{`"num_hidden_layers": 1000000000`, "want 1 to 10000"},
		{`"partial_rotary_factor": 0.01`, "want an even number"},
	} {
		_, err := transformer.ParseConfig([]byte(`{"model_type": "llama", ` + k[0] + `}`))
		require.ErrorContains(t, err, k[1])
	}
	_, err := transformer.ParseConfig([]byte(`{"model_type": "bart"}`))
	require.EqualError(t, err, `transformer: config.json: model_type "bart": want one of `+strings.Join(families, ", "))
	for extra, want := range map[string]string{`"use_bidirectional_attention": true`: "is not supported",
		`"final_logit_softcapping": 0`:  "final_logit_softcapping = 0: want null or a positive number",
		`"final_logit_softcapping": -1`: "final_logit_softcapping = -1: want null or a positive number",
	} {
		for _, family := range []string{"gemma2", "gemma3_text"} {
			_, err := transformer.ParseConfig([]byte(`{"model_type": "` + family + `", ` + extra + `}`))
			require.ErrorContains(t, err, want)
		}
	}
	_, err = transformer.ParseConfig([]byte(`{"model_type": "qwen2", "layer_types": ["linear_attention"],
		"num_hidden_layers": 1}`))
	require.ErrorContains(t, err, `layer_types[0] = "linear_attention"`)
}

// The spellings of transformers 4 and 5 are the same RoPE.
func TestRoPESpellings(t *testing.T) {
	parse := func(family, keys string) transformer.Config {
		cfg, err := transformer.ParseConfig([]byte(`{"model_type": "` + family + `", ` + keys + `}`))
		require.NoError(t, err)
		return cfg
	}
	const llama3 = `"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
		"original_max_position_embeddings": 8192, "rope_type": "llama3"`
	four := parse("llama", `"rope_theta": 500000.0, "rope_scaling": {`+llama3+`}`)
	require.Equal(t, four, parse("llama", `"rope_parameters": {"rope_theta": 500000.0, `+llama3+`}`))
	require.Equal(t, four, parse("llama", `"rope_theta": 500000.0, "rope_scaling": {`+
		strings.Replace(llama3, "rope_type", "type", 1)+`}`))
	require.Equal(t, 8192, four.RoPE.OriginalPositions)
	require.Equal(t, 10000.0, parse("llama", `"rope_scaling": null`).RoPE.Theta)
	require.Equal(t, 2e6, parse("smollm3", `"rope_scaling": null`).RoPE.Theta)

	gemma := parse("gemma3_text", `"rope_theta": 500.0, "rope_local_base_freq": 50.0,
		"rope_scaling": {"factor": 8.0, "rope_type": "linear"}`)
	require.Equal(t, gemma, parse("gemma3_text", `"rope_parameters": {"full_attention": {"factor": 8.0,
		"rope_theta": 500.0, "rope_type": "linear"}, "sliding_attention": {"rope_theta": 50.0}}`))
	require.Equal(t, "linear", gemma.RoPE.Type)
	require.Equal(t, "default", gemma.LocalRoPE.Type)
	require.Equal(t, 6, slices.Index(gemma.LayerTypes, transformer.FullAttention)+1)
	phi := parse("phi3", `"hidden_size": 64, "num_attention_heads": 4, "rope_scaling": {"type": "su",
		"short_factor": [1,1,1,1,1,1,1,1], "long_factor": [2,2,2,2,2,2,2,2]}`)
	require.Equal(t, "longrope", phi.RoPE.Type)
	require.Equal(t, 4096, phi.RoPE.OriginalPositions)
}

// Several eos tokens, one and none stay what they are.
func TestTokenIDs(t *testing.T) {
	for _, text := range []string{"[1,2]", "3", "null"} {
		var ids transformer.TokenIDs
		require.NoError(t, json.Unmarshal([]byte(text), &ids))
		again, err := json.Marshal(ids)
		require.NoError(t, err)
		require.Equal(t, text, string(again))
	}
	var ids transformer.TokenIDs
	require.Error(t, json.Unmarshal([]byte(`"x"`), &ids))
}

// A classifier is told from a language model by its class, and put on one.
func TestClassifierOn(t *testing.T) {
	cfg, err := transformer.ParseConfig([]byte(small(t, "qwen3", "")))
	require.NoError(t, err)
	in := nn.NewInit(tensor.CPU(), 1)
	m, err := transformer.New(in, cfg)
	require.NoError(t, err)
	pad := 10
	k, err := transformer.ClassifierOn(in, m, models.Labels("no", "yes"), &pad)
	require.NoError(t, err)
	require.Same(t, m.Decoder, k.Decoder)
	require.Equal(t, []string{"no", "yes"}, k.Labels())
	require.Equal(t, "Qwen3ForSequenceClassification", models.Architecture(k))
	_, err = transformer.New(in, k.Cfg)
	require.ErrorContains(t, err, "want NewClassifier")
	_, err = transformer.NewClassifier(in, cfg)
	require.ErrorContains(t, err, "no Labels")
	pad = 11
	_, err = transformer.ClassifierOn(in, m, models.Labels("no", "yes"), &pad)
	require.ErrorContains(t, err, fmt.Sprintf("pad_token_id = %d", pad))
}

// FuzzParseConfig requires an error or a model of any text, and the same configuration of what the model saves.
func FuzzParseConfig(f *testing.F) {
	for _, name := range families {
		f.Add(`{"model_type": "` + name + `", "num_hidden_layers": 2, "rope_scaling": {"type": "yarn", "factor": 2}}`)
		f.Add(`{"model_type": "` + name + `", "layer_types": ["sliding_attention"], "num_hidden_layers": 1}`)
	}
	f.Add(`{"model_type": "gemma3_text", "rope_parameters": {"full_attention": null}, "eos_token_id": [1, 2]}`)
	f.Add(`{"model_type": "phi3", "rope_scaling": {"type": "su", "short_factor": [1]}, "hidden_size": 4}`)
	f.Fuzz(func(t *testing.T, text string) {
		cfg, err := transformer.ParseConfig([]byte(text))
		if err != nil {
			return
		}
		require.NoError(t, cfg.Validate())
		if cfg.NumHiddenLayers > 8 || cfg.Labels != nil {
			return
		}
		m, err := transformer.New(nn.NewInit(tensor.NewMeta(), 1), cfg)
		if err != nil {
			return // it is too large
		}
		again, err := models.ConfigJSON(m)
		require.NoError(t, err)
		same, err := transformer.ParseConfig(again)
		require.NoError(t, err)
		require.Equal(t, cfg, same)
	})
}
