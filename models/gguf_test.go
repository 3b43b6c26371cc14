// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

const ggufDir = "testdata/gguf"

// languageModel is what a GGUF file holds.
type languageModel interface {
	models.Configured
	models.Generator
	EndTokens() []int
}

func openGGUF(t *testing.T, path string, opts ...models.LoadOption) *models.Pretrained[languageModel] {
	p, err := models.OpenPretrained[languageModel](tensor.CPU(), path, "a language model", opts...)
	require.NoError(t, err)
	return p
}

// logits [len(ids), V] of a text.
func logits(t *testing.T, m models.Model, ids []int64) []float32 {
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).NoGrad(), nn.Walk(m), false)
	var out []float32
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		in := tensor.FromSlice(c.Ctx, ids, 1, len(ids))
		b := &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: in}}
		out = tensor.ToSlice[float32](c.Ctx, m.Forward(c, b).Logits)
		return nil
	})
	return out
}

type ggufGolden struct {
	Lines  []string
	Models map[string]struct {
		IDs    []int64
		Logits [][]float64
		Tokens [][]int32
	}
}

func readGGUFGolden(t *testing.T) (g ggufGolden) {
	text, err := os.ReadFile(filepath.Join(ggufDir, "golden.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &g))
	require.Len(t, g.Models, 9)
	return g
}

// Models of all architectures compute what transformers computes of the dequantized weights, and their tokenizers give
// the ids that llama.cpp gives.
func TestGGUFComputesWhatTransformersDoes(t *testing.T) {
	g := readGGUFGolden(t)
	for name, want := range g.Models {
		p := openGGUF(t, filepath.Join(ggufDir, name+".gguf"))
		got := logits(t, p.Model, want.IDs)
		vocab, most := len(got)/len(want.IDs), 0.
		for i, row := range want.Logits {
			for j, x := range row {
				at := []int{1, len(want.IDs) - 1}[i]
				most = max(most, math.Abs(x-float64(got[at*vocab+j])))
			}
		}
		require.Less(t, most, 1e-4, name)
		for i, line := range g.Lines {
			ids, err := p.Tokenizer.Encode(line)
			require.NoError(t, err)
			tokens := want.Tokens[i]
			if composed := norm.NFC.String(line); composed != line && strings.HasPrefix(name, "qwen") {
				tokens, err = p.Tokenizer.Encode(composed) // as in Qwen's tokenizer.json; llama.cpp composes nothing
				require.NoError(t, err)
			}
			require.Equal(t, tokens, append([]int32{}, ids...), "%s: %q", name, line)
		}
	}
}

// The files beside the weights say how texts and answers begin and end.
func TestFilesOfGGUF(t *testing.T) {
	for name, begins := range map[string]bool{"llama": false, "llama3": true, "qwen2": false, "phi3": true} {
		p := openGGUF(t, filepath.Join(ggufDir, name+".gguf"))
		ids, err := p.Tokenizer.EncodeWithSpecial("a")
		require.NoError(t, err)
		require.Equal(t, begins, ids[0] == 1, name)
		require.Equal(t, 2, p.Model.EndTokens()[0])
		opt, err := generation.Saved(p.Dir)
		require.NoError(t, err)
		require.Equal(t, p.Model.EndTokens(), opt.EOS)
		template, err := chat.LoadTemplate(p.Dir)
		require.NoError(t, err)
		text, _, err := template.Render(chat.Conversation{Messages: []byte(`[{"role": "user", "content": "Hi"}]`)})
		require.NoError(t, err)
		require.Equal(t, "<|im_start|>user\nHi<|im_end|>\n", text)
	}
}

// A file, a folder that has it, and the folder that it is saved as are the same model; parameters may be of another
// dtype, or be read when they are used.
func TestGGUFBecomesAFolder(t *testing.T) {
	for name, g := range readGGUFGolden(t).Models {
		file := filepath.Join(ggufDir, name+".gguf")
		p := openGGUF(t, file)
		want := logits(t, p.Model, g.IDs)

		folder := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.MkdirAll(folder, 0o700))
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(folder, "any.gguf"), raw, 0o600))
		require.Equal(t, want, logits(t, openGGUF(t, folder).Model, g.IDs))
		require.Equal(t, want, logits(t, openGGUF(t, folder, models.Deferred()).Model, g.IDs))

		require.NoError(t, p.Save(folder), "the weights beside the file take its place")
		for _, f := range []string{"config.json", "model.safetensors", "generation_config.json", "tokenizer.json",
			"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"} {
			require.FileExists(t, filepath.Join(folder, f))
		}
		require.NoError(t, os.Remove(filepath.Join(folder, "any.gguf")))
		saved := openGGUF(t, folder)
		require.Equal(t, want, logits(t, saved.Model, g.IDs))
		require.Equal(t, p.Files, saved.Files)
		half := openGGUF(t, file, models.WithDType(tensor.BFloat16))
		require.Equal(t, tensor.BFloat16, nn.NamedParameters(half.Model)[0].DType())
	}
}

// Saving a model over another one leaves one model.
func TestSavePretrainedReplacesAModel(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"model.safetensors.index.json", "model-00001-of-00002.safetensors"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600))
	}
	m := smallGPT2(t, 3, nil)
	require.NoError(t, models.SavePretrained(dir, m, models.Sidecar{Name: "tokenizer.json", Data: []byte("x")}))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, []string{"config.json", "model.safetensors", "tokenizer.json"}, names)
	again, err := models.LoadPretrained(tensor.CPU(), dir)
	require.NoError(t, err)
	require.Equal(t, weights(m), weights(again))
	err = models.SavePretrained(filepath.Join(dir, "tokenizer.json"), m)
	require.ErrorContains(t, err, "tokenizer.json")
}

// What is wrong with a file is said of the file.
func TestGGUFThatIsNoModel(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.gguf")
	require.NoError(t, os.WriteFile(path, []byte("GGUF\x03\x00\x00\x00"), 0o600))
	_, err := models.LoadPretrained(tensor.CPU(), path)
	require.EqualError(t, err, "models: "+path+": file is truncated: its header ends in the middle, at byte 8")
	_, err = models.LoadPretrained(tensor.CPU(), dir)
	require.ErrorContains(t, err, path+": file is truncated")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "y.gguf"), nil, 0o600))
	_, err = models.LoadPretrained(tensor.CPU(), dir)
	require.ErrorContains(t, err, dir+" has 2 GGUF files: want one of them: "+path)
	_, err = models.LoadPretrained(tensor.CPU(), filepath.Join(dir, "z.gguf"))
	require.ErrorContains(t, err, "z.gguf")
	text, err := models.ReadConfig(filepath.Join(ggufDir, "llama3.gguf"))
	require.NoError(t, err)
	require.Contains(t, string(text), `"high_freq_factor": 4`)
	require.Contains(t, string(text), `"rope_type": "llama3"`)
}

// A model below an adapter is recognized by the file that it was read from.
func TestWeightsDigestOfGGUF(t *testing.T) {
	file := filepath.Join(ggufDir, "llama.gguf")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.gguf"), text, 0o600))
	for _, path := range []string{file, dir} {
		sum, err := models.WeightsDigest(path)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(text)), sum)
	}
}
