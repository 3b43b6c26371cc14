// SPDX-License-Identifier: Apache-2.0

package export_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/gguf"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/export"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// What is written is read: the same configuration, weights, tokenizer and chat template, and a file of this file is the
// same file.
func TestRoundTrip(t *testing.T) {
	for name, model := range cases(t) {
		p := open(t, model)
		path := written(t, model, name, export.Options{DType: export.F32, Name: "x"})
		again := open(t, path)
		want, got := nn.NamedParameters(p.Model), nn.NamedParameters(again.Model)
		c := tensor.NewCtx(tensor.CPU()).NoGrad()
		at := map[string]tensor.Named{}
		for _, q := range got {
			at[q.Name] = q
		}
		for _, q := range want {
			same := tensor.ReadBytes(c, at[q.Name].Tensor)
			require.Equal(t, tensor.ReadBytes(c, q.Tensor), same, "%s %s", name, q.Name)
		}
		first, err := models.ConfigJSON(p.Model)
		require.NoError(t, err)
		second, err := models.ConfigJSON(again.Model)
		require.NoError(t, err)
		require.Equal(t, p.Model.ModelType(), again.Model.ModelType(), name)
		require.Equal(t, settings(t, first), settings(t, second), name)
		for id := range p.Tokenizer.VocabSize() {
			token, ok := p.Tokenizer.Token(int32(id))
			other, too := again.Tokenizer.Token(int32(id))
			require.Equal(t, ok, too, "%s %d", name, id)
			require.Equal(t, token, other, name)
		}
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		twice, err := os.ReadFile(written(t, path, name, export.Options{DType: export.F32, Name: "x"}))
		require.NoError(t, err)
		require.True(t, string(raw) == string(twice), name)
	}
}

// settings are the keys of a config.json that decide what is computed, where both files have them.
func settings(t *testing.T, text []byte) map[string]any {
	var all map[string]any
	require.NoError(t, json.Unmarshal(text, &all))
	for key := range strings.FieldsSeq(`torch_dtype dtype eos_token_id pad_token_id bos_token_id initializer_range
		architectures sliding_window_pattern resid_pdrop embd_pdrop attn_pdrop n_inner rope_parameters rope_scaling
		head_dim num_key_value_heads attention_dropout tie_word_embeddings`) {
		delete(all, key)
	}
	return all
}

// An adapter is merged as it is written: the file computes what the model does with it.
func TestAdapterIsMerged(t *testing.T) {
	for _, name := range []string{"phi3", "gpt2", "llama"} {
		model := cases(t)[name]
		p := open(t, model)
		a, err := lora.New(p.Model, lora.Config{R: 2, Alpha: 4, TargetModules: lora.ParseTargets("all-linear"),
			Init: lora.InitRandom, BaseModel: model})
		require.NoError(t, err)
		dir := t.TempDir()
		require.NoError(t, a.Save(dir))
		prompt := []int{5, 42, 17, 101}
		want := logitsOf(t, p.Model, prompt)
		path := written(t, model, name, export.Options{DType: export.F32, Adapter: dir})
		got := logitsOf(t, open(t, path).Model, prompt)
		without := logitsOf(t, open(t, model).Model, prompt)
		for i := range want {
			require.InDeltaSlice(t, want[i], got[i], 1e-5, name)
		}
		require.NotEqual(t, without, got, "a control")
	}
	_, err := export.Open(cases(t)["llama"], export.Options{Adapter: t.TempDir()})
	require.ErrorContains(t, err, "is not a saved adapter")
}

// changed is a copy of a saved model with other keys in a JSON file; nil deletes one.
func changed(t *testing.T, model, file string, keys map[string]any) string {
	p, dir := open(t, model), t.TempDir()
	require.NoError(t, models.SavePretrained(dir, p.Model, p.Files...))
	path := filepath.Join(dir, file)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var all map[string]any
	require.NoError(t, json.Unmarshal(text, &all))
	for key, v := range keys {
		at := all
		for {
			head, rest, deeper := strings.Cut(key, ".")
			if !deeper {
				break
			}
			at, key = at[head].(map[string]any), rest
		}
		if at[key] = v; v == nil {
			delete(at, key)
		}
	}
	text, err = json.Marshal(all)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return dir
}

// What llama.cpp would compute otherwise is refused by its name.
func TestRefusals(t *testing.T) {
	models := cases(t)
	for _, c := range []struct {
		model, file string
		keys        map[string]any
		want        string
	}{
		{"gpt2", "config.json", map[string]any{"activation_function": "relu"}, "activation_function relu: llama.cpp"},
		{"gpt2", "config.json", map[string]any{"scale_attn_weights": false}, "scale_attn_weights false"},
		{"llama", "config.json", map[string]any{"hidden_act": "gelu"}, "hidden_act gelu: llama.cpp computes silu"},
		{"llama", "config.json", map[string]any{"rope_scaling": map[string]any{"rope_type": "dynamic", "factor": 2}},
			"rope_type dynamic: llama.cpp has none, linear, yarn"},
		{"llama", "config.json", map[string]any{"rope_scaling": map[string]any{"rope_type": "yarn", "factor": 2,
			"attention_factor": 2}}, "attention_factor and mscale of yarn"},
		{"qwen3", "config.json", map[string]any{"rope_scaling": map[string]any{"rope_type": "llama3", "factor": 8,
			"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}},
			"rope_type llama3: llama.cpp has it for Llama alone"},
		{"qwen2", "config.json", map[string]any{"use_sliding_window": true, "sliding_window": 4, "max_window_layers": 0,
			"layer_types": nil}, "use_sliding_window: llama.cpp has no windows"},
		{"smollm3", "config.json", map[string]any{"no_rope_layers": []int{1, 0, 1, 1}},
			"no_rope_layers[1] = 0: llama.cpp has RoPE in all layers but each fourth"},
		{"gemma3", "config.json", map[string]any{"layer_types": []string{"full_attention", "full_attention",
			"full_attention", "full_attention", "full_attention", "full_attention"}},
			"layer_types[0] is full_attention"},
		{"gemma3", "config.json", map[string]any{"query_pre_attn_scalar": 7}, "query_pre_attn_scalar 7: llama.cpp"},
		{"llama", "tokenizer.json", map[string]any{"pre_tokenizer.pretokenizers": []map[string]any{
			{"type": "Digits", "individual_digits": false}, {"type": "ByteLevel", "add_prefix_space": false,
				"trim_offsets": true, "use_regex": true}}}, "for which llama.cpp has no name that is known here"},
		{"llama", "tokenizer.json", map[string]any{"model.ignore_merges": true}, "with ignore_merges true, for which"},
		{"llama", "tokenizer.json", map[string]any{"normalizer": map[string]any{"type": "Lowercase"}},
			`normalizer {"type":"Lowercase"}: llama.cpp has none`},
		{"phi3", "tokenizer.json", map[string]any{"normalizer": nil}, "spaces stay what they are"},
		{"phi3", "tokenizer.json", map[string]any{"model.merges": [][2]string{}}, "together, and no merge"},
	} {
		_, err := export.Open(changed(t, models[c.model], c.file, c.keys), export.Options{})
		require.ErrorContains(t, err, c.want, c.model)
		require.ErrorContains(t, err, "it cannot be written for llama.cpp: ")
	}
	_, err := export.Open(models["llama"], export.Options{DType: "q4_0"})
	require.ErrorContains(t, err, `dtype "q4_0": want one of [auto f32 f16 bf16 q8_0]`)
	_, err = export.Open(t.TempDir(), export.Options{})
	require.ErrorContains(t, err, "is not a saved model")
}

// Matrices whose rows are no whole blocks are f16, as in llama.cpp's converter, and one note has their number.
func TestRowsThatAreNoWholeBlocks(t *testing.T) {
	m, err := export.Open(gpt2OfWidth(t, 40, true), export.Options{DType: export.Q8_0})
	require.NoError(t, err)
	require.Equal(t, []string{"7 of 9 matrices are f16 and not q8_0: their rows are no multiple of 32 elements, its " +
		"blocks (token_embd.weight has 40)"}, m.Notes)
	m, err = export.Open(gpt2OfWidth(t, 40, true), export.Options{DType: export.F16})
	require.NoError(t, err)
	require.Empty(t, m.Notes)
}

// Places where no file can be, or must not be, are refused, and what is there stays.
func TestPlaces(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "source.gguf")
	raw, err := os.ReadFile(filepath.Join(ggufDir, "llama.gguf"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(source, raw, 0o600))
	there := filepath.Join(dir, "there.gguf")
	require.NoError(t, os.WriteFile(there, []byte("x"), 0o600))
	folder := filepath.Join(dir, "folder.gguf")
	require.NoError(t, os.Mkdir(folder, 0o700))
	alone := filepath.Join(t.TempDir(), "alone.gguf")
	require.NoError(t, os.WriteFile(alone, raw, 0o600))
	m, err := export.Open(source, export.Options{})
	require.NoError(t, err)
	for path, want := range map[string]string{
		source:                          "is the model itself: want another name",
		folder:                          "is a folder: want the name of a file, such as " + folder + "/source-f32.gguf",
		filepath.Join(dir, "model.bin"): "want a name that ends in .gguf",
		filepath.Join(there, "a.gguf"):  "not a directory",
		"/dev/null/a.gguf":              "not a directory",
		filepath.Join(folder, "..", "there.gguf"): "exists: want another name, or --overwrite",
	} {
		for _, overwrite := range []bool{false, true} {
			if overwrite && strings.HasPrefix(want, "exists") {
				continue
			}
			err := m.Write(context.Background(), path, export.WriteOptions{Overwrite: overwrite})
			require.ErrorContains(t, err, want)
		}
	}
	require.NoError(t, m.Write(context.Background(), there, export.WriteOptions{Overwrite: true}))
	deep := filepath.Join(dir, "a", "b", "c.gguf")
	require.NoError(t, m.Write(context.Background(), deep, export.WriteOptions{}))
	same, err := os.ReadFile(source)
	require.NoError(t, err)
	require.Equal(t, raw, same)

	folderOfOne, err := export.Open(filepath.Dir(alone), export.Options{})
	require.NoError(t, err)
	err = folderOfOne.Write(context.Background(), filepath.Join(filepath.Dir(alone), "b.gguf"), export.WriteOptions{})
	require.ErrorContains(t, err, "with a second file would stand for none")
}

// What was begun is removed when writing ends early.
func TestNothingIsLeftHalfWritten(t *testing.T) {
	m, err := export.Open(filepath.Join(ggufDir, "llama.gguf"), export.Options{DType: export.Q8_0})
	require.NoError(t, err)
	dir := t.TempDir()
	ctx, cancel := context.WithCancelCause(context.Background())
	stopped := errors.New("stopped")
	err = m.Write(ctx, filepath.Join(dir, "x.gguf"), export.WriteOptions{Progress: func(done, _ int64) {
		cancel(stopped)
	}})
	require.ErrorIs(t, err, stopped)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// A file of a file with its keys is what the reader finds in it.
func TestMetadata(t *testing.T) {
	path := written(t, cases(t)["gpt2"], "gpt2", export.Options{DType: export.Q8_0, Name: "A name"})
	f, err := gguf.Open(vfs.OS, path)
	require.NoError(t, err)
	defer f.Close()
	for key, want := range map[string]string{"general.architecture": `"gpt2"`, "general.type": `"model"`,
		"general.name": `"A name"`, "general.size_label": `"37K"`, "general.file_type": "7", "gpt2.block_count": "2",
		"gpt2.context_length": "64", "gpt2.feed_forward_length": "128", "gpt2.attention.layer_norm_epsilon": "1e-05",
		"tokenizer.ggml.model": `"gpt2"`, "tokenizer.ggml.pre": `"gpt-2"`, "tokenizer.ggml.add_bos_token": "false",
		"tokenizer.ggml.eos_token_id": "0", "tokenizer.chat_template": "missing"} {
		require.Equal(t, want, f.Metadata[key].String(), key)
	}
	types := map[string]gguf.Type{}
	for _, tensor := range f.Tensors {
		types[tensor.Name] = tensor.Type
	}
	require.Equal(t, gguf.Q8_0, types["token_embd.weight"])
	require.Equal(t, gguf.Q8_0, types["blk.1.attn_qkv.weight"])
	for _, name := range []string{"position_embd.weight", "output_norm.weight", "blk.0.ffn_up.bias"} {
		require.Equal(t, gguf.F32, types[name], name)
	}
	tokens, _ := f.Metadata["tokenizer.ggml.tokens"].Texts()
	require.Equal(t, "[PAD299]", tokens[299])
}

// FuzzWritten: whatever becomes of a file that was written here, it is loaded, or refused by an error that names it, in
// memory that its size accounts for; the same is true of another export of it.
func FuzzWritten(f *testing.F) {
	for name, o := range map[string]export.Options{"gpt2": {DType: export.F16}, "llama": {DType: export.Q8_0},
		"phi3": {DType: export.BF16}, "gemma2": {DType: export.F32}} {
		text, err := os.ReadFile(written(f, cases(f)[name], name, o))
		require.NoError(f, err)
		f.Add(text)
	}
	path := filepath.Join(f.TempDir(), "x.gguf")
	f.Fuzz(func(t *testing.T, text []byte) {
		require.NoError(t, os.WriteFile(path, text, 0o600))
		before := tensor.CPU().MemStats().InUse
		_, err := models.OpenPretrained[language](tensor.CPU(), path, "a language model")
		if err != nil {
			require.ErrorContains(t, err, path)
		}
		require.LessOrEqual(t, tensor.CPU().MemStats().InUse-before, int64(16*len(text)+1<<20))
		if m, err := export.Open(path, export.Options{DType: export.Q8_0}); err == nil {
			out := filepath.Join(t.TempDir(), "y.gguf")
			if err := m.Write(context.Background(), out, export.WriteOptions{}); err == nil {
				require.FileExists(t, out)
			}
		}
	})
}
