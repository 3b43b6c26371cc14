// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/metrics"
)

func TestMisuse(t *testing.T) {
	_, err := metrics.Classify([]int64{1, 0}, []int64{1})
	require.EqualError(t, err, "metrics: 2 labels and 1 predictions: want one prediction for each label")
	_, err = metrics.Classify(nil, nil)
	require.EqualError(t, err, "metrics: there are no labels: want at least one")
	_, err = metrics.Classify([]int64{-100, -100}, []int64{1, 0})
	require.EqualError(t, err, "metrics: all labels are -100 (tensor.IgnoreIndex): want at least one other")
	for _, f := range []func(labels, predictions []float64) (float64, error){metrics.MSE, metrics.MAE, metrics.R2,
		metrics.Pearson, metrics.Spearman} {
		for _, labels := range [][]float64{nil, {1, 2}, {1, math.NaN()}} {
			_, err := f(labels, make([]float64, len(labels)/2))
			require.ErrorContains(t, err, "labels")
		}
	}
	_, err = metrics.MSE([]float64{1, 2}, []float64{1, math.Inf(1)})
	require.EqualError(t, err, "metrics: label 1 is 2 and its prediction +Inf: want finite numbers")
	_, err = metrics.ExactMatch([]string{"a"}, nil)
	require.EqualError(t, err, "metrics: 1 labels and 0 predictions: want one prediction for each label")
}

func TestExactMatchAndPerplexity(t *testing.T) {
	got, err := metrics.ExactMatch([]string{"a", "b c", "ü"}, []string{"a", "b  c", "ü"})
	require.NoError(t, err)
	require.Equal(t, 2.0/3, got)
	require.Equal(t, 1.0, metrics.Perplexity(0))
	require.InDelta(t, 20.085536923187668, metrics.Perplexity(3), 1e-12)
	require.True(t, math.IsInf(metrics.Perplexity(1e3), 1))
	require.True(t, math.IsNaN(metrics.Perplexity(math.NaN())))
}

// The mean of numbers that do not vary is exact, as is that of numbers that hardly do: a residue of rounding would be
// taken for their variance.
func TestNumbersThatHardlyVary(t *testing.T) {
	for _, x := range []float64{0.1, 1.0 / 3, 123.456, 1e-100} {
		labels, others := slices.Repeat([]float64{x}, 10), slices.Repeat([]float64{2 * x}, 10)
		got, err := metrics.R2(labels, others)
		require.NoError(t, err)
		require.Zero(t, got, x)
		got, err = metrics.R2(labels, labels)
		require.NoError(t, err)
		require.Equal(t, 1.0, got, x)
	}
	got, err := metrics.Pearson([]float64{1e8 + 95e-8, 1e8 + 4e-8}, []float64{1.5, -0.6})
	require.NoError(t, err)
	require.InDelta(t, 1, got, 1e-15)
}
