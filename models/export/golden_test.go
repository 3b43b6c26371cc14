// SPDX-License-Identifier: Apache-2.0

package export_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"iter"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/all"
	"github.com/lockstep-ml/lockstep/models/export"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// keep is a folder for the files that testdata/golden.mjs gives to llama.cpp.
var keep = flag.String("keep", "", "folder for the files that the tests write")

// ggufDir has a small random model of each architecture, with its tokenizer.
const ggufDir = "../testdata/gguf"

// language is a model that writes text.
type language interface {
	models.Configured
	models.Generator
}

func open(t testing.TB, path string, opts ...models.LoadOption) *models.Pretrained[language] {
	p, err := models.OpenPretrained[language](tensor.CPU(), path, "a language model", opts...)
	require.NoError(t, err)
	return p
}

// dtypes are those in which the models are compared.
var dtypes = []export.DType{export.F32, export.F16, export.BF16, export.Q8_0}

// cases are the small models, as folders or files.
func cases(t testing.TB) map[string]string {
	found := map[string]string{"gpt2": smallGPT2(t, true), "gpt2-untied": smallGPT2(t, false), "mistral": mistral(t),
		"gemma2": gemma2(t)}
	for _, name := range []string{"gemma3", "llama", "llama3", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"} {
		found[name] = filepath.Join(ggufDir, name+".gguf")
	}
	return found
}

// smallGPT2 saves a GPT-2 with a tokenizer that was trained here.
func smallGPT2(t testing.TB, tied bool) string { return gpt2OfWidth(t, 32, tied) }

func gpt2OfWidth(t testing.TB, width int, tied bool) string {
	dir := t.TempDir()
	text := strings.Repeat("The rain in Spain stays mainly in the plain. It's 12 past 3, they said: don't!\n", 20)
	tok, err := tokenizers.Train(context.Background(), one(text), tokenizers.TrainOptions{VocabSize: 290,
		SpecialTokens: []string{"<|endoftext|>"}})
	require.NoError(t, err)
	require.NoError(t, tok.Save(filepath.Join(dir, models.TokenizerFile)))
	cfg := gpt2.DefaultConfig()
	end := 0
	cfg.VocabSize, cfg.NPositions, cfg.NEmbd, cfg.NLayer, cfg.NHead = 300, 64, width, 2, 2 // 10 rows have no token
	cfg.InitializerRange, cfg.BosTokenID, cfg.EosTokenID, cfg.TieWordEmbeddings = 0.3, &end, &end, tied
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 5), cfg)
	require.NoError(t, err)
	require.NoError(t, models.SavePretrained(dir, m))
	return dir
}

// one is a text.
func one(text string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) { yield(text, nil) }
}

// mistral saves a Mistral with a window, with the tokenizer of another model.
func mistral(t testing.TB) string {
	dir := t.TempDir()
	llama := open(t, filepath.Join(ggufDir, "llama.gguf"))
	cfg, err := transformer.DefaultConfig("mistral")
	require.NoError(t, err)
	window := 48
	cfg.VocabSize, cfg.HiddenSize, cfg.IntermediateSize, cfg.NumHiddenLayers = 292, 64, 96, 2
	cfg.NumAttentionHeads, cfg.NumKeyValueHeads, cfg.HeadDim = 4, 2, 32
	cfg.MaxPositions, cfg.InitializerRange, cfg.SlidingWindow = 64, 0.3, &window
	m, err := transformer.New(nn.NewInit(tensor.CPU(), 6), cfg)
	require.NoError(t, err)
	require.NoError(t, models.SavePretrained(dir, m, llama.Files...))
	return dir
}

// gemma2 saves a Gemma 2 with the tokenizer of a Gemma 3.
func gemma2(t testing.TB) string {
	dir := t.TempDir()
	other := open(t, filepath.Join(ggufDir, "gemma3.gguf"))
	cfg, err := transformer.DefaultConfig("gemma2")
	require.NoError(t, err)
	window, limit, final := 8, 2., 3.
	cfg.VocabSize, cfg.HiddenSize, cfg.IntermediateSize, cfg.NumHiddenLayers = other.Tokenizer.VocabSize(), 32, 64, 3
	cfg.LayerTypes = []string{transformer.SlidingAttention, transformer.FullAttention, transformer.SlidingAttention}
	cfg.NumAttentionHeads, cfg.NumKeyValueHeads, cfg.HeadDim, cfg.QueryScalar = 4, 2, 32, 32
	cfg.MaxPositions, cfg.InitializerRange, cfg.SlidingWindow = 64, 0.3, &window
	cfg.AttnSoftCap, cfg.FinalSoftCap = &limit, &final
	m, err := transformer.New(nn.NewInit(tensor.CPU(), 7), cfg)
	require.NoError(t, err)
	require.NoError(t, models.SavePretrained(dir, m, other.Files...))
	return dir
}

// written writes a file of a model.
func written(t testing.TB, model, name string, o export.Options) string {
	dir := *keep
	if dir == "" {
		dir = t.TempDir()
	}
	m, err := export.Open(model, o)
	require.NoError(t, err)
	path := filepath.Join(dir, fmt.Sprintf("%s-%s.gguf", name, o.DType))
	require.NoError(t, m.Write(context.Background(), path, export.WriteOptions{Overwrite: *keep != ""}))
	return path
}

// golden is what llama.cpp makes of a file.
type golden struct {
	SHA256 string    // of the file
	Greedy []int     // the tokens that follow the prompt
	Logits []float64 // behind the prompt, of the first tokens
	Tokens [][]int32 // of the texts
}

type goldens struct {
	Prompt []int
	Lines  []string
	Files  map[string]golden
}

func readGoldens(t testing.TB) (g goldens) {
	text, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &g))
	require.Len(t, g.Files, 12*len(dtypes))
	return g
}

// logitsOf are those [len(ids), V] of tokens.
func logitsOf(t testing.TB, m models.Model, ids []int) (rows [][]float32) {
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).NoGrad(), nn.Walk(m), false)
	list := make([]int64, len(ids))
	for i, id := range ids {
		list[i] = int64(id)
	}
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		in := tensor.FromSlice(c.Ctx, list, 1, len(list))
		out := m.Forward(c, &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: in}}).Logits
		all := tensor.ToSlice[float32](c.Ctx, out)
		rows = slices.Collect(slices.Chunk(all, len(all)/len(list)))
		return nil
	})
	return rows
}

// greedy are the likeliest tokens behind a prompt.
func greedy(t testing.TB, m models.Generator, prompt []int, n int) []int {
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).NoGrad(), nn.Walk(m), false)
	ids, err := generation.Generate(context.Background(), c, m, prompt, generation.Options{MaxNewTokens: n})
	require.NoError(t, err)
	return ids
}

// tolerance is how far logits may be from those of llama.cpp, as a share of the largest. It rounds activations to the
// type of the weights where it multiplies with them, and takes GELU from a table of float16.
func tolerance(name string, dt export.DType) float64 {
	switch gelu := strings.HasPrefix(name, "gpt2") || strings.HasPrefix(name, "gemma"); {
	case dt == export.F32 && !gelu:
		return 1e-5
	case dt == export.F32:
		return 5e-4
	case dt == export.F16:
		return 3e-3
	case dt == export.BF16:
		return 2e-2
	}
	return 4e-2
}

// llama.cpp computes what the model here computes, and cuts texts into the same tokens: testdata/golden.json has what
// it makes of the very files that are written.
func TestLlamaCppComputesTheSame(t *testing.T) {
	if *keep != "" {
		for name, model := range cases(t) {
			for _, dt := range dtypes {
				written(t, model, name, export.Options{DType: dt, Name: name})
			}
		}
		t.Skip("the files are written")
	}
	g := readGoldens(t)
	for name, model := range cases(t) {
		for _, dt := range dtypes {
			path := written(t, model, name, export.Options{DType: dt, Name: name})
			want := g.Files[filepath.Base(path)]
			raw, err := os.ReadFile(path)
			require.NoError(t, err)
			if runtime.GOARCH == "amd64" { // elsewhere the factors of RoPE may be rounded otherwise
				require.Equal(t, want.SHA256, fmt.Sprintf("%x", sha256.Sum256(raw)), path)
			}
			whole := open(t, path).Model
			compare(t, g.Prompt, want, whole, tolerance(name, dt), path)
			if dt == export.BF16 {
				require.Equal(t, want.Greedy, greedy(t, whole, g.Prompt, len(want.Greedy)), path)
			}
			if dt == export.Q8_0 {
				compareBlocks(t, g.Prompt, whole, open(t, path, models.Quantized()).Model, path)
			}
		}
		p, want := open(t, model), g.Files[name+"-f32.gguf"]
		require.Equal(t, want.Greedy, greedy(t, p.Model, g.Prompt, len(want.Greedy)), name)
		for i, line := range g.Lines {
			ids, err := p.Tokenizer.Encode(line)
			require.NoError(t, err)
			require.Equal(t, want.Tokens[i], append([]int32{}, ids...), "%s: %q", name, line)
		}
	}
}

// compareBlocks compares a model with itself in blocks: one token after the other, as they are generated, gives the
// same tokens, and logits to the rounding of float32.
func compareBlocks(t *testing.T, prompt []int, whole, blocks language, path string) {
	for n := range prompt {
		want, got := logitsOf(t, whole, prompt[:n+1]), logitsOf(t, blocks, prompt[:n+1])
		for i := range want {
			require.InDeltaSlice(t, want[i], got[i], 1e-5*float64(max(1, slices.Max(want[i]))), "%s %d", path, i)
		}
	}
	require.Equal(t, greedy(t, whole, prompt, 24), greedy(t, blocks, prompt, 24), path)
}

// compare compares logits, and the tokens that follow: where another is as likely, llama.cpp may have taken that.
func compare(t *testing.T, prompt []int, want golden, m language, share float64, path string) {
	rows := logitsOf(t, m, append(slices.Clone(prompt), want.Greedy...))[len(prompt)-1:]
	largest := 0.
	for _, x := range want.Logits {
		largest = max(largest, math.Abs(x))
	}
	for id, x := range want.Logits {
		require.InDelta(t, x, rows[0][id], share*largest, "%s %d", path, id)
	}
	for i, id := range want.Greedy {
		require.InDelta(t, slices.Max(rows[i]), rows[i][id], 2*share*largest, "%s %d", path, i)
	}
}
