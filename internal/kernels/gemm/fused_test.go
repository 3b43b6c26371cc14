// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// requireFusedEqualToSteps compares a fused product with one that is added to a C that holds the addend, and watches
// that each element is finished once, with its last value.
func requireFusedEqualToSteps[T element](t *rapid.T, p *parallel.Pool, x *example[T], plain function[T],
	fused func(p *parallel.Pool, m, n, k int, a, b Matrix[T], c Rows[T], f *Fused[T])) {
	drs, dcs := rapid.SampledFrom([]int{0, 1, x.n + 3}).Draw(t, "row stride"),
		rapid.SampledFrom([]int{0, 1, 2}).Draw(t, "column stride")
	f := &Fused[T]{RowStride: drs, ColStride: dcs}
	if x.accumulate = rapid.Bool().Draw(t, "add"); x.accumulate {
		f.Add = make([]T, max(1, max(0, x.m-1)*drs+max(0, x.n-1)*dcs+1))
		for i := range f.Add {
			f.Add[i] = T(i%17) - 8
		}
		for i := range x.m {
			for j := range x.n {
				x.c[i*x.ldc+j] = f.Add[i*drs+j*dcs]
			}
		}
	}
	want := x.run(t, plain, nil)
	for i := range x.m {
		for j := range x.n {
			x.c[i*x.ldc+j] = guard // overwritten, never added to
		}
	}
	var mu sync.Mutex
	times, finished := make([]int, len(x.c)), make([]T, len(x.c))
	got := x.run(t, func(p *parallel.Pool, m, n, k int, a, b Matrix[T], c Rows[T], _ bool) {
		f.Finish = func(i0, i1, j0, j1 int) {
			mu.Lock()
			defer mu.Unlock()
			for i := i0; i < i1; i++ {
				for j := j0; j < j1; j++ {
					times[i*c.Stride+j]++
					finished[i*c.Stride+j] = c.Data[i*c.Stride+j]
				}
			}
		}
		fused(p, m, n, k, a, b, c, f)
	}, p)
	requireSameBits(t, want, got, x.String())
	for i := range x.m {
		for j := range x.n {
			at := i*x.ldc + j
			require.Equal(t, 1, times[at], "(%d,%d) %s", i, j, x)
			requireSameBits(t, got[at:at+1], finished[at:at+1], x.String())
		}
	}
}

func TestFusedEqualsSteps(t *testing.T) {
	pool := parallel.New(3)
	defer pool.Close()
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		rapid.Check(t, func(t *rapid.T) {
			requireFusedEqualToSteps(t, pool, drawExample[float32](t), Float32, Float32Fused)
		})
		rapid.Check(t, func(t *rapid.T) {
			requireFusedEqualToSteps(t, pool, drawExample[float64](t), Float64, Float64Fused)
		})
	})
}

// TestFusedLargeShapes crosses the blocks of every level, and the product of one summand.
func TestFusedLargeShapes(t *testing.T) {
	pool := parallel.New(2)
	defer pool.Close()
	for _, s := range [][3]int{{300, 1100, 2100}, {1100, 3, 700}, {1, 1500, 700}, {700, 1100, 1}, {97, 33, 1}} {
		x := newExample[float32](7, s[0], s[1], s[2], false, s[0] == 1, 1, true)
		bias := make([]float32, x.n)
		for i := range x.c {
			if j := i % x.ldc; j < x.n {
				bias[j] = float32(j%13) - 6
				x.c[i] = bias[j]
			}
		}
		kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
			if v == kernels.Generic && testing.Short() && x.m*x.n*x.k > 1e8 {
				t.Skip("-short: portable Go takes long")
			}
			want := x.run(t, Float32, pool)
			var mu sync.Mutex
			finished := 0
			f := &Fused[float32]{Add: bias, ColStride: 1, Finish: func(i0, i1, j0, j1 int) {
				mu.Lock()
				finished += (i1 - i0) * (j1 - j0)
				mu.Unlock()
			}}
			got := x.run(t, func(p *parallel.Pool, m, n, k int, a, b Matrix[float32], c Rows[float32], _ bool) {
				Float32Fused(p, m, n, k, a, b, c, f)
			}, pool)
			requireSameBits(t, want, got, x.String())
			require.Equal(t, x.m*x.n, finished)
		})
	}
}

func TestFusedMisusePanics(t *testing.T) {
	s := make([]float32, 6)
	require.PanicsWithValue(t, "gemm: Add has 2 elements: want at least 3 for 2×3 with strides 0 and 1", func() {
		Float32Fused(nil, 2, 3, 1, Strided(s, 1, 1), Strided(s, 3, 1), InRows(s, 3),
			&Fused[float32]{Add: s[:2], ColStride: 1})
	})
}
