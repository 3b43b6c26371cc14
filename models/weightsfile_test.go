// SPDX-License-Identifier: Apache-2.0

package models_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func TestLoadWeights(t *testing.T) {
	m := newApart(1)
	dir := t.TempDir()
	for _, c := range []struct{ save, load, file string }{
		{"a/b", "a/b", "a/b/model.safetensors"},
		{"a/b", "a/b/model.safetensors", "a/b/model.safetensors"},
		{"c/weights.safetensors", "c/weights.safetensors", "c/weights.safetensors"},
	} {
		require.NoError(t, models.SaveWeights(m, filepath.Join(dir, c.save)))
		require.FileExists(t, filepath.Join(dir, c.file))
		again := newApart(2)
		require.NoError(t, models.LoadWeights(again, filepath.Join(dir, c.load)))
		equalModels(t, m, again)
	}

	second := newApart(3)
	require.NoError(t, models.SaveWeights(second, filepath.Join(dir, "a/b")), "it replaces what is there")
	require.NoError(t, models.LoadWeights(m, filepath.Join(dir, "a/b")))
	equalModels(t, second, m)
	files, err := os.ReadDir(filepath.Join(dir, "a/b"))
	require.NoError(t, err)
	require.Len(t, files, 1, "nothing is left beside it")
}

// A module that is not a model, and several files with an index.
func TestLoadWeightsOfAModule(t *testing.T) {
	layer := func(seed uint64, out int) *nn.Linear {
		return nn.NewLinear(nn.NewInit(tensor.CPU(), seed), nn.LinearConfig{In: 3, Out: out})
	}
	dir := t.TempDir()
	files, err := models.WeightFiles(layer(1, 2), 25, nil)
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, f := range files {
		w, err := os.Create(filepath.Join(dir, f.Name))
		require.NoError(t, err)
		require.NoError(t, f.Write(w))
		require.NoError(t, w.Close())
	}
	for _, path := range []string{dir, filepath.Join(dir, "model.safetensors.index.json")} {
		again := layer(2, 2)
		require.NoError(t, models.LoadWeights(again, path))
		c := tensor.NewCtx(tensor.CPU())
		require.Equal(t, tensor.ToSlice[float32](c, layer(1, 2).Weight.Tensor),
			tensor.ToSlice[float32](c, again.Weight.Tensor))
	}
	err = models.LoadWeights(layer(1, 4), dir)
	require.ErrorContains(t, err, "weight is float32[2 3]: want float32[4 3]")
	require.ErrorContains(t, err, dir)
}

func TestLoadWeightsRefuses(t *testing.T) {
	dir := t.TempDir()
	m := newApart(1)
	require.NoError(t, models.SaveWeights(m, dir))
	require.ErrorContains(t, models.LoadWeights(m, filepath.Join(dir, "none.safetensors")), "none.safetensors")
	require.ErrorContains(t, models.LoadWeights(m, dir, models.Deferred()), "want none but AllowNonFinite")
	require.ErrorContains(t, models.LoadWeights(m, dir, models.WithDType(tensor.Float16)), "AllowNonFinite")
	require.ErrorContains(t, models.LoadWeights(*m, dir), "pointer to a struct")
	require.ErrorContains(t, models.SaveWeights(*m, dir), "pointer to a struct")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	require.Error(t, models.SaveWeights(m, filepath.Join(dir, "file", "folder")))

	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	tensor.CopyInto(c, m.Norm.Weight.Tensor, tensor.Full(c, tensor.Float32, math.Inf(1), 4))
	require.NoError(t, models.SaveWeights(m, dir))
	require.ErrorContains(t, models.LoadWeights(newApart(2), dir),
		"not finite: norm.weight (ln.weight in the file) has 4 of 4")
	require.NoError(t, models.LoadWeights(newApart(2), dir, models.AllowNonFinite("norm.weight")))
}
