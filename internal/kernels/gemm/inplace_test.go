// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// inPlaceExample is a product of a strided A and a B in rows or panels; C's rows are further apart than they are wide.
type inPlaceExample[T element] struct {
	m, n, k, ars, acs, ldc int
	a, b, c                []T
	add                    bool
}

func newInPlaceExample[T element](m, n, k int, transposed, add bool) *inPlaceExample[T] {
	r := rand.New(rand.NewPCG(uint64(m), uint64(n*k)))
	fill := func(n int) []T {
		x := make([]T, n)
		for i := range x {
			x[i] = T(r.Float64()*2 - 1)
		}
		return x
	}
	x := &inPlaceExample[T]{m: m, n: n, k: k, ars: k + 3, acs: 1, ldc: n + 5, add: add}
	if transposed {
		x.ars, x.acs = 1, m+2
	}
	x.a, x.b, x.c = fill((m-1)*x.ars+(k-1)*x.acs+1), fill(k*(n+1)), fill((m-1)*x.ldc+n)
	return x
}

// want computes an element in the order that is promised; fused says whether a product is added without being rounded.
func (x *inPlaceExample[T]) want(i, j int, fused bool) T {
	var s T
	if x.add {
		s = x.c[i*x.ldc+j]
	}
	for p := range x.k {
		v, w := float64(x.a[i*x.ars+p*x.acs]), float64(x.b[p*(x.n+1)+j])
		if fused {
			s = T(math.FMA(v, w, float64(s)))
		} else {
			s += T(T(v) * T(w))
		}
	}
	return s
}

// result is C as e computes it, of B where it lies or packed.
func (x *inPlaceExample[T]) result(e *engine[T], packed bool) []T {
	c := append([]T(nil), x.c...)
	if !packed {
		inPlace(e, x.m, x.n, x.k, Strided(x.a, x.ars, x.acs), Panels[T]{x.b, x.n + 1, e.nr}, InRows(c, x.ldc), x.add,
			nil)
		return c
	}
	panels := make([]T, ceilDiv(x.n, e.nr)*e.nr*x.k)
	packInPlace(e, panels, x.k, x.n, Strided(x.b, x.n+1, 1))
	inPlace(e, x.m, x.n, x.k, Strided(x.a, x.ars, x.acs), Panels[T]{panels, e.nr, e.nr * x.k}, InRows(c, x.ldc), x.add,
		nil)
	return c
}

func requireInPlace[T element](t *testing.T, e *engine[T], fused bool, tolerance float64) {
	for _, m := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 25} {
		for _, n := range []int{1, 16, 31, 32, 64, 69} {
			for _, k := range []int{1, 3, 4, 9, 64} {
				x := newInPlaceExample[T](m, n, k, (m+n)%2 == 0, k%3 == 0)
				got := x.result(e, false)
				require.Equal(t, got, x.result(e, true), "packed %d×%d×%d", m, n, k)
				for i := range m {
					for j := range n {
						require.InDelta(t, float64(x.want(i, j, fused)), float64(got[i*x.ldc+j]), tolerance,
							"%d×%d×%d at (%d, %d)", m, n, k, i, j)
						x.c[i*x.ldc+j] = got[i*x.ldc+j]
					}
				}
				require.Equal(t, x.c, got, "%d×%d×%d: something else was written", m, n, k)
			}
		}
	}
}

func TestInPlace(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
		requireInPlace(t, engine32(), v != kernels.Generic, 2e-6)
		requireInPlace(t, engine64(), v != kernels.Generic, 1e-14)
	})
}

// TestInPlaceVariantsAgree: AVX2 and AVX-512 have the same bits.
func TestInPlaceVariantsAgree(t *testing.T) {
	results := map[kernels.Variant][]float32{}
	kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
		results[v] = newInPlaceExample[float32](29, 83, 77, true, true).result(engine32(), false)
	})
	if a, b := results[kernels.AVX2], results[kernels.AVX512]; a != nil && b != nil {
		require.Equal(t, a, b)
	}
}

func TestInPlaceOfNothing(t *testing.T) {
	c := []float32{1, 2, 3, 4}
	InPlace(2, 2, 0, Matrix[float32]{}, Panels[float32]{}, InRows(c, 2), true, nil)
	require.Equal(t, []float32{1, 2, 3, 4}, c)
	InPlace(2, 2, 0, Matrix[float32]{}, Panels[float32]{}, InRows(c, 2), false, nil)
	require.Equal(t, make([]float32, 4), c)
	InPlace(0, 2, 1, Matrix[float32]{}, Panels[float32]{}, InRows[float32](nil, 2), false, nil)
	require.Panics(t, func() {
		InPlace(2, 2, 2, Strided(c[:3], 2, 1), Panels[float32]{c, 2, 2}, InRows(c, 2), false, nil)
	})
	require.Panics(t, func() {
		InPlace(2, 2, 1, Strided(c, 1, 1), Panels[float32]{c[:1], 2, 2}, InRows(c, 2), false, nil)
	})
	require.Panics(t, func() {
		InPlace(2, 2, 1, Strided(c, 1, 1), Panels[float32]{c, 2, 2}, InRows(c[:3], 2), false, nil)
	})
	require.Panics(t, func() {
		InPlace(2, 2, 1, Strided(c, 1, 1), Panels[float32]{c, 2, 2}, InRows(c, 1), false, nil)
	})
	require.Panics(t, func() { PackInPlace(make([]float32, 8), 1, 100, Strided(make([]float32, 100), 100, 1)) })
}

func TestInPlaceAllocatesNothing(t *testing.T) {
	x := newInPlaceExample[float32](25, 69, 64, false, true)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		inPlace(engine32(), x.m, x.n, x.k, Strided(x.a, x.ars, x.acs), Panels[float32]{x.b, x.n + 1, engine32().nr},
			InRows(x.c, x.ldc), x.add, nil)
	}))
}

// TestInPlaceBroad: two panels side by side have the bits of one after the other, whatever blocks of products they are
// summed in.
func TestInPlaceBroad(t *testing.T) {
	defer func(f func() bool) { sideBySide = f }(sideBySide)
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, m := range []int{12, 13, 18, 29, 36} {
			for _, k := range []int{1, 5, 64, 128, 131, 300} {
				for _, n := range []int{32, 64, 96, 131} {
					x, y := newInPlaceExample[float32](m, n, k, n%3 == 0, k%2 == 0),
						newInPlaceExample[float64](m, n, k, n%3 != 0, k%2 == 1)
					results := func(broad bool) ([]float32, []float64) {
						sideBySide = func() bool { return broad }
						return x.result(engine32(), n%2 == 0), y.result(engine64(), n%2 == 0)
					}
					narrow, narrow64 := results(false)
					broad, broad64 := results(true)
					require.Equal(t, narrow, broad, "%d×%d×%d", m, n, k)
					require.Equal(t, narrow64, broad64, "%d×%d×%d of float64", m, n, k)
				}
			}
		}
	})
}

// BenchmarkInPlace compares products of a tile of attention in place with Float32, which packs, alternately:
// packed/placed is the median of the ratios, the gain of kernels for operands that lie in a core's caches.
func BenchmarkInPlace(b *testing.B) {
	e := engine32()
	pool := parallel.New(1)
	defer pool.Close()
	for _, s := range []struct{ m, n, k int }{
		{192, 256, 64}, {192, 64, 256}, {64, 192, 256}, {12, 256, 64}, {8, 256, 64}, {4, 256, 64}, {2, 256, 64},
		{1, 256, 64},
	} {
		b.Run(fmt.Sprintf("%d×%d×%d", s.m, s.n, s.k), func(b *testing.B) {
			x := newExample[float32](1, s.m, s.n, s.k, false, false, 0, false)
			panels := make([]float32, s.k*s.n)
			packInPlace(e, panels, s.k, s.n, Strided(x.b, x.brs, x.bcs))
			placed := func() {
				inPlace(e, s.m, s.n, s.k, Strided(x.a, x.ars, x.acs), Panels[float32]{panels, e.nr, s.k * e.nr},
					InRows(x.c, x.ldc), false, nil)
			}
			packed := func() {
				multiply(pool, e, newProblem(s.m, s.n, s.k, Strided(x.a, x.ars, x.acs), Strided(x.b, x.brs, x.bcs),
					InRows(x.c, x.ldc), false))
			}
			timed := func(run func()) float64 {
				start := time.Now()
				for range 1 + 3_000_000/(s.m*s.n*s.k) {
					run()
				}
				return time.Since(start).Seconds()
			}
			var ratios []float64
			for b.Loop() {
				first, other, second := timed(placed), timed(packed), timed(placed)
				ratios = append(ratios, 2*other/(first+second))
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "packed/placed")
		})
	}
}
