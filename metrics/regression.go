// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// MSE is the mean squared error: scikit-learn's mean_squared_error. Numbers that are not finite are an error.
func MSE(labels, predictions []float64) (float64, error) {
	return meanOf(labels, predictions, func(d float64) float64 { return d * d })
}

// MAE is the mean absolute error: scikit-learn's mean_absolute_error. Numbers that are not finite are an error.
func MAE(labels, predictions []float64) (float64, error) {
	return meanOf(labels, predictions, math.Abs)
}

// R2 is the share of the labels' variance that the predictions explain: scikit-learn's r2_score. If the labels do not
// vary it is 1 for exact predictions and 0 for others, also where the rounding of their mean gives scikit-learn a
// variance; for one sample it is NaN. Numbers that are not finite are an error.
func R2(labels, predictions []float64) (float64, error) {
	residual, err := MSE(labels, predictions)
	if err != nil || len(labels) < 2 {
		return math.NaN(), err
	}
	var variance float64 // exactly 0 if the labels do not vary
	for _, d := range deviations(labels) {
		variance += d * d
	}
	variance /= float64(len(labels))
	switch {
	case residual == 0:
		return 1, nil
	case variance == 0:
		return 0, nil
	}
	return 1 - residual/variance, nil
}

func meanOf(labels, predictions []float64, f func(difference float64) float64) (float64, error) {
	if err := sameLength(len(labels), len(predictions)); err != nil {
		return 0, err
	}
	var sum float64
	for i, label := range labels {
		d := predictions[i] - label
		if math.IsNaN(d) || math.IsInf(d, 0) {
			return 0, fmt.Errorf("metrics: label %d is %v and its prediction %v: want finite numbers", i, label,
				predictions[i])
		}
		sum += f(d)
	}
	return sum / float64(len(labels)), nil
}

func mean(list []float64) float64 {
	var sum float64
	for _, x := range list {
		sum += x
	}
	return sum / float64(len(list))
}

// deviations is the list minus its mean. Their own mean, which is the rounding of the first, is taken away too: it
// matters where the numbers hardly vary.
func deviations(list []float64) []float64 {
	out := slices.Clone(list)
	for range 2 {
		center := mean(out)
		for i := range out {
			out[i] -= center
		}
	}
	return out
}

// Pearson is the Pearson correlation: the statistic of SciPy's pearsonr. It is NaN if the labels or the predictions do
// not vary, or if one of them is not finite. Fewer than two are an error.
func Pearson(labels, predictions []float64) (float64, error) {
	if err := sameLength(len(labels), len(predictions)); err != nil {
		return 0, err
	}
	if len(labels) < 2 {
		return 0, fmt.Errorf("metrics: a correlation of one label: want at least two")
	}
	if constant(labels) || constant(predictions) {
		return math.NaN(), nil
	}
	x, y := centered(labels), centered(predictions)
	var dot float64
	for i := range x {
		dot += x[i] * y[i]
	}
	return min(max(dot, -1), 1), nil // NaN stays NaN
}

func constant(list []float64) bool {
	return !slices.ContainsFunc(list, func(x float64) bool { return x != list[0] })
}

// centered is the list minus its mean, in units of its norm.
func centered(list []float64) []float64 {
	out, largest := deviations(list), 0.0
	for _, x := range out {
		largest = max(largest, math.Abs(x))
	}
	var squares float64
	for _, x := range out {
		squares += (x / largest) * (x / largest)
	}
	norm := math.Sqrt(squares)
	for i, x := range out {
		out[i] = x / largest / norm
	}
	return out
}

// Spearman is the Spearman correlation, Pearson's of the ranks, where equal numbers share their mean rank: the
// statistic of SciPy's spearmanr. It is NaN if the labels or the predictions do not vary, or if one of them is NaN.
// Fewer than two are an error, where SciPy returns NaN.
func Spearman(labels, predictions []float64) (float64, error) {
	if err := sameLength(len(labels), len(predictions)); err != nil {
		return 0, err
	}
	if slices.ContainsFunc(slices.Concat(labels, predictions), math.IsNaN) { // they have no ranks
		return math.NaN(), nil
	}
	return Pearson(ranked(labels), ranked(predictions))
}

// ranked replaces each number by its rank, from 1; equal ones share the mean of theirs.
func ranked(list []float64) []float64 {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(list[a], list[b]) })
	ranks := make([]float64, len(list))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && list[order[j]] == list[order[i]] {
			j++
		}
		for _, at := range order[i:j] {
			ranks[at] = float64(i+j+1) / 2
		}
		i = j
	}
	return ranks
}
