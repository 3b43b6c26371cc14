// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// TestFMATurns: the loop multiplies and adds what it says, and its sums stay where they are for any number of turns.
func TestFMATurns(t *testing.T) {
	for _, v := range kernels.Available() {
		n, ok := fmaVectors[v]
		if !ok {
			continue
		}
		x := fmaOperands(v)
		sums, a := x[:n.sums*n.width], x[n.sums*n.width:]
		half := len(a) / 2 // two lists of factors, each of the first by each of the second
		b, count := a[half:], half/n.width
		want := make([]float32, len(sums))
		for i, s := range sums {
			k, lane := i/n.width, i%n.width
			p := float64(a[k%count*n.width+lane]) * float64(b[k/count%count*n.width+lane])
			up := float32(float64(s) + p)
			require.True(t, up > 2 && up < 5)
			want[i] = float32(float64(up) - p)
		}
		require.Equal(t, 4*float64(len(sums)), fmaTurns(v, 1, x))
		require.Equal(t, want, sums)
		fmaTurns(v, 1<<20, x)
		for i, s := range sums {
			require.InDelta(t, want[i], s, 1e-6)
		}
	}
}

// TestBeside: a row of operations runs between two turns of the loop, others do not; a share is of that, of half of it
// in float64.
func TestBeside(t *testing.T) {
	runs := 0
	ours := func() float64 { runs++; return 0.5 }
	r := row{flops: 1e9, ofCeiling: true}
	seconds, ceiling := r.beside(2, time.Millisecond, ours)
	require.Equal(t, 0.5, seconds)
	require.Equal(t, kernels.Active() != kernels.Generic, ceiling > 0)
	require.Equal(t, 0.5, r.share(seconds, 4e9))
	require.Zero(t, r.share(seconds, 0))
	r.double = true
	require.Equal(t, 1.0, r.share(seconds, 4e9))
	seconds, ceiling = row{flops: 1e9}.beside(1, time.Millisecond, ours)
	require.Equal(t, 0.5, seconds)
	require.Zero(t, ceiling)
	require.Equal(t, 2, runs)
	require.Equal(t, 2.0, row{bytes: 1e9}.share(0.5, 1e9))
}
