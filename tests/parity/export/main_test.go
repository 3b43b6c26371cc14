// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data/tokenizers"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/lora"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

const trained = "../../../data/tokenizers/testdata/trained"

// TestCutLines compares with what HuggingFace's tokenizers made of the same lines.
func TestCutLines(t *testing.T) {
	var want struct{ Lines []cutLine }
	readJSON(t, filepath.Join(trained, "ids.json"), &want)
	lines, err := readLines(filepath.Join(trained, "lines.txt"), 0)
	require.NoError(t, err)
	tok, err := tokenizers.Load(filepath.Join(trained, "tokenizer.json"))
	require.NoError(t, err)
	got, err := cutLines(tok, lines)
	require.NoError(t, err)
	require.Equal(t, want.Lines, got)
}

// TestExport writes what the scripts read and looks at it as they do.
func TestExport(t *testing.T) {
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "new")
	tok, err := tokenizers.Load(filepath.Join(trained, "tokenizer.json"))
	require.NoError(t, err)
	require.NoError(t, tok.Save(filepath.Join(dir, "tokenizer.json")))
	cfg := gpt2.DefaultConfig()
	cfg.VocabSize, cfg.NPositions, cfg.NLayer, cfg.NEmbd, cfg.NHead = tok.VocabSize(), 16, 1, 16, 2
	m, err := gpt2.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	require.NoError(t, models.SaveWeights(m, dir))
	config, err := models.ConfigJSON(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600))
	require.NoError(t, export(dir, out, "", 100, 3))

	var ids [][]int32
	readJSON(t, filepath.Join(out, "ids.json"), &ids)
	require.Len(t, ids, 3)
	require.Len(t, ids[2], 16)
	r, err := safetensors.Open(vfs.OS, filepath.Join(out, "logits.safetensors"))
	require.NoError(t, err)
	defer r.Close()
	e, ok := r.Lookup("logits")
	require.True(t, ok)
	require.Equal(t, []int{3, 16, tok.VocabSize()}, e.Shape)

	var cuts []cutLine
	readJSON(t, filepath.Join(out, "lines.json"), &cuts)
	text, err := os.ReadFile(filepath.Join(out, "lines.txt"))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	require.Len(t, lines, 100)
	require.Len(t, cuts, 100)
	for i, c := range cuts {
		require.Equal(t, lines[i], strings.Join(c.Splits, ""))
		back, err := tok.Decode(c.IDs)
		require.NoError(t, err)
		require.Equal(t, lines[i], back)
	}
	require.Error(t, export(dir, out, filepath.Join(dir, "absent"), 0, 3))
	require.ErrorContains(t, export(dir, out, "", 2, 1000), "want 1000 rows of 16")
}

// The logits of given tokens are those of the model, or of the model with an adapter, in float32 or float64.
func TestLogitsOfAdapters(t *testing.T) {
	const dir = "../../../examples/finetune/testdata/model"
	m, err := models.LoadPretrained(tensor.CPU(), dir)
	require.NoError(t, err)
	a, err := lora.New(m, lora.Config{TargetModules: lora.AllLinear, Init: lora.InitRandom})
	require.NoError(t, err)
	adapter, ids := t.TempDir(), filepath.Join(t.TempDir(), "ids.json")
	require.NoError(t, a.Save(adapter))
	require.NoError(t, os.WriteFile(ids, []byte("[[3, 4, 5], [6, 7, 8]]"), 0o600))
	logits := func(adapter string, dt tensor.DType) []float64 {
		out := filepath.Join(t.TempDir(), "new")
		require.NoError(t, exportLogits(dir, adapter, ids, out, dt))
		set, err := safetensors.OpenSet(vfs.OS, out, "logits")
		require.NoError(t, err)
		defer set.Close()
		e, _ := set.Lookup("logits")
		require.Equal(t, dt, e.DType)
		require.Equal(t, []int{2, 3}, e.Shape[:2])
		text, err := e.Read()
		require.NoError(t, err)
		c := tensor.NewCtx(tensor.CPU()).NoGrad()
		return tensor.ToSlice[float64](c, tensor.Cast(c, tensor.FromBytes(c, text, dt, e.Shape...), tensor.Float64))
	}
	exact := logits(adapter, tensor.Float64)
	require.InDeltaSlice(t, exact, logits(adapter, tensor.Float32), 1e-5)
	require.NotEqual(t, exact, logits("", tensor.Float64))
	require.Error(t, exportLogits(dir, "", filepath.Join(adapter, "absent"), adapter, tensor.Float32))
}

func TestMixedLinesAreRich(t *testing.T) {
	lines, err := readLines("", 400)
	require.NoError(t, err)
	again, err := readLines("", 400)
	require.NoError(t, err)
	require.Equal(t, lines, again)
	foreign := 0
	for _, l := range lines {
		require.True(t, utf8.ValidString(l))
		require.NotContains(t, l, "\n")
		if strings.ContainsFunc(l, func(r rune) bool { return r >= utf8.RuneSelf }) {
			foreign++
		}
	}
	require.Greater(t, foreign, 150)
	require.Greater(t, len(slices.Compact(slices.Sorted(slices.Values(lines)))), 390)
}

func readJSON(t *testing.T, name string, v any) {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, v))
}
