// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// A deep product has few results of many products, as the gradient of a small weight over many tokens or windows.
// Workers that shared its results would each pack all of B or read all of A; here they share blocks of products
// instead, whose sums are added in the order of k, as always.

// deepLimits say which products are deep; the zero value: none. They are a matter of speed alone.
type deepLimits struct {
	results int // m·n, at most
	blocks  int // of products, at least for each worker
	kept    int // how many sums of blocks of products are kept before they are added to C
	large   int // the size of a B in bytes from which few rows make a deep product, where the second-level cache is ample
}

var deepLimits32 = deepLimits{results: 1 << 14, blocks: 8, kept: 1 << 20, large: uncached}

// deep reports whether the product is one whose blocks of products the workers share.
func (q *product[T]) deep() bool { return q.workers > 1 && q.hasBlocks() }

// hasBlocks reports whether the results are few and there are blocks of products enough for the workers.
func (q *product[T]) hasBlocks() bool {
	return q.floats() && q.inRows() && q.m*q.n <= q.deepLimits.results && q.k >= kc*q.workers*q.deepLimits.blocks
}

// deepOfFew reports whether the product of few rows is deep, even for one worker: kernels that read a large B where it
// lies take some columns of many rows, each line of which comes late where the third-level cache is far away, and
// packing one block of products after the other reads long runs.
func (q *product[T]) deepOfFew() bool {
	return q.m > 1 && q.m <= q.mr && q.bcs == 1 && q.hasBlocks() && q.sizeB() >= q.deepLimits.large && ampleSecondCache()
}

// runDeep computes a deep product. The sums of blocks of products lie one after the other, in rows as wide as the
// kernel that adds them wants; before them there is room for D, or what C is so far.
func (j *job[T]) runDeep(p *parallel.Pool) {
	size := j.m * j.deepWidth()
	blocks := min(ceilDiv(j.k, kc), max(1, j.deepLimits.kept/size))
	j.sums = grown(j.sums, (blocks+1)*size)
	for j.k0 = 0; j.k0 < j.k; j.k0 += blocks * kc {
		j.k1 = min(j.k0+blocks*kc, j.k)
		p.ForWorkers(ceilDiv(j.k1-j.k0, kc), 1, j.deepBody)
		p.ForWorkers(j.m, 1, j.addDeepBody)
	}
}

// deepWidth is how far rows of sums are apart.
func (j *job[T]) deepWidth() int { return ceilDiv(j.n, j.sweep.width) * j.sweep.width }

// computeDeep computes the sums of blocks [lo, hi), each a product of its own.
func (j *job[T]) computeDeep(_, lo, hi int) {
	list, width := jobsOf[T](), j.deepWidth()
	part := list.take()
	for block := lo; block < hi; block++ {
		k0 := j.k0 + block*kc
		part.engine, part.problem = j.engine, newProblem(j.m, j.n, min(kc, j.k1-k0), j.a[k0*j.acs:], j.ars, j.acs, j.b[k0*j.brs:], j.brs, j.bcs,
			j.sums[(block+1)*j.m*width:], width, false)
		part.reserve(1)
		if j.tiled {
			part.runTiled(nil)
		} else {
			part.runBlocked(nil)
		}
	}
	list.put(part)
}

// addDeep adds the sums to rows [lo, hi) of C.
func (j *job[T]) addDeep(_, lo, hi int) {
	width, block := j.deepWidth(), j.m*j.deepWidth()
	for i := lo; i < hi; i++ {
		sums, first, count := j.sums[i*width:], 0, ceilDiv(j.k1-j.k0, kc)
		if d, _ := j.addend(i, 0, j.k0); d != nil {
			copy(sums, unsafe.Slice(d, j.n))
		} else {
			first, count = block, count-1
		}
		if count > 0 {
			j.sweep.add(&sums[first], &sums[first], &sums[first+block], block, count, width/j.sweep.width)
		}
		copy(j.c[i*j.crs:][:j.n], sums[first:])
	}
	if j.k1 == j.k {
		j.finished(lo, hi, 0, j.n)
	}
}
