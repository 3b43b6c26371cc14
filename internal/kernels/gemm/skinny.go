// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// shareable is the number of panels of B from which some rows of A are worth a pass over them: fewer cannot be handed
// out evenly.
const shareable = 8

// mostDotted is the largest number of rows that dots kernels compute where panels of A have fewer.
const mostDotted = 8

// uncached is the size of a B in bytes that no cache holds.
const uncached = 32 << 20

// crowdedFrom is the size of a B, as sizeB counts it, from which directAhead.crowded reads it: in a cache, 32 columns
// side by side are faster. It is a matter of speed alone, and tests change it.
var crowdedFrom = uncached

// few reports whether the product has so few rows that B is not packed ahead: fewer than otherwise if no cache holds B,
// since what is packed has been prefetched while something else was computed, and still fewer if each panel must be
// packed anyway.
func (q *product[T]) few() bool {
	most := q.skinny
	switch {
	case q.bcs != 1 && q.halfB.format == nil:
		most = q.skinny / 3
	case q.sizeB() >= uncached:
		most = q.skinny * 2 / 3
	}
	return q.m <= q.mr || q.m <= most && q.n >= shareable*q.nr
}

// fewStreamed reports whether a stream kernel computes the few rows.
func (q *product[T]) fewStreamed() bool { return q.few() && q.streams(q.m) }

// fewDotted reports whether a dots kernel computes the few rows.
func (q *product[T]) fewDotted() bool {
	has, whole := q.engine.dots.has(q.m), q.engine.dots.whole
	if q.halfB.format != nil {
		has, whole = q.halfB.dots.has(q.m), q.halfB.dots.whole
	}
	// More rows than a panel of A has are packed as one, which only dots kernels read.
	return has && q.brs == 1 && (q.m <= q.mr || q.n >= shareable*q.nr && q.k%whole == 0)
}

// runStream computes few rows, of which A is packed as a whole, by kernels that read B's rows where they lie.
func (j *job[T]) runStream(p *parallel.Pool) {
	whole := wholePanels(j.streamWidths()[j.m], j.nr)
	chunk := whole
	if j.halfB.format != nil { // whose kernels are narrower
		chunk = ceilDiv(4, whole) * whole
	}
	j.runFew(p, j.mr, chunk, j.streamBody)
}

// runDots is runStream with kernels that read B's columns where they lie.
func (j *job[T]) runDots(p *parallel.Pool) {
	const tasks = 8 // for each worker: the first panel of each is not prefetched
	j.runFew(p, max(j.mr, j.m), max(fewChunk(j), ceilDiv(j.n, j.nr)/(tasks*p.Workers())), j.dotsBody)
}

// runPanels is runStream with panels of B that are read where they lie, if they can be, else packed one at a time into
// the worker's first-level cache.
func (j *job[T]) runPanels(p *parallel.Pool) { j.runFew(p, j.mr, fewChunk(j), j.panelsBody) }

// fewChunk is how many panels of B make a task where they are computed one at a time: neighbours share pages.
func fewChunk[T element](j *job[T]) int {
	if 2*j.m*j.nr*j.k >= serialFlops {
		return 1
	}
	return 4
}

// runFew computes few rows by body, for as many products at a time as A's rows stay in the second-level cache for. Each
// panel of A has tall rows.
func (j *job[T]) runFew(p *parallel.Pool, tall, chunk int, body func(worker, lo, hi int)) {
	part := j.k
	if j.m > tall {
		part = min(part, j.kb)
	}
	for k0 := 0; k0 < j.k; k0 += part {
		j.k0 = k0
		j.packFew(p, part, tall)
		p.ForWorkers(ceilDiv(j.n, j.nr), chunk, body)
	}
}

// packFew packs all of A's rows for up to so many products from k0 on, in panels of so many rows.
func (j *job[T]) packFew(p *parallel.Pool, part, tall int) {
	j.panelRows = tall
	j.packedA = grown(j.packedA, j.m*part)
	j.k1 = min(j.k0+part, j.k)
	p.ForWorkers(ceilDiv(j.m, tall), 1, j.packRowsBody)
}

// wholePanels returns the smallest number of panels that a kernel of such a width computes with nothing left over.
func wholePanels(width, nr int) int {
	n := 1
	for n*nr%width != 0 {
		n++
	}
	return n
}

// packRows packs the part of panels [lo, hi) of A, block by block of k.
func (j *job[T]) packRows(_, lo, hi int) {
	for i := lo * j.panelRows; i < min(hi*j.panelRows, j.m); i += j.panelRows {
		rows, dst := min(j.panelRows, j.m-i), j.packedA[i*(j.k1-j.k0):]
		for k0 := j.k0; k0 < j.k1; k0 += kc {
			j.packA(dst[(k0-j.k0)*rows:], rows, min(kc, j.k1-k0), i, k0)
		}
	}
}

// streams reports whether there is a stream kernel that can compute so many rows of the product.
func (q *product[T]) streams(rows int) bool {
	return rows < len(q.streamWidths()) && q.bcs == 1 && q.inRows()
}

// streamWidths are the widths of the stream kernels for B.
func (q *product[T]) streamWidths() []int {
	if q.halfB.format != nil {
		return q.halfB.stream.widths
	}
	return q.engine.stream.widths
}

// computeStream computes all rows of C for panels [lo, hi) of B, columns that do not fill a kernel's width as
// computePanels does.
func (j *job[T]) computeStream(worker, lo, hi int) {
	col, end := lo*j.nr, min(hi*j.nr, j.n)
	if j.streams(j.m) {
		col = j.streamRows(0, j.m, j.packedA, col, end)
	}
	j.panelsFrom(worker, col, end)
	j.fewFinished(lo, end)
}

// computeDots computes all rows of C for panels [lo, hi) of B, those that do not suit the kernel as computePanels does.
func (j *job[T]) computeDots(worker, lo, hi int) {
	end := min(hi*j.nr, j.n)
	j.dotsFrom(worker, lo*j.nr, end)
	j.fewFinished(lo, end)
}

// dotsFrom computes columns [col, end) of C by a dots kernel where it suits.
func (j *job[T]) dotsFrom(worker, col, end int) {
	last := end // of the columns that this worker computes next
	if j.workers == 1 {
		last = j.n
	}
	for ; col < end; col += j.nr {
		cols := min(j.nr, end-col)
		for k0 := j.dotsPanel(worker, col, cols, last); k0 < j.k1; k0 += kc {
			j.skinnyPanel(worker, col, cols, k0)
		}
	}
}

// computePanels computes all rows of C for panels [lo, hi) of B.
func (j *job[T]) computePanels(worker, lo, hi int) {
	end := min(hi*j.nr, j.n)
	j.panelsFrom(worker, lo*j.nr, end)
	j.fewFinished(lo, end)
}

// panelsFrom computes columns [col, end) of C.
func (j *job[T]) panelsFrom(worker, col, end int) {
	for ; col < end; col += j.nr {
		for k0 := j.k0; k0 < j.k1; k0 += kc {
			j.skinnyPanel(worker, col, min(j.nr, end-col), k0)
		}
	}
}

// fewFinished announces the columns from panel lo on to end, if these were the last products.
func (j *job[T]) fewFinished(lo, end int) {
	if j.k1 == j.k {
		j.finished(0, j.m, lo*j.nr, end)
	}
}

// streamRows computes rows [i, i+rows) of C, whose part of A is packed in a, for as many whole blocks of the columns
// from col on as there are before end. It returns the first column that is left.
func (j *job[T]) streamRows(i, rows int, a []T, col, end int) int {
	if j.halfB.format != nil {
		return streamRows(j, &j.halfB.stream, j.halfB.bits, i, rows, a, col, end)
	}
	return streamRows(j, &j.engine.stream, j.b, i, rows, a, col, end)
}

// streamRows is job.streamRows with a B and its kernels.
func streamRows[T element, B any](j *job[T], s *direct[T, B], b []B, i, rows int, a []T, col, end int) int {
	blocks := (end - col) / s.widths[rows]
	if blocks == 0 {
		return col
	}
	for k0 := j.k0; k0 < j.k1; k0 += kc {
		d, stride := j.addend(i, col, k0)
		s.compute(rows, min(kc, j.k1-k0), &a[(k0-j.k0)*rows], &b[k0*j.brs+col], j.brs, &j.c[i*j.crs+col], j.crs, d,
			stride, blocks)
	}
	return col + blocks*s.widths[rows]
}

// skinnyPanel adds the block of products from k0 on of one panel of B to all rows of C.
func (j *job[T]) skinnyPanel(worker, col, cols, k0 int) {
	k := min(kc, j.k1-k0)
	var b *T
	s, stride, prefetches := &j.scratch[worker], j.brs, j.prefetchesRows()
	if j.bcs != 1 || cols < j.nr || j.halfB.format != nil {
		packed := s.panel
		j.packB(packed, cols, k, k0, col)
		b, stride = &packed[0], j.nr
	} else {
		b = &j.b[k0*j.brs+col]
	}
	nothing := request{at: uintptr(unsafe.Pointer(&j.packedA[0]))}
	s.next = requests{c: request{count: uintptr(j.mr)}, b: nothing}
	for i := 0; i < j.m; i += j.mr {
		rows := min(j.mr, j.m-i)
		a := &j.packedA[i*(j.k1-j.k0)+(k0-j.k0)*rows]
		if cols < j.nr || !j.inRows() {
			j.edge(worker, rows, cols, k, a, b, stride, i, col, k0)
			continue
		}
		d, dstride := j.addend(i, col, k0)
		if prefetches && rows == j.mr {
			if s.next.a = j.shareOfNext(i, col, k0+k); s.next.a.stride == 0 {
				s.next.a = nothing
			}
			j.tall(k, a, j.mr, b, stride, &j.c[i*j.crs+col], j.crs, d, dstride, 1, &s.next.c.at)
			continue
		}
		j.micro(rows, k, a, b, stride, &j.c[i*j.crs+col], j.crs, d, dstride, 1)
	}
}

// prefetchesRows reports whether kernels prefetch the block of B that comes after the one they read where it lies: if
// its rows lie in pages of their own, processors do not see by themselves what comes next. Those with a larger
// first-level cache have done without.
func (j *job[T]) prefetchesRows() bool {
	const page = 4096 // bytes
	return j.engine.tall != nil && j.bcs == 1 && j.halfB.format == nil && j.brs*int(unsafe.Sizeof(j.c[0])) >= page &&
		l1Ways() < roomy
}

// shareOfNext is the part of the block of B that the panel of A from row i on prefetches. The block comes after the
// products before k1 of the panel from column col on; the stride is 0 if there is none.
func (j *job[T]) shareOfNext(i, col, k1 int) request {
	if k1 == j.k1 {
		col, k1 = col+j.nr, j.k0
	}
	if col+j.nr > j.n {
		return request{}
	}
	rows, turn, turns := min(kc, j.k1-k1), i/j.mr, j.m/j.mr
	first, end := rows*turn/turns, rows*(turn+1)/turns
	return down(&j.b[(k1+first)*j.brs+col], j.brs*int(unsafe.Sizeof(j.c[0])), end-first, 1)
}

// dotsPanel adds products of a panel of B to C by a kernel that reads columns where they lie; last is the column before
// which this worker goes on. It returns the first product that is left: no kernel suits it.
func (j *job[T]) dotsPanel(worker, col, cols, last int) int {
	switch {
	case j.brs != 1:
		return j.k0
	case j.halfB.format != nil:
		return dotsPanel(j, &j.halfB.dots, j.halfB.bits, worker, col, cols, last)
	default:
		return dotsPanel(j, &j.engine.dots, j.b, worker, col, cols, last)
	}
}

// dotsPanel is job.dotsPanel with a B and its kernels.
//
// While some columns are computed, the next ones are prefetched from their first byte to their last, which is faster
// than any other order: each block of products prefetches as many bytes as it reads. The last columns, if they are too
// few, begin earlier, and none but their own are kept.
func dotsPanel[T element, B any](j *job[T], s *directAhead[T, B], b []B, worker, col, cols, last int) int {
	if s.crowded != nil && j.sizeB() >= crowdedFrom && j.bcs*int(unsafe.Sizeof(b[0]))%crowded == 0 {
		s = s.crowded
	}
	if !s.has(j.m) || j.n < s.widths[j.m] {
		return j.k0
	}
	width, k1 := s.widths[j.m], j.k1
	if k1%kc%s.whole != 0 {
		k1 -= k1 % kc
	}
	for ; cols > 0; col, cols = col+width, cols-width {
		first := min(col, j.n-width) // that the kernel computes
		next := min(col+width, max(first, last-width))
		kept, direct := min(width, cols), j.inRows() && cols >= width
		for k0 := j.k0; k0 < k1; {
			k, blocks := min(kc, k1-k0), 1
			a, columns := &j.packedA[(k0-j.k0)*j.m], &b[k0+first*j.bcs]
			ahead := uintptr(unsafe.Pointer(&b[j.k0+next*j.bcs])) + uintptr((k0-j.k0)*width)*unsafe.Sizeof(b[0])
			if direct {
				blocks = max(1, (k1-k0)/kc)
				d, stride := j.addend(0, col, k0)
				s.compute(j.m, k, a, columns, j.bcs, &j.c[col], j.crs, d, stride, blocks, ahead)
			} else {
				tile := j.scratch[worker].tile
				s.compute(j.m, k, a, columns, j.bcs, &tile[0], j.nr, nil, 0, 1, ahead)
				j.scatter(tile[col-first:], j.m, kept, 0, col, k0)
			}
			k0 += k * blocks
		}
	}
	return k1
}
