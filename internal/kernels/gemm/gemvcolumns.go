// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// gemvColumns are the kernels for one row and a B whose columns are contiguous, on a processor whose first cache has
// few ways. The zero value has none.
//
// dots reads twice as many columns side by side, each in a page of its own. These kernels go down half as many, two
// blocks of products at a time, and prefetch what comes later in long runs, as the processor sees by itself only within
// a page.
type gemvColumns[T element] struct {
	ways  int // of the first-level cache, at most
	lanes int // half a panel
	// compute computes lanes elements of each of two rows, c0 = d0 + a0·B0 and c1 = d1 + a1·B1, over kc products.
	// Column j of B0 is at b0[j·bstride]. c0 is written before d1 is read. It prefetches kc/lanes runs of 2·kc
	// elements, the first of which is at next, and each nstride after the one before.
	//
	// crowded is for columns that lie a multiple of 4 KiB apart: it computes half as many elements over two blocks of
	// kc products, one after the other, whose elements alternate in a0 and a1. It prefetches two runs one after the
	// other in place of each second one.
	compute, crowded func(a0, b0, c0, d0, a1, b1, c1, d1 *T, bstride int, next *T, nstride int)
}

// A GEMV kernel prefetches so many steps ahead: blocks of products of a vector of columns.
const (
	gemvPrefetch        = 8
	gemvPrefetchCrowded = 2
)

// gemvByColumns reports whether the product is one for the gemvColumns kernels.
func (q *product[T]) gemvByColumns() bool {
	depth := kc
	if q.crowds() {
		depth = 4 * kc
	}
	return q.gemvColumns.compute != nil && q.m == 1 && q.brs == 1 && q.halfB.format == nil && q.inRows() &&
		q.k%depth == 0 &&
		l1Ways() <= q.gemvColumns.ways
}

// crowds reports whether the columns of B lie a multiple of 4 KiB apart.
func (q *product[T]) crowds() bool { return q.bcs*int(unsafe.Sizeof(q.c[0]))%crowded == 0 }

// alternate writes each two blocks of the only row of A, element by element, for gemvColumns.crowded.
func (j *job[T]) alternate() {
	j.alternating = grown(j.alternating, j.k1-j.k0)
	for k0 := 0; k0 < j.k1-j.k0; k0 += 2 * kc {
		first, second, to := j.packedA[k0:][:kc], j.packedA[k0+kc:][:kc], j.alternating[k0:][:2*kc]
		for p, x := range first {
			to[2*p], to[2*p+1] = x, second[p]
		}
	}
}

// runGEMVColumns computes a product of one row by the gemvColumns kernels.
func (j *job[T]) runGEMVColumns(p *parallel.Pool) {
	j.k0 = 0
	j.packFew(p, j.k, j.mr)
	if j.crowds() {
		j.alternate()
	}
	p.ForWorkers(ceilDiv(j.n, j.nr), fewChunk(j), j.gemvColumnsBody)
}

// computeGEMVColumns computes the only row of C for panels [lo, hi) of B.
func (j *job[T]) computeGEMVColumns(worker, lo, hi int) {
	end := min(hi*j.nr, j.n)
	j.dotsFrom(worker, j.gemvVectors(worker, lo*j.nr, end), end)
	j.finished(0, 1, lo*j.nr, end)
}

// gemvVectors computes the only row of C for the whole vectors of columns from col on as engine.dots does. It returns
// the first column that is left.
func (j *job[T]) gemvVectors(worker, col, end int) int {
	lanes, depth, row, compute, distance := j.gemvColumns.lanes, kc, j.packedA, j.gemvColumns.compute, gemvPrefetch
	if j.crowds() {
		lanes, depth, row, compute, distance = lanes/2, 2*kc, j.alternating, j.gemvColumns.crowded, gemvPrefetchCrowded
	}
	vectors, blocks, tile := (end-col)/lanes, (j.k1-j.k0)/depth, j.scratch[worker].tile
	steps, nothing := vectors*blocks, tile[lanes:][:lanes]
	for i := range nothing {
		nothing[i] = T(math.Copysign(0, -1)) // which changes no sum, not even one of −0
	}
	operands := func(step int) (a, b, c, d *T) {
		col, k0 := col+step/blocks*lanes, j.k0+step%blocks*depth
		d, _ = j.addend(0, col, k0)
		if d == nil {
			d = &nothing[0]
		}
		return &row[k0-j.k0], &j.b[k0+col*j.bcs], &j.c[col], d
	}
	for step := 0; step < steps; step += 2 {
		a0, b0, c0, d0 := operands(step)
		a1, b1, c1, d1 := operands(min(step+1, steps-1))
		if step+1 == steps {
			c1, d1 = &tile[0], &nothing[0]
		}
		_, next, _, _ := operands(min(step+distance, steps-1))
		stride := j.bcs
		if j.bcs == j.k && !j.crowds() { // all columns are one run
			next, stride = &j.b[min(col*j.bcs+(step+distance)*lanes*depth, len(j.b)-1)], 2*kc
		}
		compute(a0, b0, c0, d0, a1, b1, c1, d1, j.bcs, next, stride)
	}
	return col + vectors*lanes
}
