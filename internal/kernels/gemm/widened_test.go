// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// halfCase is an example with its operands in both half types; those of the example hold the same values as the
// bfloat16 ones.
type halfCase struct {
	*example[float32]
	a16, b16   []dtype.BF16
	aF16, bF16 []dtype.F16
}

// newHalfCase rounds the operands of an example.
func newHalfCase(x *example[float32]) *halfCase {
	h := &halfCase{example: x}
	for i, v := range x.a {
		h.a16, h.aF16 = append(h.a16, dtype.ToBF16(v)), append(h.aF16, dtype.ToF16(v))
		x.a[i] = h.a16[i].Float32()
	}
	for i, v := range x.b {
		h.b16, h.bF16 = append(h.b16, dtype.ToBF16(v)), append(h.bF16, dtype.ToF16(v))
		x.b[i] = h.b16[i].Float32()
	}
	return h
}

// widened is Widened of operands, as a function of float32 whose own operands do not count.
func widened[A, B Operand](a []A, b []B) function[float32] {
	return func(p *parallel.Pool, m, n, k int, x, y Matrix[float32], c Rows[float32], accumulate bool) {
		var f *Fused[float32]
		if accumulate {
			f = &Fused[float32]{Add: c.Data, RowStride: c.Stride, ColStride: 1}
		}
		Widened(p, m, n, k, Strided(a, x.RowStride, x.ColStride), Strided(b, y.RowStride, y.ColStride), c, f)
	}
}

// requireWidenedExactly compares the products of bfloat16 operands, and of one such and one of float32, with that of
// widened ones.
func (h *halfCase) requireWidenedExactly(t require.TestingT, p *parallel.Pool) {
	want := h.run(t, Float32, nil)
	requireSameBits(t, want, h.run(t, widened(h.a16, h.b16), p), h.String())
	requireSameBits(t, want, h.run(t, widened(h.a, h.b16), p), h.String())
	requireSameBits(t, want, h.run(t, widened(h.a16, h.b), p), h.String())
}

// requireF16Exactly is the same for a product of float16 operands.
func (h *halfCase) requireF16Exactly(t require.TestingT, p *parallel.Pool) {
	wide := *h.example
	wide.a, wide.b = nil, nil
	for _, v := range h.aF16 {
		wide.a = append(wide.a, v.Float32())
	}
	for _, v := range h.bF16 {
		wide.b = append(wide.b, v.Float32())
	}
	requireSameBits(t, wide.run(t, Float32, nil), wide.run(t, widened(h.aF16, h.bF16), p), wide.String())
}

func TestWidenedEqualsFloat32(t *testing.T) {
	pool := parallel.New(3)
	defer pool.Close()
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		rapid.Check(t, func(t *rapid.T) {
			h := newHalfCase(drawExample[float32](t))
			h.requireWidenedExactly(t, pool)
			h.requireF16Exactly(t, pool)
		})
	})
}

// TestWidenedInPlaceAndPacked goes through the numbers of rows and columns that have kernels of their own, for whole
// and cut blocks, of B and of its transpose, and for a C that is written row by row or column by column.
func TestWidenedInPlaceAndPacked(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
		columns, depths := []int{1, 15, 32, 97, 300}, []int{1, 7, 9, 16, 40, 64, kc + 32, kc + 7}
		if v == kernels.Generic { // has the same kernel for all
			columns, depths = []int{1, 33}, []int{1, 9, kc + 7}
		}
		for m := 1; m <= 14; m++ {
			for _, n := range columns {
				for i, k := range depths {
					for trans := range 4 {
						h := newHalfCase(newExample[float32](uint64(m*n*k), m, n, k, trans&1 == 0, trans&2 == 0, i%2,
							(m+i)%2 == 0))
						h.requireWidenedExactly(t, nil)
						h.requireF16Exactly(t, nil)
						newHalfCase(newExample[float32](uint64(m*n*k), n, m, k, trans&1 == 0, trans&2 == 0, i%2,
							(m+i)%2 == 0)).requireWidenedExactly(t, nil)
					}
				}
			}
		}
	})
}

// TestWidenedCrowded has columns that lie 4 KiB apart, for which there are kernels of their own.
func TestWidenedCrowded(t *testing.T) {
	readCrowdedFrom(t, 0)
	kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
		const n, k = 37, crowded / 2
		for m := 1; m <= 12; m++ {
			if v == kernels.Generic && m > 2 {
				return // which has none
			}
			h := newHalfCase(newExample[float32](uint64(m), m, n, k, false, true, 0, m%2 == 0))
			h.requireWidenedExactly(t, nil)
			h.requireF16Exactly(t, nil)
		}
	})
}

// readCrowdedFrom sets crowdedFrom until the test ends.
func readCrowdedFrom(t *testing.T, size int) {
	t.Cleanup(func() { crowdedFrom = uncached })
	crowdedFrom = size
}

// TestWidenedLargeShapes crosses the blocks of every level, with any number of workers.
func TestWidenedLargeShapes(t *testing.T) {
	pools := []*parallel.Pool{nil}
	for _, workers := range []int{2, 3} {
		p := parallel.New(workers)
		defer p.Close()
		pools = append(pools, p)
	}
	for i, s := range [][3]int{{300, 1100, 1100}, {1, 1500, 700}, {8, 1500, 700}, {40, 1100, 600}, {1100, 8, 700},
		{1060, 13, 1030}, {130, 200, 1}} {
		h := newHalfCase(newExample[float32](7, s[0], s[1], s[2], i%3 == 0, i%2 == 0, 1, i%2 == 1))
		t.Run(h.String(), func(t *testing.T) {
			kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
				if v == kernels.Generic && testing.Short() {
					t.Skip("-short: portable Go takes long")
				}
				for _, p := range some(pools...) {
					h.requireWidenedExactly(t, p)
					h.requireF16Exactly(t, p)
				}
			})
		})
	}
}

func TestWidenedFused(t *testing.T) {
	pool := parallel.New(3)
	defer pool.Close()
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		rapid.Check(t, func(t *rapid.T) {
			h := newHalfCase(drawExample[float32](t))
			requireFusedEqualToSteps(t, pool, h.example, Float32,
				func(p *parallel.Pool, m, n, k int, a, b Matrix[float32], c Rows[float32], f *Fused[float32]) {
					Widened(p, m, n, k, Strided(h.a16, a.RowStride, a.ColStride),
						Strided(h.b16, b.RowStride, b.ColStride), c, f)
				})
		})
	})
}

func TestWidenedMisusePanics(t *testing.T) {
	a, b, c := make([]dtype.BF16, 6), make([]dtype.BF16, 6), make([]float32, 4)
	require.PanicsWithValue(t, "gemm: A has 5 elements: want at least 6 for 2×3 with strides 3 and 1", func() {
		Widened(nil, 2, 2, 3, Strided(a[:5], 3, 1), Strided(b, 2, 1), InRows(c, 2), nil)
	})
	require.PanicsWithValue(t, "gemm: Add has 1 elements: want at least 2 for 2×2 with strides 0 and 1", func() {
		Widened(nil, 2, 2, 3, Strided(a, 3, 1), Strided(b, 2, 1), InRows(c, 2),
			&Fused[float32]{Add: c[:1], ColStride: 1})
	})
}

func TestWidenedMakesNoGarbage(t *testing.T) {
	pool := parallel.New(2)
	defer pool.Close()
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, s := range [][3]int{{100, 130, 300}, {3, 500, 500}, {500, 3, 500}, {800, 900, 1}} {
			h := newHalfCase(newExample[float32](1, s[0], s[1], s[2], false, true, 0, false))
			f := &Fused[float32]{}
			require.Zero(t, testing.AllocsPerRun(20, func() {
				Widened(pool, h.m, h.n, h.k, Strided(h.a16, h.ars, h.acs), Strided(h.b16, h.brs, h.bcs),
					InRows(h.c, h.ldc), f)
				Widened(pool, h.m, h.n, h.k, Strided(h.aF16, h.ars, h.acs), Strided(h.bF16, h.brs, h.bcs),
					InRows(h.c, h.ldc), nil)
			}))
		}
	})
}

func BenchmarkWidened(b *testing.B) {
	for _, s := range [][3]int{{1024, 1024, 1024}, {1024, 3072, 768}, {1, 3072, 768}, {8, 3072, 768}} {
		for _, trans := range []bool{false, true} {
			x := newHalfCase(newExample[float32](1, s[0], s[1], s[2], false, trans, 0, false))
			report := func(b *testing.B) {
				flops := 2 * float64(x.m) * float64(x.n) * float64(x.k)
				b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			}
			name := fmt.Sprintf("%dx%dx%d/%s", s[0], s[1], s[2], map[bool]string{false: "NN", true: "NT"}[trans])
			b.Run(name+"/bf16", func(b *testing.B) {
				for b.Loop() {
					Widened(nil, x.m, x.n, x.k, Strided(x.a16, x.ars, x.acs), Strided(x.b16, x.brs, x.bcs),
						InRows(x.c, x.ldc), nil)
				}
				report(b)
			})
			b.Run(name+"/float32", func(b *testing.B) {
				for b.Loop() {
					Float32(nil, x.m, x.n, x.k, Strided(x.a, x.ars, x.acs), Strided(x.b, x.brs, x.bcs),
						InRows(x.c, x.ldc), false)
				}
				report(b)
			})
		}
	}
}
