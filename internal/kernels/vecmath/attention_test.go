// SPDX-License-Identifier: Apache-2.0

package vecmath

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

// scores are the operands of the kernels of attention: rows of n elements, three apart.
type scores struct {
	rows, n, stride     int
	s, d                []float32
	most, factor, delta []float32
	sum                 []float64
}

func newScores(rows, n int) *scores {
	r := rand.New(rand.NewPCG(uint64(rows), uint64(n)))
	fill := func(n int, scale float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64() * scale)
		}
		return x
	}
	stride := n + 3
	x := &scores{rows: rows, n: n, stride: stride, s: fill(rows*stride, 10), d: fill(rows*stride, 1),
		most: fill(rows, 5), factor: make([]float32, rows), delta: fill(rows, 1)}
	x.sum = make([]float64, rows)
	for i := range rows {
		x.sum[i] = 1 + r.Float64()
	}
	return x
}

// TestSoftmaxRows compares with float64, and sees that nothing between the rows is written.
func TestSoftmaxRows(t *testing.T) {
	inf := float32(math.Inf(1))
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, n := range []int{16, 32, 48, 64, 80, 256} {
			const scale = 0.7
			x, before := newScores(7, n), newScores(7, n)
			for j := range n { // nothing is seen, neither now nor before; and nothing now
				x.s[2*x.stride+j], x.s[3*x.stride+j] = -inf, -inf
			}
			x.most[2], x.sum[2] = -inf, 0
			x.most[4], x.sum[4] = -inf, 0 // the first step of a row
			copy(before.s, x.s)
			copy(before.most, x.most)
			copy(before.sum, x.sum)
			SoftmaxRows(x.s, n, x.stride, x.most, x.sum, x.factor, scale)
			for i := range x.rows {
				most := float64(before.most[i])
				for j := range n {
					most = max(most, scale*float64(before.s[i*x.stride+j]))
				}
				if i == 2 {
					require.Equal(t, -inf, x.most[i])
					require.Zero(t, x.sum[i])
					most = 0
				} else {
					require.InDelta(t, most, x.most[i], 1e-5)
				}
				require.InEpsilon(t, 1+math.Exp2(float64(before.most[i])-most), 1+float64(x.factor[i]), 1e-5)
				sum := before.sum[i] * math.Exp2(float64(before.most[i])-most)
				for j := range n {
					want := math.Exp2(scale*float64(before.s[i*x.stride+j]) - most)
					sum += want
					require.InDelta(t, want, x.s[i*x.stride+j], 1e-5*want+1e-38)
				}
				require.InDelta(t, sum, x.sum[i], 1e-5*sum)
				require.Equal(t, before.s[i*x.stride+n:(i+1)*x.stride], x.s[i*x.stride+n:(i+1)*x.stride])
			}
			x.s[5] = float32(math.NaN())
			SoftmaxRows(x.s, n, x.stride, x.most, x.sum, x.factor, scale)
			require.True(t, math.IsNaN(x.sum[0]))
			require.False(t, math.IsNaN(x.sum[1]))
		}
	})
}

func TestScoreRows(t *testing.T) {
	inf := float32(math.Inf(1))
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, n := range []int{16, 48, 64, 208} {
			const base, scale = 0.6, 0.3
			x, before := newScores(5, n), newScores(5, n)
			x.s[1], before.s[1] = -inf, -inf
			x.most[3], before.most[3] = inf, inf // a row that sees nothing
			ScoreRows(x.s, x.d, n, x.stride, x.most, x.delta, base, scale)
			for i := range x.rows {
				for j := range n {
					at := i*x.stride + j
					p := math.Exp2(base*float64(before.s[at]) - float64(before.most[i]))
					require.InDelta(t, p, x.s[at], 1e-5*p+1e-38)
					require.InDelta(t, p*scale*float64(before.d[at]-x.delta[i]), x.d[at], 1e-5*p)
				}
				require.Equal(t, before.s[i*x.stride+n:(i+1)*x.stride], x.s[i*x.stride+n:(i+1)*x.stride])
			}
		}
	})
}

func TestScaleRows(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, n := range []int{1, 16, 40, 64, 80} {
			x, before := newScores(5, n), newScores(5, n)
			ScaleRows(x.s, n, x.stride, x.delta)
			for at, v := range before.s {
				if at%x.stride < n {
					v *= x.delta[at/x.stride]
				}
				require.Equal(t, v, x.s[at])
			}
		}
	})
}

func TestDotRows(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, n := range []int{0, 1, 16, 40, 64, 80} {
			x, sum := newScores(6, n), make([]float32, 5)
			DotRows(sum, n, x.s, x.stride, x.d, x.stride-1)
			for i, got := range sum {
				require.Equal(t, float32(Dot(x.s[i*x.stride:][:n], x.d[i*(x.stride-1):][:n])), got, "row %d of %d", i,
					n)
			}
		}
	})
}

func TestHideRows(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for seen := -20; seen < 70; seen++ {
			for grow := range 3 {
				x, before := newScores(7, 48), newScores(7, 48)
				HideRows(x.s, x.rows, x.n, x.stride, seen, grow)
				for at, want := range before.s {
					if i, j := at/x.stride, at%x.stride; j < x.n && j >= seen+i*grow {
						want = float32(math.Inf(-1))
					}
					require.Equal(t, want, x.s[at], "seen %d, grow %d, at %d", seen, grow, at)
				}
			}
		}
	})
}

// TestAttentionVariantsAgree: AVX2 and AVX-512 have the same bits.
func TestAttentionVariantsAgree(t *testing.T) {
	results := map[kernels.Variant]*scores{}
	kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
		x := newScores(9, 272)
		for i := range x.s { // exponents of all sizes
			x.s[i] *= float32(i % 37)
		}
		SoftmaxRows(x.s, x.n, x.stride, x.most, x.sum, x.factor, 1)
		y := newScores(9, 272)
		ScoreRows(y.s, y.d, y.n, y.stride, y.most, y.delta, 4, 0.3)
		x.d = append(y.s, y.d...)
		results[v] = x
	})
	if a, b := results[kernels.AVX2], results[kernels.AVX512]; a != nil && b != nil {
		require.Equal(t, a, b)
	}
}

// TestPower2 compares 2^x with float64 over all exponents.
func TestPower2(t *testing.T) {
	inf := math.Inf(1)
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		const n = 16 * 1024
		x, d := make([]float32, n), make([]float32, n)
		for i := range x {
			x[i] = -155 + 290*float32(i)/n
		}
		got := append([]float32(nil), x...)
		ScoreRows(got, d, n, n, []float32{0}, []float32{0}, 1, 1)
		for i, v := range x {
			want := math.Exp2(float64(v))
			if float64(float32(want)) > math.MaxFloat32 {
				require.Equal(t, inf, float64(got[i]), "2^%v", v)
				continue
			}
			require.InDelta(t, want, got[i], 2.5e-7*want+1.5e-45, "2^%v", v)
		}
	})
}

func TestAttentionRowsRefuse(t *testing.T) {
	f := make([]float32, 64)
	require.Panics(t, func() { SoftmaxRows(f, 15, 16, f[:2], make([]float64, 2), f[:2], 1) })
	require.Panics(t, func() { SoftmaxRows(f, 32, 33, f[:2], make([]float64, 2), f[:2], 1) })
	require.Panics(t, func() { SoftmaxRows(f, 32, 32, f[:2], make([]float64, 1), f[:2], 1) })
	require.Panics(t, func() { ScoreRows(f, f[:32], 32, 32, f[:2], f[:2], 1, 1) })
	require.Panics(t, func() { ScaleRows(f, 32, 40, f[:2]) })
	require.Panics(t, func() { DotRows(f[:2], 32, f, 33, f, 32) })
	require.Panics(t, func() { HideRows(f, 2, 24, 24, 1, 1) })
	require.Panics(t, func() { HideRows(f, 2, 48, 48, 1, 1) })
	SoftmaxRows(nil, 0, 0, nil, nil, nil, 1)
	ScoreRows(nil, nil, 16, 16, nil, nil, 1, 1)
	ScaleRows(nil, 16, 16, nil)
	DotRows(nil, 16, nil, 16, nil, 16)
	HideRows(nil, 0, 16, 16, 1, 1)
}
