// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"fmt"
	"sync"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// Float32Batch computes len(cOff) products of one shape: product i is that of [Float32] with a[aOff[i]:], b[bOff[i]:] and c[cOff[i]:], and has the
// same bits. Offsets may repeat among aOff and bOff (broadcasting), and the matrices at cOff must not overlap each other. Small
// products are spread over the workers of p as wholes, large ones one after the other in tiles.
// If all share the same B and the rows of A and C lie evenly, one Float32 with all the rows is faster.
// It panics as Float32 does, and if the lists of offsets differ in length.
func Float32Batch(p *parallel.Pool, m, n, k int, a []float32, aOff []int, ars, acs int, b []float32, bOff []int, brs, bcs int,
	c []float32, cOff []int, ldc int, accumulate bool) {
	checkBatch(m, n, k, len(a), aOff, ars, acs, len(b), bOff, brs, bcs, len(c), cOff, ldc)
	multiplyBatch(p, engine32(), newProblem(m, n, k, a, ars, acs, b, brs, bcs, c, ldc, accumulate), aOff, bOff, cOff)
}

// Float64Batch is [Float32Batch] in double precision; see [Float64].
func Float64Batch(p *parallel.Pool, m, n, k int, a []float64, aOff []int, ars, acs int, b []float64, bOff []int, brs, bcs int,
	c []float64, cOff []int, ldc int, accumulate bool) {
	checkBatch(m, n, k, len(a), aOff, ars, acs, len(b), bOff, brs, bcs, len(c), cOff, ldc)
	multiplyBatch(p, engine64(), newProblem(m, n, k, a, ars, acs, b, brs, bcs, c, ldc, accumulate), aOff, bOff, cOff)
}

// checkBatch panics unless all matrices lie within their slices.
func checkBatch(m, n, k, lenA int, aOff []int, ars, acs, lenB int, bOff []int, brs, bcs, lenC int, cOff []int, ldc int) {
	if len(aOff) != len(cOff) || len(bOff) != len(cOff) {
		panic(fmt.Sprintf("gemm: %d offsets of A, %d of B and %d of C, want equally many", len(aOff), len(bOff), len(cOff)))
	}
	for i := range cOff {
		if aOff[i] < 0 || bOff[i] < 0 || cOff[i] < 0 {
			panic(fmt.Sprintf("gemm: offsets %d, %d and %d of product %d, want none negative", aOff[i], bOff[i], cOff[i], i))
		}
		check(m, n, k, lenA-aOff[i], ars, acs, lenB-bOff[i], brs, bcs, lenC-cOff[i], ldc)
	}
}

// batch is a batch under way; like jobs, batches are used again so that a call allocates nothing.
type batch[T element] struct {
	engine           *engine[T]
	shape            problem[T] // with all of a, b and c
	aOff, bOff, cOff []int
	body             func(lo, hi int)
}

// batches is a free list of one element type.
type batches[T element] struct {
	mu   sync.Mutex
	free []*batch[T]
}

var (
	batches32 batches[float32]
	batches64 batches[float64]
)

// batchesOf returns the free list for T.
func batchesOf[T element]() *batches[T] {
	var list any = &batches32
	if l, ok := list.(*batches[T]); ok {
		return l
	}
	list = &batches64
	return list.(*batches[T])
}

func (l *batches[T]) take() *batch[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := len(l.free) - 1; last >= 0 {
		t := l.free[last]
		l.free = l.free[:last]
		return t
	}
	t := new(batch[T])
	t.body = t.compute
	return t
}

func (l *batches[T]) put(t *batch[T]) {
	*t = batch[T]{body: t.body}
	l.mu.Lock()
	l.free = append(l.free, t)
	l.mu.Unlock()
}

// product returns product i of the batch.
func (t *batch[T]) product(i int) problem[T] {
	q := t.shape
	q.c = q.c[t.cOff[i]:]
	if q.d != nil {
		q.d = q.c // added to
	}
	if q.k > 0 { // else A and B are empty, and may be nil
		q.a, q.b = q.a[t.aOff[i]:], q.b[t.bOff[i]:]
	}
	return q
}

// compute computes products [lo, hi), each serially.
func (t *batch[T]) compute(lo, hi int) {
	list := jobsOf[T]()
	j := list.take()
	for i := lo; i < hi; i++ {
		j.run(nil, t.engine, t.product(i))
	}
	list.put(j)
}

// multiplyBatch carries out all products of a batch. How it divides the work changes no bit.
func multiplyBatch[T element](p *parallel.Pool, e *engine[T], shape problem[T], aOff, bOff, cOff []int) {
	count := len(cOff)
	if count == 0 || shape.m == 0 || shape.n == 0 {
		return
	}
	list := batchesOf[T]()
	t := list.take()
	t.engine, t.shape, t.aOff, t.bOff, t.cOff = e, shape, aOff, bOff, cOff
	switch flops := shape.flops(); {
	case flops*float64(count) < serialFlops:
		t.compute(0, count)
	case flops < 4*serialFlops || count >= 4*p.Workers():
		p.ForChunks(count, int(min(float64(count), 1+serialFlops/(flops+1))), t.body)
	default:
		for i := range count {
			multiply(p, e, t.product(i))
		}
	}
	list.put(t)
}
