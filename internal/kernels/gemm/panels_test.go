// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

// padded is a matrix whose rows and columns have room up to a multiple of the steps; what is beyond the edges is a
// number that would show.
func padded[T element](r *rand.Rand, rows, cols, rowStep, colStep, gap int) (x []T, stride int) {
	stride = ceilDiv(cols, colStep)*colStep + gap
	x = make([]T, ceilDiv(rows, rowStep)*rowStep*stride)
	for i := range x {
		x[i] = T(r.NormFloat64())
	}
	return x, stride
}

// testPanels compares products of panels with those that multiply computes, bit for bit.
func testPanels[T element](t *testing.T, multiply func(m, n, k int, a []T, ars, acs int, b []T, brs, bcs int, c []T,
	ldc int)) {
	r := rand.New(rand.NewPCG(5, 6))
	width := PanelWidth[T]()
	for _, s := range [][3]int{{1, 1, 1}, {4, 32, 3}, {12, 64, 256}, {13, 33, 257}, {22, 5, 600}, {64, 48, 147},
		{0, 3, 4}, {3, 0, 4}, {30, 100, 40}} {
		m, n, k := s[0], s[1], s[2]
		b := make([]T, k*n)
		for i := range b {
			b[i] = T(r.NormFloat64())
		}
		up := ceilDiv(n, width) * width
		panels := make([]T, k*up)
		PackPanels(panels, k, n, Strided(b, n, 1))
		wide, brs := padded[T](r, k, n, 1, width, 3)
		for p := range k {
			copy(wide[p*brs:p*brs+n], b[p*n:])
		}
		a, ars := padded[T](r, m, k, RowStep, 1, 2)
		tall, trs := padded[T](r, k, m, 1, RowStep, 1)
		for i := range m {
			for p := range k {
				tall[p*trs+i] = a[i*ars+p]
			}
		}
		bias, _ := padded[T](r, 1, up, 1, 1, 0)
		c, crs := padded[T](r, m, n, RowStep, width, 5)
		want := make([]T, max(1, m*n))
		multiply(m, n, k, a, ars, 1, b, n, 1, want, n)
		same := func(what string) {
			t.Helper()
			for i := range m {
				require.Equal(t, want[i*n:(i+1)*n], c[i*crs:i*crs+n], "%s, %v, row %d", what, s, i)
			}
		}
		MultiplyPanels(m, n, k, InRows(a, ars), panels, InRows(c, crs), Rows[T]{})
		same("panels")
		clear(c)
		MultiplyTall(m, n, k, InRows(tall, trs), InRows(wide, brs), InRows(c, crs), Rows[T]{})
		same("tall")
		if k > kc {
			continue // the sum of D and of a first block is not that of D and of all blocks
		}
		for i := range m {
			for j := range n {
				want[i*n+j] = bias[j] + want[i*n+j]
			}
		}
		MultiplyPanels(m, n, k, InRows(a, ars), panels, InRows(c, crs), InRows(bias, 0))
		same("panels with a bias")
		MultiplyTall(m, n, k, InRows(tall, trs), InRows(wide, brs), InRows(c, crs), InRows(bias, 0))
		same("tall with a bias")
	}
}

func TestPanels(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		testPanels(t, func(m, n, k int, a []float32, ars, acs int, b []float32, brs, bcs int, c []float32, ldc int) {
			vectors := *engine32()
			vectors.tiles = tiles[float32]{}
			with(&vectors)(nil, m, n, k, Strided(a, ars, acs), Strided(b, brs, bcs), InRows(c, ldc), false)
		})
	})
	testPanels(t, func(m, n, k int, a []float64, ars, acs int, b []float64, brs, bcs int, c []float64, ldc int) {
		multiply(nil, &generic64, newProblem(m, n, k, Strided(a, ars, acs), Strided(b, brs, bcs), InRows(c, ldc),
			false))
	})
}

func TestPanelsRefuse(t *testing.T) {
	width := PanelWidth[float32]()
	a, panels, c := make([]float32, 4*3), make([]float32, 3*width), make([]float32, 4*width)
	in, none := InRows[float32], Rows[float32]{}
	MultiplyPanels(4, width, 3, in(a, 3), panels, in(c, width), none)
	require.Panics(t, func() { MultiplyPanels(4, width, 3, in(a[1:], 3), panels, in(c, width), none) })
	require.Panics(t, func() { MultiplyPanels(4, width, 3, in(a, 3), panels[1:], in(c, width), none) })
	require.Panics(t, func() { MultiplyPanels(4, width, 3, in(a, 3), panels, in(c[1:], width), none) })
	require.Panics(t, func() { MultiplyTall(4, width, 3, in(a[1:], 4), in(panels, width), in(c, width), none) })
	require.Panics(t, func() { MultiplyTall(4, width, 3, in(a, 4), in(panels, width), in(c, width), in(c[1:], width)) })
	require.Panics(t, func() { PackPanels(panels, 3, width, Strided(panels[1:], width, 1)) })
}

func TestUnfold(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		r := rand.New(rand.NewPCG(7, 8))
		for _, s := range [][5]int{{1, 1, 1, 1, 0}, {5, 3, 7, 7, 2}, {4, 1, 3, 21, 3}, {3, 2, 2, 16, 1},
			{2, 1, 3, 192, 64}, {3, 2, 1, 9, 8}, {0, 1, 1, 1, 1}} {
			places, planes, rows, run, step := s[0], s[1], s[2], s[3], s[4]
			window := planes * rows * run
			pitch, rowStride := window+1, run+2
			planeStride := rows*rowStride + 1
			src, _ := padded[float32](r, 1, places*step+planes*planeStride+run+UnfoldSlack, 1, 1, 0)
			want := make([]float32, places*pitch+window+UnfoldSlack)
			got := make([]float32, len(want))
			unfoldGeneric(want, pitch, places, src, step, planes, planeStride, rows, rowStride, run)
			Unfold(got, pitch, places, src, step, planes, planeStride, rows, rowStride, run)
			for j := range places {
				require.Equal(t, want[j*pitch:j*pitch+window], got[j*pitch:j*pitch+window], "%v, window %d", s, j)
			}
		}
	})
	require.Panics(t, func() { Unfold(make([]float32, 30), 4, 1, make([]float32, 19), 1, 1, 1, 1, 1, 4) })
	require.Panics(t, func() { Unfold(make([]float32, 19), 4, 1, make([]float32, 30), 1, 1, 1, 1, 1, 4) })
}
