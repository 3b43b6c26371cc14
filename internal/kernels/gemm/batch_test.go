// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// batchCase is a batch of m×k by k×n products whose operands repeat: product i uses matrix i/2 of A and the same B for every third.
type batchCase[T element] struct {
	m, n, k, count   int
	a, b             []T
	aOff, bOff, cOff []int
}

func newBatchCase[T element](m, n, k, count int) *batchCase[T] {
	rng := rand.New(rand.NewPCG(5, uint64(m*n*k)))
	x := &batchCase[T]{m: m, n: n, k: k, count: count, a: make([]T, count*m*k), b: make([]T, count*k*n)}
	for i := range x.a {
		x.a[i] = T(rng.NormFloat64())
	}
	for i := range x.b {
		x.b[i] = T(rng.NormFloat64())
	}
	for i := range count {
		x.aOff = append(x.aOff, i/2*m*k)
		x.bOff = append(x.bOff, i%3*k*n)
		x.cOff = append(x.cOff, (count-1-i)*(m*n+3))
	}
	if count < 3 {
		clear(x.bOff)
	}
	return x
}

// requireEqualToSingle compares a batch with the same products done one by one; three elements between the matrices must keep their value.
func requireEqualToSingle[T element](t *testing.T, p *parallel.Pool, x *batchCase[T], accumulate bool, single function[T],
	batched func(p *parallel.Pool, m, n, k int, a []T, aOff []int, ars, acs int, b []T, bOff []int, brs, bcs int, c []T, cOff []int, ldc int, accumulate bool)) {
	fresh := func() []T {
		c := make([]T, x.count*(x.m*x.n+3))
		for i := range c {
			c[i] = guard
		}
		return c
	}
	want, got := fresh(), fresh()
	for i := range x.count {
		single(nil, x.m, x.n, x.k, x.a[x.aOff[i]:], x.k, 1, x.b[x.bOff[i]:], 1, x.k, want[x.cOff[i]:], x.n, accumulate)
	}
	batched(p, x.m, x.n, x.k, x.a, x.aOff, x.k, 1, x.b, x.bOff, 1, x.k, got, x.cOff, x.n, accumulate)
	requireSameBits(t, want, got, "batch against single products")
}

func TestBatchEqualsSingleProducts(t *testing.T) {
	pools := []*parallel.Pool{nil}
	for _, workers := range []int{1, 2, 3, 8} {
		p := parallel.New(workers)
		defer p.Close()
		pools = append(pools, p)
	}
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, s := range [][4]int{{3, 4, 5, 7}, {64, 64, 16, 12}, {16, 16, 64, 40}, {1, 32, 64, 9}, {150, 140, 130, 3}, {5, 6, 0, 4}, {0, 3, 3, 2}, {3, 3, 3, 0}} {
			for _, p := range pools {
				requireEqualToSingle(t, p, newBatchCase[float32](s[0], s[1], s[2], s[3]), true, Float32, Float32Batch)
				requireEqualToSingle(t, p, newBatchCase[float64](s[0], s[1], s[2], s[3]), false, Float64, Float64Batch)
			}
		}
	})
}

func TestBatchMisusePanics(t *testing.T) {
	s := make([]float32, 8)
	call := func(aOff, bOff, cOff []int) func() {
		return func() { Float32Batch(nil, 2, 2, 2, s, aOff, 2, 1, s, bOff, 2, 1, make([]float32, 8), cOff, 2, false) }
	}
	require.NotPanics(t, call([]int{0, 4}, []int{4, 4}, []int{4, 0}))
	require.PanicsWithValue(t, "gemm: 1 offsets of A, 2 of B and 2 of C, want equally many", call([]int{0}, []int{0, 0}, []int{0, 4}))
	require.PanicsWithValue(t, "gemm: offsets 0, -1 and 0 of product 0, want none negative", call([]int{0}, []int{-1}, []int{0}))
	require.PanicsWithValue(t, "gemm: B has 3 elements, want at least 4 for 2×2 with strides 2 and 1", call([]int{0}, []int{5}, []int{0}))
}

func TestBatchMakesNoGarbage(t *testing.T) {
	p := parallel.New(2)
	defer p.Close()
	x := newBatchCase[float32](64, 64, 32, 24)
	c := make([]float32, x.count*(x.m*x.n+3))
	warm := func() {
		Float32Batch(p, x.m, x.n, x.k, x.a, x.aOff, x.k, 1, x.b, x.bOff, 1, x.k, c, x.cOff, x.n, false)
	}
	for range 50 { // until both workers have had memory of their own
		warm()
	}
	require.Zero(t, testing.AllocsPerRun(20, warm))
}
