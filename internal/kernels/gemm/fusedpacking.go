// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// Packing B takes a tenth of the time where A has some rows and the third-level cache is far away. Here the kernel for
// the first rows of A packs a panel of B as it reads it (fused packing). It stays in the first-level cache while the
// other rows pass by, and their kernels prefetch the next panel. A B whose columns are contiguous is transposed before,
// as always, but panel by panel, too.

const (
	// fusedPanels is how many panels are gone through for one block of products after the other: their rows lie in
	// the same pages, and A is copied once for all of them, but their part of C must stay in the second-level cache.
	fusedPanels = 24
	// fusedProducts is the number of products from which that pays.
	fusedProducts = 128
	// nearRows is how many rows of B ahead the kernel that packs prefetches.
	nearRows = 8
)

// fusedPacking are limits of a matter of speed alone.
type fusedPacking struct {
	rows  int // of A, at most
	bytes int // of B, at least: less than half of the second-level cache is there from last time, and packed at once
}

// packsFused reports whether A has some rows, not many, and B panels enough for each of the workers.
func (q *product[T]) packsFused() bool {
	return q.keeping != nil && q.m > q.mr && q.m <= q.fusedPacking.rows && q.sizeB() >= q.fusedPacking.bytes &&
		q.k >= fusedProducts &&
		q.n >= max(2, q.workers)*shareable/2*q.nr && q.acs == 1 && (q.bcs == 1 || q.brs == 1) && q.inRows() &&
		q.floats()
}

// runFusedPacking computes such a product. The rows of A that do not fill a panel are packed ahead.
func (j *job[T]) runFusedPacking(p *parallel.Pool) {
	if rest := j.m % j.mr; rest > 0 {
		j.packedA = grown(j.packedA, rest*j.k)
		for k0 := 0; k0 < j.k; k0 += kc {
			j.packA(j.packedA[k0*rest:], rest, min(kc, j.k-k0), j.m-rest, k0)
		}
	}
	workers := p.Workers()
	for w := range workers {
		s := &j.scratch[w]
		s.copied = grown(s.copied, j.m*j.copiedStride(min(kc, j.k)))
	}
	panels := ceilDiv(j.n, j.nr)
	parts := ceilDiv(ceilDiv(panels, fusedPanels), workers) * workers
	p.ForWorkers(panels, ceilDiv(panels, parts), j.fusedPackingBody)
}

// computeFusedPacking computes all rows of C for panels [lo, hi) of B. A is copied for each block of products, as what
// lies together falls into different sets of a cache.
func (j *job[T]) computeFusedPacking(worker, lo, hi int) {
	a, begin, end := j.scratch[worker].copied, lo*j.nr, min(hi*j.nr, j.n)
	for k0 := 0; k0 < j.k; k0 += kc {
		k := min(kc, j.k-k0)
		stride := j.copiedStride(k)
		for i := range j.m / j.mr * j.mr {
			copy(a[i*stride:][:k], j.a[i*j.ars+k0:])
		}
		for col := begin; col < end; col += j.nr {
			var next *T
			switch {
			case col+2*j.nr <= end:
				next = &j.b[k0*j.brs+(col+j.nr)*j.bcs]
			case k0+kc < j.k:
				next = &j.b[(k0+kc)*j.brs+begin*j.bcs]
			case end < j.n:
				next = &j.b[end*j.bcs]
			}
			if cols := end - col; cols < j.nr {
				j.fusedEdge(worker, col, cols, k0, k, stride)
			} else {
				j.fusedPanel(worker, col, k0, k, stride, next)
			}
		}
	}
	j.finished(0, j.m, begin, end)
}

// fusedPanel adds k products, from k0 on, of a whole panel of B to all rows of C, and prefetches the panel at next, if
// there is one. Rows of the copy of A are stride elements apart.
func (j *job[T]) fusedPanel(worker, col, k0, k, stride int, next *T) {
	s, whole := &j.scratch[worker], j.m/j.mr*j.mr
	kept := &s.panel[0]
	cached := request{at: uintptr(unsafe.Pointer(kept))}
	s.next = requests{c: request{count: uintptr(j.mr)}, a: cached, b: cached}
	begin := 0 // the first row that reads the packed panel
	if j.bcs == 1 {
		d, dstride := j.addend(0, col, k0)
		j.keeping(k, &s.copied[0], stride, &j.b[k0*j.brs+col], j.brs, &j.c[col], j.crs, d, dstride, kept,
			&j.b[(k0+min(nearRows, k-1))*j.brs+col])
		begin = j.mr
	} else {
		j.packB(s.panel, j.nr, k, k0, col)
	}
	for i := begin; i < whole; i += j.mr {
		switch turn, turns := (i-begin)/j.mr, (whole-begin)/j.mr; {
		case next == nil:
		case j.bcs == 1:
			s.next.a = j.shareOfPanel(next, k, turn, turns)
		default:
			s.next.a = share(next, j.nr, k, j.nr, j.bcs, turn, turns, 1)
		}
		d, dstride := j.addend(i, col, k0)
		j.engine.rows(k, &s.copied[i*stride], stride, kept, j.nr, &j.c[i*j.crs+col], j.crs, d, dstride, 1, &s.next.c.at)
	}
	if rest := j.m - whole; rest > 0 {
		d, dstride := j.addend(whole, col, k0)
		j.micro(rest, k, &j.packedA[k0*rest], kept, j.nr, &j.c[whole*j.crs+col], j.crs, d, dstride, 1)
	}
}

// shareOfPanel is turn's part, of so many turns, of the request for the rows of a panel from next on: as many as
// kernels prefetch one at a time, in the course of k products and beside the tile of C. A burst would do more harm than
// the rows that are left out.
func (j *job[T]) shareOfPanel(next *T, k, turn, turns int) request {
	first, end := k*turn/turns, k*(turn+1)/turns
	end = max(first, min(end, first+k/productsPerTurn-j.mr))
	size := int(unsafe.Sizeof(*next))
	r := down(next, j.brs*size, end-first, 1)
	r.at += uintptr(first * j.brs * size)
	return r
}

// fusedEdge is fusedPanel for the last columns, which do not fill a panel.
func (j *job[T]) fusedEdge(worker, col, cols, k0, k, stride int) {
	s, whole := &j.scratch[worker], j.m/j.mr*j.mr
	j.packB(s.panel, cols, k, k0, col)
	cached := request{at: uintptr(unsafe.Pointer(&s.panel[0]))}
	s.next = requests{c: cached}
	for i := 0; i < whole; i += j.mr {
		j.engine.rows(k, &s.copied[i*stride], stride, &s.panel[0], j.nr, &s.tile[0], j.nr, nil, 0, 1, &s.next.c.at)
		j.scatter(s.tile, j.mr, cols, i, col, k0)
	}
	if rest := j.m - whole; rest > 0 {
		j.edge(worker, rest, cols, k, &j.packedA[k0*rest], &s.panel[0], j.nr, whole, col, k0)
	}
}
