// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/jsonfloat"
	"github.com/lockstep-ml/lockstep/metrics"
)

// goldens is testdata/metrics.json.
type goldens struct {
	Classification []struct {
		Labels, Predictions, Classes   []int64
		Accuracy, Matthews             float64
		Macro, Micro, Weighted, Binary []*float64
		Each                           [][]*float64
	}
	Numbers []struct {
		Labels, Predictions             []jsonfloat.Float
		MSE, MAE, R2, Pearson, Spearman *jsonfloat.Float // nil: an error
	}
	Texts []struct {
		References, Predictions []string
		ChrF, BLEU              float64
		BLEUOfTwo               float64   `json:"bleu_of_two"` // with a second reference for each text
		Rouge                   []float64 // 1, 2, L and Lsum
		RougeStemmed            []float64 `json:"rouge_stemmed"`
	}
	Stems [][2]string // a word, and its stem
}

func read(t *testing.T) (g goldens) {
	text, err := os.ReadFile("testdata/metrics.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &g))
	return g
}

func TestClassificationOfScikitLearn(t *testing.T) {
	list := read(t).Classification
	require.Len(t, list, 13)
	for i, g := range list {
		c, err := metrics.Classify(g.Labels, g.Predictions)
		require.NoError(t, err)
		require.Equal(t, g.Classes, c.Classes(), i)
		require.InDelta(t, g.Accuracy, c.Accuracy(), 1e-14, i)
		require.InDelta(t, g.Matthews, c.Matthews(), 1e-14, i)
		requireScores(t, g.Macro, c.Macro())
		requireScores(t, g.Micro, c.Micro())
		requireScores(t, g.Weighted, c.Weighted())
		if g.Binary != nil {
			requireScores(t, g.Binary, c.Class(1))
		}
		for k, class := range g.Classes {
			requireScores(t, g.Each[k], c.Class(class))
		}
		require.Zero(t, c.Class(12345))
		var n int64
		for _, label := range g.Classes {
			for _, prediction := range g.Classes {
				n += c.Count(label, prediction)
			}
		}
		require.Equal(t, c.Macro().Support, n)
		require.Zero(t, c.Count(12345, g.Classes[0]))
	}
}

// requireScores compares precision, recall and F1.
func requireScores(t *testing.T, want []*float64, got metrics.Scores) {
	t.Helper()
	require.InDelta(t, *want[0], got.Precision, 1e-14)
	require.InDelta(t, *want[1], got.Recall, 1e-14)
	require.InDelta(t, *want[2], got.F1, 1e-14)
}

func TestNumbersOfScikitLearnAndSciPy(t *testing.T) {
	list := read(t).Numbers
	require.Len(t, list, 15)
	for i, g := range list {
		labels, predictions := floats(g.Labels), floats(g.Predictions)
		for name, c := range map[string]struct {
			want *jsonfloat.Float
			f    func(labels, predictions []float64) (float64, error)
		}{
			"mse": {g.MSE, metrics.MSE}, "mae": {g.MAE, metrics.MAE}, "r2": {g.R2, metrics.R2},
			"pearson": {g.Pearson, metrics.Pearson}, "spearman": {g.Spearman, metrics.Spearman},
		} {
			got, err := c.f(labels, predictions)
			switch {
			case name == "spearman" && len(labels) == 1: // of which SciPy makes NaN
				require.ErrorContains(t, err, "a correlation of one label: want at least two")
			case c.want == nil:
				require.Error(t, err, "%s of %d", name, i)
			default:
				require.NoError(t, err, "%s of %d", name, i)
				requireClose(t, float64(*c.want), got, "%s of %d", name, i)
			}
		}
	}
}

// requireClose compares with a relative tolerance, and NaN with NaN.
func requireClose(t *testing.T, want, got float64, message ...any) {
	t.Helper()
	if math.IsNaN(want) || math.IsInf(want, 0) {
		require.True(t, want == got || math.IsNaN(want) && math.IsNaN(got), message...)
		return
	}
	require.InDelta(t, 0, (got-want)/max(1, math.Abs(want)), 1e-12, message...)
}

func floats(list []jsonfloat.Float) []float64 {
	out := make([]float64, len(list))
	for i, x := range list {
		out[i] = float64(x)
	}
	return out
}

func TestTextsOfSacrebleuAndRougeScore(t *testing.T) {
	list := read(t).Texts
	require.Len(t, list, 17)
	for i, g := range list {
		got, err := metrics.ChrF(g.References, g.Predictions)
		require.NoError(t, err)
		requireClose(t, g.ChrF, got, "chrF of %d", i)
		got, err = metrics.BLEU(g.References, g.Predictions)
		require.NoError(t, err)
		requireClose(t, g.BLEU, got, "BLEU of %d", i)
		further := slices.Concat(g.References[1:], g.References[:1])
		got, err = metrics.BLEU(g.References, g.Predictions, further)
		require.NoError(t, err)
		requireClose(t, g.BLEUOfTwo, got, "BLEU of %d with two references", i)
		for stem, want := range map[bool][]float64{false: g.Rouge, true: g.RougeStemmed} {
			r, err := metrics.ROUGE(g.References, g.Predictions, metrics.RougeOptions{Stem: stem})
			require.NoError(t, err)
			for k, got := range []float64{r.Rouge1, r.Rouge2, r.RougeL, r.RougeLsum} {
				requireClose(t, want[k], got, "ROUGE %d of %d, stem %t", k, i, stem)
			}
		}
	}
	const none = "metrics: there are no labels: want at least one"
	_, err := metrics.ChrF(nil, nil)
	require.EqualError(t, err, none)
	_, err = metrics.BLEU(nil, nil)
	require.EqualError(t, err, none)
	_, err = metrics.ROUGE(nil, nil, metrics.RougeOptions{})
	require.EqualError(t, err, none)
	_, err = metrics.BLEU([]string{"a"}, []string{"a"}, []string{"a", "b"})
	require.ErrorContains(t, err, "2 labels")
}

func TestStemsOfNLTK(t *testing.T) {
	list := read(t).Stems
	require.Greater(t, len(list), 1000)
	for _, pair := range list {
		require.Equal(t, pair[1], metrics.Stem(pair[0]), "%s", pair[0])
	}
}
