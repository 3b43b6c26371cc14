// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// Split-K is for few results of many products, as the gradient of a small weight over many tokens or windows: deep
// products. Workers that shared its results would each pack all of B or read all of A; here they share blocks of
// products instead, whose sums are added in the order of k, as always.

// splitKLimits say which products are deep; the zero value: none. They are a matter of speed alone.
type splitKLimits struct {
	results int // m·n, at most
	blocks  int // of products, at least for each worker
	kept    int // how many sums of blocks of products are kept before they are added to C
	// the size of a B in bytes from which few rows make a deep product, where the second-level cache is large
	large int
}

var splitKLimits32 = splitKLimits{results: 1 << 14, blocks: 8, kept: 1 << 20, large: uncached}

// deep reports whether the product is one whose blocks of products the workers share.
func (q *product[T]) splitsK() bool { return q.workers > 1 && q.hasBlocks() }

// hasBlocks reports whether the results are few and there are blocks of products enough for the workers.
func (q *product[T]) hasBlocks() bool {
	return q.floats() && q.inRows() && q.m*q.n <= q.splitKLimits.results && q.k >= kc*q.workers*q.splitKLimits.blocks
}

// splitsFewRows reports whether the product of few rows is deep, even for one worker: kernels that read a large B where
// it lies take some columns of many rows, each line of which comes late where the third-level cache is far away, and
// packing one block of products after the other reads long runs.
func (q *product[T]) splitsFewRows() bool {
	return q.m > 1 && q.m <= q.mr && q.bcs == 1 && q.hasBlocks() && q.sizeB() >= q.splitKLimits.large && largeL2()
}

// runSplitK computes a deep product. The sums of blocks of products lie one after the other, in rows as wide as the
// kernel that adds them needs; before them there is room for D, or what C is so far.
func (j *job[T]) runSplitK(p *parallel.Pool) {
	size := j.m * j.splitKWidth()
	blocks := min(ceilDiv(j.k, kc), max(1, j.splitKLimits.kept/size))
	j.sums = grown(j.sums, (blocks+1)*size)
	for j.k0 = 0; j.k0 < j.k; j.k0 += blocks * kc {
		j.k1 = min(j.k0+blocks*kc, j.k)
		p.ForWorkers(ceilDiv(j.k1-j.k0, kc), 1, j.splitKBody)
		p.ForWorkers(j.m, 1, j.addSplitKBody)
	}
}

// splitKWidth is how far rows of sums are apart.
func (j *job[T]) splitKWidth() int { return ceilDiv(j.n, j.gemvRows.width) * j.gemvRows.width }

// computeSplitK computes the sums of blocks [lo, hi), each a product of its own.
func (j *job[T]) computeSplitK(_, lo, hi int) {
	list, width := jobsOf[T](), j.splitKWidth()
	part := list.take()
	for block := lo; block < hi; block++ {
		k0 := j.k0 + block*kc
		part.engine, part.problem = j.engine,
			newProblem(j.m, j.n, min(kc, j.k1-k0), Strided(j.a[k0*j.acs:], j.ars, j.acs),
				Strided(j.b[k0*j.brs:], j.brs, j.bcs), InRows(j.sums[(block+1)*j.m*width:], width), false)
		part.reserve(1)
		if j.tiled {
			part.runTiled(nil)
		} else {
			part.runBlocked(nil)
		}
	}
	list.put(part)
}

// addSplitK adds the sums to rows [lo, hi) of C.
func (j *job[T]) addSplitK(_, lo, hi int) {
	width, block := j.splitKWidth(), j.m*j.splitKWidth()
	for i := lo; i < hi; i++ {
		sums, first, count := j.sums[i*width:], 0, ceilDiv(j.k1-j.k0, kc)
		if d, _ := j.addend(i, 0, j.k0); d != nil {
			copy(sums, unsafe.Slice(d, j.n))
		} else {
			first, count = block, count-1
		}
		if count > 0 {
			j.gemvRows.add(&sums[first], &sums[first], &sums[first+block], block, count, width/j.gemvRows.width)
		}
		copy(j.c[i*j.crs:][:j.n], sums[first:])
	}
	if j.k1 == j.k {
		j.finished(lo, hi, 0, j.n)
	}
}
