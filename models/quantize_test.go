// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A quantized model takes a quarter of the memory, computes what its dequantized weights do, a token at a time and a
// prompt at once, and is saved with these.
func TestQuantized(t *testing.T) {
	dir := t.TempDir()
	cfg, err := transformer.DefaultConfig("llama")
	require.NoError(t, err)
	cfg.VocabSize, cfg.HiddenSize, cfg.IntermediateSize, cfg.NumHiddenLayers = 50, 64, 96, 2
	cfg.NumAttentionHeads, cfg.NumKeyValueHeads, cfg.HeadDim, cfg.MaxPositions = 4, 2, 16, 64
	cfg.TieWordEmbeddings = true
	m, err := transformer.New(nn.NewInit(tensor.CPU(), 3), cfg)
	require.NoError(t, err)
	require.NoError(t, models.SavePretrained(dir, m))

	dev := tensor.NewCPU(2)
	defer dev.Close()
	small, err := models.LoadPretrained(dev, dir, models.Quantized())
	require.NoError(t, err)
	norms := (2*2 + 1) * cfg.HiddenSize
	require.EqualValues(t, (nn.NumParameters(m)-norms)/32*34+4*norms, dev.MemStats().InUse)
	few, many := scores(dev, small, 3), scores(dev, small, 20)
	require.EqualValues(t, (nn.NumParameters(m)-norms)/32*34+4*norms, dev.MemStats().InUse)

	again := filepath.Join(t.TempDir(), "again")
	require.NoError(t, models.SavePretrained(again, small))
	whole, err := models.LoadPretrained(dev, again)
	require.NoError(t, err)
	require.InDeltaSlice(t, scores(dev, whole, 3), few, 1e-5)
	require.InDeltaSlice(t, scores(dev, whole, 20), many, 1e-5)
	require.NotEqual(t, scores(tensor.CPU(), m, 3), few) // the control: rounding is not nothing

	for _, opt := range []models.LoadOption{models.WithDType(tensor.BFloat16), models.Deferred()} {
		_, err = models.LoadPretrained(dev, dir, models.Quantized(), opt)
		require.ErrorContains(t, err, "want float32, and without Deferred")
	}
}

// Weights that do not fit into blocks stay float32, and the log says how many and why.
func TestQuantizeReportsWhatStays(t *testing.T) {
	logged := func(hidden, inner int, scale float32) string {
		cfg, err := transformer.DefaultConfig("llama")
		require.NoError(t, err)
		cfg.VocabSize, cfg.HiddenSize, cfg.IntermediateSize, cfg.NumHiddenLayers = 50, hidden, inner, 2
		cfg.NumAttentionHeads, cfg.NumKeyValueHeads, cfg.HeadDim, cfg.MaxPositions = 4, 2, 16, 64
		cfg.TieWordEmbeddings = true
		m, err := transformer.New(nn.NewInit(tensor.CPU(), 3), cfg)
		require.NoError(t, err)
		if scale != 1 {
			w := nn.NamedParameters(m)[0].Tensor
			c := tensor.NewCtx(tensor.CPU()).NoGrad()
			tensor.CopyInto(c, w, tensor.Full(c, tensor.Float32, float64(scale), w.Shape()...))
		}
		var log strings.Builder
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		defer slog.SetDefault(before)
		models.Quantize(m)
		return log.String()
	}
	require.Empty(t, logged(64, 96, 1))
	text := logged(64, 100, 1)
	require.Contains(t, text, "rows are no multiple of 32 numbers")
	require.Contains(t, text, `matrices=2 of=15 example="model.layers.0.mlp.down_proj.weight has 100"`)
	require.Equal(t, 1, strings.Count(text, "\n"))
	require.Contains(t, logged(64, 96, 1e30), "numbers are too large for q8_0")
	require.Contains(t, logged(64, 96, 1e30), "matrices=1 of=15")
}

// scores are the logits of n tokens.
func scores(dev *tensor.Device, m models.Model, n int) (list []float32) {
	c := nn.NewCtx(tensor.NewCtx(dev).NoGrad(), nn.Walk(m), false)
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		ids := make([]int64, n)
		for i := range ids {
			ids[i] = int64(7 * i % 50)
		}
		in := tensor.FromSlice(c.Ctx, ids, 1, n)
		out := m.Forward(c, &data.Batch{Tensors: map[string]*tensor.Tensor{data.InputIDs: in}})
		list = tensor.ToSlice[float32](c.Ctx, out.Logits)
		return nil
	})
	return list
}
