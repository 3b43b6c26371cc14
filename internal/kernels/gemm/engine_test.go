// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// drawTiling cuts as small as possible, so that small matrices cross the blocks of every level, on every path.
func drawTiling(t *rapid.T, mr, nr int) tiling {
	times := func(name string, unit, most int) int { return unit * rapid.IntRange(1, most).Draw(t, name) }
	return tiling{
		mr: mr, nr: nr,
		mb: times("mb", mr, 5), tm: times("tm", mr, 3), ka: times("ka", kc, 3), nb: times("nb", nr, 5),
		kb:           times("kb", kc, 2),
		skinny:       rapid.SampledFrom([]int{0, 1, 20, 1000}).Draw(t, "skinny"),
		fusedPacking: fusedPacking{rows: rapid.SampledFrom([]int{0, 20, 1000}).Draw(t, "fusedPacking")},
		narrow:       rapid.SampledFrom([]int{0, 1, 20, 1000}).Draw(t, "narrow"),
	}
}

// with is multiply with an engine.
func with[T element](e *engine[T]) function[T] {
	return func(p *parallel.Pool, m, n, k int, a, b Matrix[T], c Rows[T], accumulate bool) {
		multiply(p, e, newProblem(m, n, k, a, b, c, accumulate))
	}
}

// requireTilingDoesNotMatter compares the bits under a drawn tiling with those under the engine's own.
func requireTilingDoesNotMatter[T element](t *rapid.T, p *parallel.Pool, e *engine[T], x *example[T]) {
	other := *e
	other.tiling = drawTiling(t, e.mr, e.nr)
	requireSameBits(t, x.run(t, with(e), nil), x.run(t, with(&other), p), x.String())
}

func TestTilingDoesNotMatter(t *testing.T) {
	pool := parallel.New(3)
	defer pool.Close()
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		rapid.Check(t, func(t *rapid.T) { requireTilingDoesNotMatter(t, pool, engine32(), drawExample[float32](t)) })
		rapid.Check(t, func(t *rapid.T) { requireTilingDoesNotMatter(t, pool, engine64(), drawExample[float64](t)) })
	})
}

// TestReadingInPlaceDoesNotMatter compares the kernels that read B where it lies, and the product of one summand, with
// those that pack: by number of rows, for whole and cut blocks, of B and of its transpose, and for a C that is written
// row by row or column by column.
func TestReadingInPlaceDoesNotMatter(t *testing.T) {
	readCrowdedFrom(t, 0)
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		if engine32() == &generic32 {
			return // which packs always
		}
		packing := *engine32()
		packing.stream, packing.dots, packing.outer = direct[float32, float32]{}, directAhead[float32, float32]{},
			outer[float32]{}
		packing.gemvHalves, packing.gemvRows, packing.gemvColumns = gemvHalves[float32]{}, gemvRows[float32]{},
			gemvColumns[float32]{}
		for _, m := range some(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14) {
			for _, n := range some(15, 32, 97, 300) {
				for i, k := range []int{1, 16, 40, kc + 32, 4 * kc, kc + 7} {
					for trans := range 4 {
						x := newExample[float32](uint64(m*n*k), m, n, k, trans&1 == 0, trans&2 == 0, i%2, (m+i)%2 == 0)
						want := x.run(t, with(&packing), nil)
						requireSameBits(t, want, x.run(t, Float32, nil), x.String())
						y := newExample[float32](uint64(m*n*k), n, m, k, trans&1 == 0, trans&2 == 0, i%2, (m+i)%2 == 0)
						requireSameBits(t, y.run(t, with(&packing), nil), y.run(t, Float32, nil), y.String())
					}
				}
			}
		}
		for _, n := range []int{33, 128, 300} {
			for _, accumulate := range []bool{false, true} {
				x := newExample[float32](1, 101, n, 1, true, false, 1, accumulate)
				requireSameBits(t, x.run(t, with(&packing), nil), x.run(t, Float32, nil), x.String())
				x.a[3], x.b[5] = 0, float32(math.Copysign(0, -1))
				requireSameBits(t, x.run(t, with(&packing), nil), x.run(t, Float32, nil), x.String())
			}
		}
	})
}

// TestPackingDoesNotMatter compares the kernels that read A where it lies with one that reads packed panels, and
// several panels packed at once with one by one: for whole and cut panels, for columns of A that crowd a cache and
// others, and for a C whose rows are not contiguous.
func TestPackingDoesNotMatter(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		if engine32() == &generic32 {
			return // which has one way alone
		}
		packing, inPlace := *engine32(), *engine32()
		inPlace.skinny, inPlace.fusedPacking, inPlace.narrow, inPlace.mb, inPlace.tm = 0, fusedPacking{}, 0,
			4*inPlace.mr, 2*inPlace.mr
		packing.tiling, packing.rows, packing.tall, packing.copyA, packing.copyB = inPlace.tiling, nil, nil, nil, nil
		for _, m := range some(13, 48, 131, 1024) {
			for _, n := range some(15, 128, 513) {
				for i, k := range []int{1, 40, kc + 7} {
					for trans := range 4 {
						x := newExample[float32](uint64(m*n*k), m, n, k, trans&1 == 0, trans&2 == 0, i%2, (m+i)%2 == 0)
						requireSameBits(t, x.run(t, with(&packing), nil), x.run(t, with(&inPlace), nil), x.String())
					}
				}
			}
		}
		x := newExample[float32](7, 300, 5, kc+9, true, false, 0, true)
		inPlace.narrow, packing.narrow = 5, 5
		requireSameBits(t, x.run(t, with(&packing), nil), x.run(t, with(&inPlace), nil), x.String())
	})
}

// TestOrderOfSummation computes the documented sums step by step: blocks of kc products in ascending order, each
// product rounded on its own by the generic kernel and fused by the others. It would notice a compiler that fuses the
// generic kernel's operations.
func TestOrderOfSummation(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
		single := func(sum, a, b float32) float32 {
			return math.Float32frombits(math.Float32bits(a*b)) + sum // through an integer, so that nothing can fuse
		}
		double := func(sum, a, b float64) float64 { return math.Float64frombits(math.Float64bits(a*b)) + sum }
		if v != kernels.Generic {
			// The product of two float32 is exact in float64. That the sum is rounded twice matters once in 2²⁹ times,
			// not for these operands.
			single = func(sum, a, b float32) float32 { return float32(float64(a)*float64(b) + float64(sum)) }
			double = func(sum, a, b float64) float64 { return math.FMA(a, b, sum) }
		}
		requireOrderOfSummation(t, Float32, single)
		requireOrderOfSummation(t, Float64, double)
	})
}

func requireOrderOfSummation[T element](t *testing.T, f function[T], step func(sum, a, b T) T) {
	for _, accumulate := range []bool{false, true} {
		x := newExample[T](11, 13, 37, 2*kc+88, false, true, 0, accumulate)
		want := make([]T, len(x.c))
		for i := range x.m {
			for j := range x.n {
				total, started := x.c[i*x.ldc+j], accumulate
				for k0 := 0; k0 < x.k; k0 += kc {
					var sum T
					for p := k0; p < min(k0+kc, x.k); p++ {
						sum = step(sum, x.a[i*x.ars+p*x.acs], x.b[p*x.brs+j*x.bcs])
					}
					if started {
						sum += total
					}
					total, started = sum, true
				}
				want[i*x.ldc+j] = total
			}
		}
		requireSameBits(t, want, x.run(t, f, nil), x.String())
	}
}

// TestSweepingDoesNotMatter compares the kernels that read rows of B from end to end with those that read a few
// columns, for limits that small matrices reach.
func TestSweepingDoesNotMatter(t *testing.T) {
	defer func(large func() bool) { largeL2 = large }(largeL2)
	largeL2 = func() bool { return false } // or nothing is prefetched
	pool := parallel.New(3)
	defer pool.Close()
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		streaming, prefetching := *engine32(), *engine32()
		streaming.gemvRows = gemvRows[float32]{}
		prefetching.gemvRows.gemvRowsLimits = gemvRowsLimits{ways: math.MaxInt, columns: 64, strip: 128, kept: 1000}
		behind := prefetching
		behind.gemvRows.large = math.MaxInt
		for _, n := range []int{64, 128, 200, 500} {
			for i, k := range []int{1, 3, 16, kc, kc + 2, 5*kc + 7, 20 * kc} {
				for _, accumulate := range []bool{false, true} {
					x := newExample[float32](uint64(n*k), 1, n, k, false, false, i%2, accumulate)
					want := x.run(t, with(&streaming), nil)
					requireSameBits(t, want, x.run(t, with(&prefetching), pool), x.String())
					requireSameBits(t, want, x.run(t, with(&behind), nil), x.String())
				}
			}
		}
	})
}

// TestSharingProductsDoesNotMatter: a deep product has the bits that it has where one worker computes it, whatever is
// kept at a time.
func TestSharingProductsDoesNotMatter(t *testing.T) {
	defer func(large func() bool) { largeL2 = large }(largeL2)
	largeL2 = func() bool { return true } // of few rows, too
	pool := parallel.New(3)
	defer pool.Close()
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		whole, shared := *engine32(), *engine32()
		whole.splitKLimits = splitKLimits{}
		if shared.gemvRows.add == nil {
			require.Zero(t, shared.splitKLimits)
			return
		}
		shared.results, shared.blocks, shared.large = 1<<14, 1, 0
		for _, size := range [][2]int{{13, 33}, {64, 147}, {40, 40}, {2, 64}, {5, 300}} {
			for _, kept := range []int{1, 1 << 15, 1 << 20} {
				shared.kept = kept
				for i, k := range []int{3 * kc, 4*kc + 9, 9 * kc} {
					for option := range 8 {
						x := newExample[float32](uint64(k+option), size[0], size[1], k, option&1 != 0, option&2 != 0,
							i%2, option&4 != 0)
						requireSameBits(t, x.run(t, with(&whole), nil), x.run(t, with(&shared), pool), x.String())
					}
				}
			}
		}
	})
}

// TestGEMVOfColumnsDoesNotMatter compares the GEMV kernels that go down columns of B with those that read twice as many
// side by side, whatever the processor prefers.
func TestGEMVOfColumnsDoesNotMatter(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		dots, gemv := *engine32(), *engine32()
		dots.gemvColumns = gemvColumns[float32]{}
		gemv.gemvColumns.ways = math.MaxInt
		for _, n := range []int{16, 31, 48, 128, 300} {
			for i, k := range []int{kc, 2 * kc, 3 * kc, 4 * kc, 8 * kc} {
				for _, accumulate := range []bool{false, true} {
					for pad := range 2 {
						x := newExample[float32](uint64(n*k+i), 1, n, k, false, true, pad, accumulate)
						requireSameBits(t, x.run(t, with(&dots), nil), x.run(t, with(&gemv), nil), x.String())
					}
				}
			}
		}
	})
}

// TestLargeOuterProduct is written by non-temporal stores where rows begin at whole cache lines.
func TestLargeOuterProduct(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: 64 MiB and more")
	}
	const m = 4100
	pool := parallel.New(2)
	defer pool.Close()
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, n := range []int{4096, 4112, 4111} {
			a, b, memory := make([]float32, m), make([]float32, n), make([]float32, m*n+16)
			for i := range a {
				a[i] = float32(i%97) - 48
			}
			for i := range b {
				b[i] = float32(i%89) - 44
			}
			for len(memory)*4 >= nonTemporalSize && uintptr(unsafe.Pointer(&memory[0]))%nonTemporalAlign != 0 {
				memory = memory[1:]
			}
			c := memory[:m*n]
			Float32(pool, m, n, 1, Strided(a, 1, 1), Strided(b, n, 1), InRows(c, n), false)
			for i, x := range a {
				for j, y := range b {
					if c[i*n+j] != x*y {
						require.Equal(t, x*y, c[i*n+j], "(%d,%d) of %d columns", i, j, n)
					}
				}
			}
		}
	})
}

// TestCopyingPanelsDoesNotMatter compares an A that is read in place with one whose panels are copied, since its rows
// or columns lie a multiple of 4 KiB apart.
func TestCopyingPanelsDoesNotMatter(t *testing.T) {
	defer func(ways func() int) { l1Ways = ways }(l1Ways)
	pool := parallel.New(2)
	defer pool.Close()
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		const m, n, k = 155, 301, kc + 44
		rows := newExample[float32](1, m, n, k, false, false, 1024-k, false)
		product := func(ways int) []float32 {
			l1Ways = func() int { return ways }
			return rows.run(t, Float32, pool)
		}
		requireSameBits(t, product(roomy), product(1), rows.String())

		crowding := newExample[float32](1, m, n, k, true, false, 1024-m, false)
		loose := *crowding
		loose.acs = m
		loose.a = make([]float32, m*k)
		for p := range k {
			copy(loose.a[p*m:][:m], crowding.a[p*crowding.acs:])
		}
		requireSameBits(t, loose.run(t, Float32, pool), crowding.run(t, Float32, pool), crowding.String())
	})
}

// TestPackingByTheWayDoesNotMatter compares panels of B that are packed by the kernel for A's first rows with those
// that are packed before, where there is such a kernel.
func TestPackingByTheWayDoesNotMatter(t *testing.T) {
	pool := parallel.New(2)
	defer pool.Close()
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		if engine32().keeping == nil {
			return
		}
		before, byTheWay := *engine32(), *engine32()
		before.skinny, before.fusedPacking = 0, fusedPacking{}
		byTheWay.skinny, byTheWay.fusedPacking = 0, fusedPacking{rows: 1000}
		for _, m := range some(13, 24, 53, 130) {
			for _, n := range some(256, 264, 300, 1700) {
				for i, k := range []int{fusedProducts, kc + 3, 2*kc + 100} {
					for option := range 8 {
						x := newExample[float32](uint64(m*n*k), m, n, k, false, option&4 != 0, 9*(option&1),
							option&2 != 0)
						want := x.run(t, with(&before), nil)
						requireSameBits(t, want, x.run(t, with(&byTheWay), []*parallel.Pool{nil, pool}[i%2]),
							x.String())
					}
				}
			}
		}
	})
}

// TestPrefetchingRowsChangesNothing compares products of few rows whose kernels prefetch what comes next of B with
// those whose kernels do not.
func TestPrefetchingRowsChangesNothing(t *testing.T) {
	defer func(ways func() int) { l1Ways = ways }(l1Ways)
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		unpacked := *engine32()
		unpacked.skinny = 144
		for i, k := range []int{40, 2*kc + 7, 5 * kc} {
			for _, add := range []bool{false, true} {
				x := newExample[float32](uint64(i), 53, 1101, k, false, false, 0, add)
				product := func(ways int) []float32 {
					l1Ways = func() int { return ways }
					return x.run(t, with(&unpacked), nil)
				}
				requireSameBits(t, product(roomy), product(1), x.String())
			}
		}
	})
}

// some is every second of its arguments under -short, which the race detector and emulators run with, and all of them
// otherwise.
func some[T any](all ...T) (list []T) {
	for i, x := range all {
		if i%2 == 0 || !testing.Short() {
			list = append(list, x)
		}
	}
	return list
}
