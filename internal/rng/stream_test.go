// SPDX-License-Identifier: Apache-2.0

package rng_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/rng"
)

var _ rand.Source = (*rng.Stream)(nil)

func TestStream(t *testing.T) {
	s := rng.NewStream(9)
	for i := range uint64(20) {
		require.Equal(t, rng.Uint64At(9, 0, i), s.Uint64())
	}
}

func TestStreamFloat64(t *testing.T) {
	s := rng.NewStream(3)
	require.Equal(t, rng.Float64At(3, 0, 0), s.Float64())
	require.Equal(t, rng.Float64At(3, 0, 1), s.Float64())
}

func TestInt64N(t *testing.T) {
	s := rng.NewStream(1)
	for _, n := range []int64{1, 2, 7, 10} {
		bins := make([]float64, n)
		const draws = 20000
		for range draws {
			bins[s.Int64N(n)]++
		}
		require.Less(t, chiSquare(bins, draws/float64(n)), 40.)
	}
	// n = 3·2⁶¹ rejects a quarter of all draws: without rejection the three residues modulo 3 would come up as 3 : 3 :
	// 2.
	const large = int64(3) << 61
	var residues [3]float64
	for range 20000 {
		x := s.Int64N(large)
		require.True(t, 0 <= x && x < large)
		residues[x%3]++
	}
	require.Less(t, chiSquare(residues[:], 20000/3.), 25.)
	require.Panics(t, func() { s.Int64N(0) })
	require.Panics(t, func() { s.Int64N(math.MinInt64) })
}
