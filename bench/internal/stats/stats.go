// SPDX-License-Identifier: Apache-2.0

// Package stats computes medians and ratios of benchmark timings. It measures nothing itself.
package stats

import "slices"

// Median is the middle of list, or the mean of the two middle ones; 0 for an empty list.
func Median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// Ratios are a[i]/b[i], as far as both go.
func Ratios(a, b []float64) []float64 {
	list := make([]float64, min(len(a), len(b)))
	for i := range list {
		list[i] = a[i] / b[i]
	}
	return list
}
