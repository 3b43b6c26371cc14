// SPDX-License-Identifier: Apache-2.0

package rng_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/internal/rng"
)

var _ rand.Source = (*rng.Stream)(nil)

func TestStreamSeek(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, skip := rapid.Uint64().Draw(t, "key"), rapid.IntRange(0, 20).Draw(t, "skip")
		a, b := rng.NewStream(key), rng.NewStream(key)
		for i := range skip {
			require.Equal(t, rng.Uint64At(key, 0, uint64(i)), a.Uint64())
		}
		gotKey, drawn := a.State()
		require.Equal(t, key, gotKey)
		require.EqualValues(t, skip, drawn)
		b.Seek(drawn)
		for range 5 {
			require.Equal(t, a.Uint64(), b.Uint64())
		}
	})
}

func TestStreamFloat64(t *testing.T) {
	s := rng.NewStream(3)
	require.Equal(t, rng.Float64At(3, 0, 0), s.Float64())
	require.Equal(t, rng.Float64At(3, 0, 1), s.Float64())
}

func TestInt64N(t *testing.T) {
	s := rng.NewStream(1)
	for _, n := range []int64{1, 2, 7, 10} {
		bins, at := make([]float64, n), make([]float64, n)
		const draws = 20000
		for i := range uint64(draws) {
			bins[s.Int64N(n)]++
			at[rng.Int64NAt(n, 9, 4, i)]++
		}
		require.Less(t, chiSquare(bins, draws/float64(n)), 40.)
		require.Less(t, chiSquare(at, draws/float64(n)), 40.)
	}
	// n = 3·2⁶¹ rejects a quarter of all draws: without rejection the three residues modulo 3 would come up as 3 : 3 :
	// 2.
	const large = int64(3) << 61
	var residues, atResidues [4]float64
	for i := range uint64(20000) {
		x, y := s.Int64N(large), rng.Int64NAt(large, 9, 4, i)
		require.True(t, 0 <= x && x < large && 0 <= y && y < large)
		residues[x%3]++
		atResidues[y%3]++
	}
	require.Less(t, chiSquare(residues[:3], 20000/3.), 25.)
	require.Less(t, chiSquare(atResidues[:3], 20000/3.), 25.)
	require.Panics(t, func() { s.Int64N(0) })
	require.Panics(t, func() { rng.Int64NAt(math.MinInt64, 0, 0, 0) })
}
