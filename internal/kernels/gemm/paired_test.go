// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// drawPaired draws a product with enough rows for pairs, of operands whose magnitudes go from lo to 2¹⁰: with zeros of
// both signs and, from −133 on, denormal numbers.
func drawPaired(t *rapid.T, lo int) *halfCase {
	x := drawExample[float32](t)
	if x.m <= 12 {
		m := rapid.SampledFrom([]int{13, 25, 60}).Draw(t, "rows")
		x = newExample[float32](1, m, x.n, x.k, rapid.Bool().Draw(t, "tall"), rapid.Bool().Draw(t, "wide"),
			rapid.IntRange(0, 3).Draw(t, "gap"), x.accumulate)
	}
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "values"), 3))
	for _, s := range [][]float32{x.a, x.b} {
		for i := range s {
			s[i] = float32(math.Ldexp(float64(2*rng.IntN(2)-1)*(1+rng.Float64()), lo+rng.IntN(11-lo)))
			if rng.IntN(20) == 0 {
				s[i] *= 0
			}
		}
	}
	return newHalfCase(x)
}

// TestTinyMagnitudes: sums that an instruction would flush to zero have their bits all the same.
func TestTinyMagnitudes(t *testing.T) {
	pool := parallel.New(2)
	defer pool.Close()
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) { requireTinyMagnitudes(t, pool) })
}

func requireTinyMagnitudes(t *testing.T, pool *parallel.Pool) {
	for _, lo := range []int{-10, -56, -57, -75, -133} {
		rapid.Check(t, func(t *rapid.T) { drawPaired(t, lo).requireWidenedExactly(t, pool) })
	}
}

// TestDenormalSums has operands of the least magnitudes for which pairs are taken, or half of that, and sums that
// cancel to the least that are possible.
func TestDenormalSums(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) { requireDenormalSums(t) })
}

func requireDenormalSums(t *testing.T) {
	for i, e := range []int{-56, -57, -60, -70, -80} {
		const m, n = 24, 64
		k := []int{300, 3, 301}[i%3] // at −80 a sum is −0
		x := newExample[float32](1, m, n, k, false, false, 0, false)
		for i := range x.a {
			x.a[i] = float32(math.Ldexp(1+float64(i%k%2)/128, e)) // neighbouring products differ by their last bit
		}
		for i := range x.b {
			x.b[i] = float32(math.Ldexp(float64(i/n%2*2-1), e))
		}
		newHalfCase(x).requireWidenedExactly(t, nil)
	}
}

func TestNormal(t *testing.T) {
	of := func(x float64) uint32 { return uint32(dtype.ToBF16(float32(x))) }
	require.True(t, normal(of(0x1p-56), of(0x1p-56)))
	require.True(t, normal(of(0x1p-100), of(0x1p-12)))
	require.True(t, normal(of(1), 1<<16), "all of the other are zero")
	require.False(t, normal(of(0x1p-57), of(0x1p-56)))
	require.False(t, normal(of(0x1p-127), of(0x1p100)), "denormal itself")
}

// TestPairedNonFinite puts a NaN or an infinity into each place in turn.
func TestPairedNonFinite(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) { requirePairedNonFinite(t) })
}

func requirePairedNonFinite(t *testing.T) {
	const m, n, k = 14, 37, 5
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for at := range m*k + k*n {
			h := newHalfCase(newExample[float32](1, m, n, k, false, false, 0, false))
			if at < m*k {
				h.a16[at], h.a[at] = dtype.ToBF16(float32(bad)), float32(bad)
			} else {
				h.b16[at-m*k], h.b[at-m*k] = dtype.ToBF16(float32(bad)), float32(bad)
			}
			want, got := h.run(t, Float32, nil), h.run(t, widened(h.a16, h.b16), nil)
			for i := range want {
				// One NaN is as good as another.
				if want[i] != got[i] && (want[i] == want[i] || got[i] == got[i]) {
					require.Failf(t, "wrong element", "%v at %d, element %d is %v: want %v", bad, at, i, got[i],
						want[i])
				}
			}
		}
	}
}
