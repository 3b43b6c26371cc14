// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/bench/internal/stats"
)

// BenchmarkRows runs our side of every row on one worker.
func BenchmarkRows(b *testing.B) {
	for _, r := range rows() {
		b.Run(r.name, func(b *testing.B) {
			run, end := r.open(1)
			defer end()
			for b.Loop() {
				run()
			}
		})
	}
}

func TestMedian(t *testing.T) {
	require.Equal(t, 2.0, stats.Median([]float64{3, 1, 2}))
	require.Equal(t, 2.5, stats.Median([]float64{4, 1, 2, 3}))
}

// TestRowsHaveNames: a RATIO line names its row without spaces, and no two alike.
func TestRowsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rows() {
		require.Regexp(t, `^[a-z0-9_]+$`, r.name)
		require.False(t, seen[r.name], r.name)
		seen[r.name] = true
	}
}

// TestTriad: the assembly computes what its measure says, on lengths that are no multiple of its turn.
func TestTriad(t *testing.T) {
	for _, n := range []int{0, 1, 31, 32, 100} {
		a, b, c, want := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
		for i := range n {
			b[i], c[i], want[i] = float32(i), float32(i*i), float32(i+3*i*i)
		}
		triadTurn(a, b, c)
		require.Equal(t, want, a)
	}
}

// TestCopies: each way copies everything, of lengths that are no multiple of its turn, from and to any address.
func TestCopies(t *testing.T) {
	for _, n := range []int{0, 1, 127, 128, 300} {
		for _, at := range []int{0, 1, 32} {
			src := make([]byte, n+at)
			for i := range src {
				src[i] = byte(i + 1)
			}
			for i, way := range copies {
				dst := make([]byte, n+at)
				way(dst[at:], src[at:])
				require.Equal(t, src[at:], dst[at:], "way %d, %d bytes from %d on", i, n, at)
			}
		}
	}
}
