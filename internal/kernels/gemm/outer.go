// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// outer are the kernels for a row of an outer product. The zero value has none.
type outer[T element] struct {
	width int // of a block
	// row computes blocks·width elements of c = a·b, or c = d + a·b if d is not nil. nonTemporal is the same for a
	// d of nil and a c whose address is a multiple of nonTemporalAlign, by non-temporal stores; fence comes before
	// anyone else may read c.
	row, nonTemporal func(a, b, c, d *T, blocks int)
	fence            func()
}

const (
	nonTemporalAlign = 64
	// nonTemporalSize is the size of a C, in bytes, that would leave nothing of itself in the caches.
	nonTemporalSize = 64 << 20
)

// outerProduct reports whether the product is an outer one that the kernels compute.
func (q *product[T]) outerProduct() bool {
	return q.k == 1 && q.bcs == 1 && q.inRows() && q.outer.row != nil && q.floats()
}

// runOuter computes a product of one summand, which is a matter of writing C: each row is written from its first
// element to its last.
func (j *job[T]) runOuter(p *parallel.Pool) {
	piece := 1 << 16 // elements of C per task
	if j.writesNonTemporal() {
		piece = 1 << 19 // since a fence takes its time
	}
	p.ForWorkers(j.m, max(1, piece/j.n), j.outerBody)
}

// computeOuter computes rows [lo, hi) of C.
func (j *job[T]) computeOuter(worker, lo, hi int) {
	row := j.outer.row
	if j.writesNonTemporal() {
		row = j.outer.nonTemporal
	}
	blocks, whole := j.n/j.outer.width, j.n/j.nr*j.nr
	last := j.scratch[worker].panel[:j.nr]
	if whole < j.n {
		j.pack(last, j.nr, j.n-whole, 1, j.b[whole:], 1, j.brs)
	}
	for i := lo; i < hi; i++ {
		a := &j.a[i*j.ars]
		if blocks > 0 {
			d, _ := j.addend(i, 0, 0)
			row(a, &j.b[0], &j.c[i*j.crs], d, blocks)
		}
		for col := blocks * j.outer.width; col < whole; col += j.nr {
			d, stride := j.addend(i, col, 0)
			j.micro(1, 1, a, &j.b[col], j.nr, &j.c[i*j.crs+col], j.crs, d, stride, 1)
		}
		if whole < j.n {
			j.edge(worker, 1, j.n-whole, 1, a, &last[0], j.nr, i, whole, 0)
		}
	}
	if j.writesNonTemporal() {
		j.outer.fence()
	}
	j.finished(lo, hi, 0, j.n)
}

// writesNonTemporal reports whether the rows of C can and should be written by non-temporal stores.
func (j *job[T]) writesNonTemporal() bool {
	size := int(unsafe.Sizeof(j.c[0]))
	aligned := uintptr(unsafe.Pointer(&j.c[0]))%nonTemporalAlign == 0 && j.crs*size%nonTemporalAlign == 0
	return aligned && j.d == nil && j.m*j.n*size >= nonTemporalSize
}
