// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	list := []float64{3, 1, 2}
	require.Equal(t, 2.0, Median(list))
	require.Equal(t, []float64{3, 1, 2}, list, "the list is the caller's")
	require.Equal(t, 2.5, Median([]float64{4, 1, 2, 3}))
	require.Zero(t, Median(nil))
}

func TestRatios(t *testing.T) {
	require.Equal(t, []float64{2, 0.5}, Ratios([]float64{4, 1, 9}, []float64{2, 2}))
}
