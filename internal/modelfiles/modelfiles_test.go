// SPDX-License-Identifier: Apache-2.0

package modelfiles

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// tensorOf is a tensor of F32 of one element's value.
type tensorOf struct {
	value float32
	dims  []uint64 // innermost first
}

// file is a GGUF file with metadata and tensors.
type file struct {
	keys    map[string]any
	tensors map[string]tensorOf
}

// small is a file of architecture llama with the tokenizer of some bytes.
func small() file {
	return file{
		keys: map[string]any{
			"general.architecture": "llama", "llama.context_length": 16, "llama.embedding_length": 8,
			"llama.feed_forward_length": 8, "llama.block_count": 1, "llama.attention.head_count": 2,
			"llama.attention.layer_norm_rms_epsilon": float32(1e-5),
			"tokenizer.ggml.model":                   "gpt2", "tokenizer.ggml.pre": "smollm",
			"tokenizer.ggml.tokens": []string{"</s>", "a", "b", "ab"}, "tokenizer.ggml.merges": []string{"a b"},
			"tokenizer.ggml.token_type": []int32{3, 1, 1, 1}, "tokenizer.ggml.eos_token_id": 0,
		},
		tensors: map[string]tensorOf{"token_embd.weight": {1, []uint64{8, 4}}},
	}
}

func (f file) write(t testing.TB) string {
	le := binary.LittleEndian
	text := func(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }
	out := append([]byte("GGUF"), 3, 0, 0, 0)
	out = le.AppendUint64(le.AppendUint64(out, uint64(len(f.tensors))), uint64(len(f.keys)))
	for _, key := range slices.Sorted(maps.Keys(f.keys)) {
		out = text(out, key)
		switch v := f.keys[key].(type) {
		case int:
			out = le.AppendUint32(le.AppendUint32(out, 5), uint32(int32(v)))
		case float32:
			out = le.AppendUint32(le.AppendUint32(out, 6), math.Float32bits(v))
		case bool:
			out = append(le.AppendUint32(out, 7), map[bool]byte{true: 1}[v])
		case string:
			out = text(le.AppendUint32(out, 8), v)
		case []string:
			out = le.AppendUint64(le.AppendUint32(le.AppendUint32(out, 9), 8), uint64(len(v)))
			for _, s := range v {
				out = text(out, s)
			}
		case []int32:
			out = le.AppendUint64(le.AppendUint32(le.AppendUint32(out, 9), 5), uint64(len(v)))
			for _, n := range v {
				out = le.AppendUint32(out, uint32(n))
			}
		case []float32:
			out = le.AppendUint64(le.AppendUint32(le.AppendUint32(out, 9), 6), uint64(len(v)))
			for _, x := range v {
				out = le.AppendUint32(out, math.Float32bits(x))
			}
		default:
			t.Fatalf("%s is %T", key, v)
		}
	}
	var elements []byte
	for _, name := range slices.Sorted(maps.Keys(f.tensors)) {
		x := f.tensors[name]
		out = le.AppendUint32(text(out, name), uint32(len(x.dims)))
		n := uint64(1)
		for _, d := range x.dims {
			out, n = le.AppendUint64(out, d), n*d
		}
		out = le.AppendUint64(le.AppendUint32(out, 0), uint64(len(elements)))
		for range n {
			elements = le.AppendUint32(elements, math.Float32bits(x.value))
		}
		for len(elements)%32 != 0 {
			elements = append(elements, 0)
		}
	}
	for len(out)%32 != 0 {
		out = append(out, 0)
	}
	path := filepath.Join(t.TempDir(), "x.gguf")
	require.NoError(t, os.WriteFile(path, append(out, elements...), 0o600))
	return path
}

// read reads a file of the model as JSON.
func read(t *testing.T, path, name string) map[string]any {
	text, err := ReadFile(filepath.Join(path, name), 1<<20)
	require.NoError(t, err)
	var m map[string]any
	require.NoError(t, json.Unmarshal(text, &m))
	return m
}

func TestConfig(t *testing.T) {
	path := small().write(t)
	require.Equal(t, map[string]any{"model_type": "llama", "vocab_size": 4., "hidden_size": 8., "intermediate_size": 8.,
		"num_hidden_layers": 1., "num_attention_heads": 2., "num_key_value_heads": 2., "head_dim": 4.,
		"max_position_embeddings": 16., "rms_norm_eps": 1e-5, "rope_theta": 10000., "tie_word_embeddings": true,
		"dtype": "float32", "bos_token_id": nil, "eos_token_id": 0., "pad_token_id": nil}, read(t, path, ConfigFile))
	require.Equal(t, map[string]any{"bos_token_id": nil, "eos_token_id": 0., "pad_token_id": nil},
		read(t, path, GenerationFile))
	for _, name := range []string{TemplateFile, "vocab.json", "model.safetensors"} {
		_, err := ReadFile(filepath.Join(path, name), 1<<20)
		require.ErrorIs(t, err, fs.ErrNotExist, name)
	}
	_, err := ReadFile(filepath.Join(path, ConfigFile), 10)
	require.ErrorContains(t, err, "bytes: want at most 10")
}

// Each setting of RoPE, and others, as config.json has them.
func TestSettings(t *testing.T) {
	for name, c := range map[string]struct {
		keys map[string]any
		want map[string]any
	}{
		"linear": {map[string]any{"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float32(4)},
			map[string]any{"rope_scaling": map[string]any{"rope_type": "linear", "factor": 4.}}},
		"yarn": {map[string]any{"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": float32(4),
			"llama.rope.scaling.original_context_length": 8, "llama.rope.freq_base": float32(1e6)},
			map[string]any{"rope_theta": 1e6, "rope_scaling": map[string]any{"rope_type": "yarn", "factor": 4.,
				"original_max_position_embeddings": 8.}}},
		"none": {map[string]any{"llama.rope.scaling.type": "none"}, nil},
		"window": {map[string]any{"llama.attention.sliding_window": 4, "llama.attention.head_count_kv": 1},
			map[string]any{"model_type": "mistral", "sliding_window": 4., "num_key_value_heads": 1.}},
		"layers alike": {map[string]any{"llama.attention.head_count_kv": []int32{1, 1}},
			map[string]any{"num_key_value_heads": 1.}},
		"turn": {map[string]any{"tokenizer.ggml.eot_token_id": 2, "tokenizer.ggml.bos_token_id": 1},
			map[string]any{"eos_token_id": []any{0., 2.}, "bos_token_id": 1.}},
		"turn of the template": {map[string]any{"tokenizer.ggml.tokens": []string{"</s>", "a", "b", "<|im_end|>"},
			"tokenizer.chat_template": "{{ m }}<|im_end|>", "tokenizer.ggml.merges": []string{}},
			map[string]any{"eos_token_id": []any{0., 3.}}},
	} {
		f := small()
		before := read(t, f.write(t), ConfigFile)
		maps.Copy(f.keys, c.keys)
		maps.Copy(before, c.want)
		require.Equal(t, before, read(t, f.write(t), ConfigFile), name)
	}
}

// The factors of Llama 3's RoPE are settings again; others are refused.
func TestRoPEOfLlama3(t *testing.T) {
	f := small()
	f.tensors["rope_freqs.weight"] = tensorOf{1, []uint64{2}}
	require.NotContains(t, read(t, f.write(t), ConfigFile), "rope_scaling", "all are 1")
	f.tensors["rope_freqs.weight"] = tensorOf{8, []uint64{2}}
	_, err := ReadFile(filepath.Join(f.write(t), ConfigFile), 1<<20)
	require.ErrorContains(t, err, "rope_freqs.weight has 8 at 0: want 1, of RoPE as Llama 3.1 has it")
}

// What is not understood is refused by name.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		keys map[string]any
		want string
	}{
		"architecture": {ConfigFile, map[string]any{"general.architecture": "mamba"},
			`general.architecture is "mamba": want one of gemma2, gemma3, gpt2, llama, olmo2, phi3, qwen2, qwen3, ` +
				`smollm3`},
		"missing": {ConfigFile, map[string]any{"llama.block_count": nil},
			"llama.block_count is missing: want a whole"},
		"negative": {ConfigFile, map[string]any{"llama.block_count": -1}, "llama.block_count is -1: want a whole"},
		"unknown": {ConfigFile, map[string]any{"llama.attention.temperature": 2},
			"llama.attention.temperature = 2 is unknown, and it may change what is computed"},
		"experts": {ConfigFile, map[string]any{"llama.expert_count": 8},
			"llama.expert_count is 8, which is not supported"},
		"layers differ": {ConfigFile, map[string]any{"llama.attention.head_count_kv": []int32{1, 2}},
			"llama.attention.head_count_kv differs from layer to layer"},
		"partial": {ConfigFile, map[string]any{"llama.rope.dimension_count": 2}, "of heads of 4: want the whole head"},
		"values":  {ConfigFile, map[string]any{"llama.attention.value_length": 2}, "want the same"},
		"scaling": {ConfigFile, map[string]any{"llama.rope.scaling.type": "longrope"},
			`rope.scaling.type is "longrope"`},
		"end": {ConfigFile, map[string]any{"tokenizer.ggml.eos_token_id": 9},
			"eos_token_id is 9: want one of the 4"},
		"no tokens": {TokenizerFile, map[string]any{"tokenizer.ggml.tokens": nil},
			"tokenizer.ggml.tokens is missing"},
		"kind": {TokenizerFile, map[string]any{"tokenizer.ggml.model": "t5"},
			`tokenizer.ggml.model is "t5": want gpt2`},
		"pre": {TokenizerFile, map[string]any{"tokenizer.ggml.pre": "falcon"},
			`tokenizer.ggml.pre is "falcon", so that it is not known how text is cut into words: want one of`},
		"no pre": {TokenizerFile, map[string]any{"tokenizer.ggml.pre": nil}, "tokenizer.ggml.pre is missing"},
		"twice": {TokenizerFile, map[string]any{"tokenizer.ggml.tokens": []string{"</s>", "a", "b", "a"}},
			`tokens 1 and 3 are both "a"`},
		"UTF-8": {TokenizerFile, map[string]any{"tokenizer.ggml.tokens": []string{"</s>", "a", "b", "\xff"}},
			`token 3 is "\xff", which is not UTF-8`},
		"types": {TokenizerFile, map[string]any{"tokenizer.ggml.token_type": []int32{1}},
			"tokenizer.ggml.token_type has 1 elements: want one for each of the 4 tokens"},
		"merge": {TokenizerFile, map[string]any{"tokenizer.ggml.merges": []string{"ab"}},
			`tokenizer.ggml.merges has "ab" at 0`},
		"scores": {TokenizerFile, map[string]any{"tokenizer.ggml.model": "llama"},
			"tokenizer.ggml.scores has 0 numbers: want one for each of the 4 tokens"},
		"bos": {TokenizerConfigFile, map[string]any{"tokenizer.ggml.add_bos_token": 1},
			"tokenizer.ggml.add_bos_token is 1: want true or false"},
		"template": {TemplateFile, map[string]any{"tokenizer.chat_template": 1},
			"tokenizer.chat_template is 1: want a text"},
	} {
		f := small()
		for key, v := range c.keys {
			if f.keys[key] = v; v == nil {
				delete(f.keys, key)
			}
		}
		path := f.write(t)
		_, err := ReadFile(filepath.Join(path, c.file), 1<<20)
		require.ErrorContains(t, err, c.want, name)
		require.ErrorContains(t, err, path, name)
		require.False(t, errors.Is(err, fs.ErrNotExist), name)
	}
}

// A tensor that the architecture does not have may change what is computed.
func TestUnknownTensors(t *testing.T) {
	f := small()
	set, err := OpenSet(f.write(t), "model")
	require.NoError(t, err)
	require.Equal(t, []string{"model.embed_tokens.weight"}, set.Names())
	require.NoError(t, set.Close())
	for _, name := range []string{"blk.0.ssm_a", "blk.0.attn_sinks.weight", "v.patch.weight"} {
		f.tensors[name] = tensorOf{1, []uint64{2}}
	}
	_, err = OpenSet(f.write(t), "model")
	require.ErrorContains(t, err, "unknown tensors: blk.0.attn_sinks.weight, blk.0.ssm_a, v.patch.weight: the "+
		"architecture llama has none of this name")
}

// FuzzModelFiles: the files of any GGUF file are made, or refused.
func FuzzModelFiles(f *testing.F) {
	for _, changed := range []map[string]any{nil, {"tokenizer.ggml.model": "llama",
		"tokenizer.ggml.scores": []float32{0, 0, -1, -2}, "tokenizer.chat_template": "{{ m }}"}, {
		"general.architecture": "gemma3"}, {"general.architecture": "phi3"}} {
		s := small()
		maps.Copy(s.keys, changed)
		data, err := os.ReadFile(s.write(f))
		require.NoError(f, err)
		f.Add(data)
	}
	path := filepath.Join(f.TempDir(), "x.gguf")
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(path, data, 0o600))
		for name := range writers {
			text, err := ReadFile(filepath.Join(path, name), 1<<24)
			if err == nil && name != TemplateFile {
				require.True(t, json.Valid(text))
			}
		}
		if set, err := OpenSet(path, "model"); err == nil {
			for _, name := range set.Names() {
				a, _ := set.Lookup(name)
				_, err := a.Read()
				require.NoError(t, err)
			}
			require.NoError(t, set.Close())
		}
	})
}
