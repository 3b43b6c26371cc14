// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// layout says how the blocked algorithm reads A.
type layout int

const (
	packed        layout = iota // panel by panel
	inRows                      // where it lies, by engine.rows
	copiedRows                  // the same of a copy of each panel, with rows that are less far apart
	inColumns                   // where it lies, by engine.tall
	copiedColumns               // the same of a copy of some panels at a time
)

// requests are what a kernel prefetches while it computes a block, so that it is in the second-level cache when its
// turn comes: the tile of C, which the kernel itself locates, and parts of A and of B. A stride of 0 ends the list:
// what is at end is in a cache already. Addresses are numbers, as nothing is read from them: they may lie beyond what
// there is.
type requests struct{ c, a, b, end request }

// request is count rows, as wide as a tile of C, that lie stride bytes apart, from at on, with the next block of a
// kernel; after each block at moves on by step bytes.
type request struct{ at, stride, count, step uintptr }

// crowded is the distance, in bytes, of lines that fall into the same set of a first-level cache, and of which a
// second-level cache holds few.
const crowded = 4096

// l1Ways is how many of them a first-level cache holds; a variable for tests.
var l1Ways = kernels.L1Ways

// largeL2 says whether the second-level cache is large; a variable for tests.
var largeL2 = kernels.LargeL2

// roomy is how many ways hold the rows of a panel that crowd a set: 12 hold 12 rows, 8 not even 6 beside the panels of
// B that pass by.
const roomy = 12

// slack is how many bytes lie between the rows of a copied panel, so that they fall into different sets.
const slack = 64

// runBlocked cuts C into pieces. Each is computed as a whole, over all products, by one worker, which packs for itself
// alone what it reads: hardly a line goes from one processor's cache to another's.
func (j *job[T]) runBlocked(p *parallel.Pool) {
	workers := p.Workers()
	j.layout = j.chooseLayout()
	j.cut(workers, j.blockedCut())
	rows, cols := j.largest()
	if j.layout != packed {
		rows = j.mr // that do not fill a panel
	}
	k := min(j.k, kc)
	for w := range workers {
		s := &j.scratch[w]
		s.a, s.b = grown(s.a, rows*min(j.k, j.ka)), grown(s.b, min(j.nb*(kc/k), cols)*k)
		switch j.layout {
		case copiedRows:
			s.copied = grown(s.copied, j.mr*j.copiedStride(k))
		case copiedColumns:
			s.copied = grown(s.copied, together*j.mr*k)
		}
	}
	p.ForWorkers(j.down*j.across, 1, j.pieceBody)
}

// chooseLayout decides how A is read. In place is best, except for rows and columns that lie a multiple of 4 KiB apart,
// which fall into few sets of the caches, and for columns where there is room for all that is packed of them.
func (j *job[T]) chooseLayout() layout {
	size := int(unsafe.Sizeof(*new(T)))
	switch {
	case j.halfA.format != nil:
	case j.acs == 1 && j.engine.rows != nil:
		if j.ars*size%crowded == 0 && l1Ways() < roomy {
			return copiedRows
		}
		return inRows
	case j.ars == 1 && j.engine.tall != nil && j.ka == kc:
		if j.acs*size%crowded == 0 {
			return copiedColumns
		}
		return inColumns
	}
	return packed
}

// cutting is what matters for how C is cut into pieces.
type cutting struct {
	rows, cols int // of which pieces have multiples, except for the last ones
	most       int // rows of a piece
	// parts of the columns for which B is packed one after the other, so that pieces lose nothing by having them
	blocks int
	// extraRows could be computed while B is packed, and extraCols while A is read.
	extraRows, extraCols int
	smallest             int // operations of a piece
	each                 int // pieces for a worker
}

// blockedCut is how the blocked algorithm cuts, by its layout.
func (j *job[T]) blockedCut() cutting {
	c := cutting{rows: j.mr, cols: j.nr, most: j.mb, blocks: 1, extraRows: 8, extraCols: 12, smallest: 1 << 21, each: 3}
	if j.layout != packed {
		c.blocks = ceilDiv(j.n, j.blockCols(j.n))
	}
	if j.layout == inRows || j.layout == inColumns {
		c.extraCols = 4
	}
	return c
}

// cut settles into how many parts the rows and the columns of C are cut: rows by the number of workers, so that each
// has its own, which it reads or wrote in the operations before and after, and columns by blocks of B, unless A must be
// packed for each part. Some pieces more than there are workers make up for one that is slow. Of the ways to have so
// many, the best leaves the least to the worker with the most; each part of the rows packs B once more, and each of the
// columns reads A.
func (j *job[T]) cut(workers int, c cutting) {
	const (
		few = 192 // rows for which B is packed
		// numbers of columns' parts for each of the rows': with many workers, trying all would take longer than it
		// saves
		tries = 8
	)
	j.cutting = c
	rows, cols := j.panels()
	j.down, j.across = max(1, min(workers, j.m/few), ceilDiv(j.m, c.most)), c.blocks
	wanted := min(c.each*workers, int(j.flops())/c.smallest, rows*cols)
	if count := j.down * j.across; workers == 1 || count >= wanted && (count%workers == 0 || count >= 3*workers) {
		return
	}
	down, across, least := j.down, j.across, math.MaxInt
	for y := down; y <= min(rows, max(down, wanted)); y++ {
		enough := max(across, ceilDiv(wanted, y))
		for x := enough; x < enough+min(workers, tries) && x <= cols; x++ {
			if most := ceilDiv(x*y, workers) * (j.m + c.extraRows*y) * (j.n + c.extraCols*x) / (x * y); most < least {
				least, j.down, j.across = most, y, x
			}
		}
	}
}

// panels is how many panels the rows and the columns of C make, the last of which may be cut off.
func (j *job[T]) panels() (rows, cols int) {
	return ceilDiv(j.m, j.cutting.rows), ceilDiv(j.n, j.cutting.cols)
}

// largest is the most rows and columns that a piece has, in whole panels.
func (j *job[T]) largest() (rows, cols int) {
	rows, cols = j.panels()
	return ceilDiv(rows, j.down) * j.cutting.rows, ceilDiv(cols, j.across) * j.cutting.cols
}

// piece is the part of C with the number: rows [i0, i1) × columns [j0, j1). Neighbours share rows, and one has at most
// a panel more than another.
func (j *job[T]) piece(number int) (i0, i1, j0, j1 int) {
	y, x, high, wide := number/j.across, number%j.across, j.cutting.rows, j.cutting.cols
	rows, cols := j.panels()
	return y * rows / j.down * high, min((y+1)*rows/j.down*high, j.m), x * cols / j.across * wide,
		min((x+1)*cols/j.across*wide, j.n)
}

// blockCols is how many of cols columns of B are packed at once: parts of about the same width, wider ones of fewer
// products.
func (j *job[T]) blockCols(cols int) int {
	most := j.nb * (kc / min(j.k, kc))
	return ceilDiv(ceilDiv(cols, ceilDiv(cols, most)), j.nr) * j.nr
}

// computePieces computes pieces [lo, hi).
func (j *job[T]) computePieces(worker, lo, hi int) {
	for number := lo; number < hi; number++ {
		j.computePiece(worker, number)
	}
}

// block is a part of C, rows [i0, i1) × columns [j0, j1), and of its products, [k0, k1).
type block struct{ i0, i1, j0, j1, k0, k1 int }

// computePiece computes the piece of C with the number, block by block: all products for which A is packed once, then
// the next columns.
func (j *job[T]) computePiece(worker, number int) {
	s := &j.scratch[worker]
	i0, i1, j0, j1 := j.piece(number)
	width := j.blockCols(j1 - j0)
	for first := 0; first < j.k; first += j.ka {
		last := min(first+j.ka, j.k)
		j.packBlocksA(s, &block{i0, i1, j0, j1, first, last})
		for col := j0; col < j1; col += width {
			for k0 := first; k0 < last; k0 += kc {
				t := block{i0, i1, col, min(col+width, j1), k0, min(k0+kc, last)}
				j.packBlockB(s, &t)
				j.computeBlock(worker, &t, j.following(&t, j0, j1, width))
			}
		}
	}
}

// following is the block of B that comes after t's in a piece of columns [j0, j1), or in the next piece.
func (j *job[T]) following(t *block, j0, j1, width int) block {
	next, first := *t, t.k0/j.ka*j.ka
	switch {
	case t.k1 < min(first+j.ka, j.k):
		next.k0 = t.k1
	case t.j1 < j1:
		next.j0, next.j1, next.k0 = t.j1, min(t.j1+width, j1), first
	case t.k1 < j.k:
		next.j0, next.j1, next.k0 = j0, min(j0+width, j1), t.k1
	case j1 < j.n:
		next.j0, next.j1, next.k0 = j1, min(j1+width, j.n), 0
	default:
		next.j1 = next.j0
	}
	next.k1 = min(next.k0+kc, j.k)
	return next
}

// packBlocksA packs A for t's rows and products, blocks of kc of them one after the other, or those rows that do not
// fill a panel.
func (j *job[T]) packBlocksA(s *scratch[T], t *block) {
	whole := t.i0 + (t.i1-t.i0)/j.mr*j.mr
	for k0 := t.k0; k0 < t.k1; k0 += kc {
		part := block{t.i0, t.i1, t.j0, t.j1, k0, min(k0+kc, t.k1)}
		k, i := part.k1-k0, t.i0
		for ; j.layout == packed && j.ars == 1 && i+together*j.mr <= whole; i += together * j.mr {
			if !j.packTogetherA(j.panelA(s, &part, i), k, i+k0*j.acs) {
				break
			}
		}
		for ; j.layout == packed && i < whole; i += j.mr {
			j.packA(unsafe.Slice(j.panelA(s, &part, i), k*j.mr), j.mr, k, i, k0)
		}
		if whole < t.i1 {
			rows := t.i1 - whole
			j.packA(unsafe.Slice(j.panelA(s, &part, whole), k*rows), rows, k, whole, k0)
		}
	}
}

// panelA is where the panel of A from row i on lies that is packed for t's products.
func (j *job[T]) panelA(s *scratch[T], t *block, i int) *T {
	before, k := t.k0%j.ka, t.k1-t.k0 // blocks of kc products come before, as kc divides ka
	if j.layout != packed {
		return &s.a[before*((t.i1-t.i0)%j.mr)] // the last rows alone
	}
	return &s.a[before*(t.i1-t.i0)+(i-t.i0)*k]
}

// packBlockB packs B for t's columns.
func (j *job[T]) packBlockB(s *scratch[T], t *block) {
	k, col := t.k1-t.k0, t.j0
	for ; j.bcs == 1 && col+together*j.nr <= t.j1; col += together * j.nr {
		if !j.packTogetherB(&s.b[(col-t.j0)*k], k, t.k0*j.brs+col) {
			break
		}
	}
	for ; col < t.j1; col += j.nr {
		j.packB(s.b[(col-t.j0)*k:], min(j.nr, t.j1-col), k, t.k0, col)
	}
}

// packTogetherA packs as many panels of A as are packed together, from A's element at on, whose rows are contiguous. It
// reports whether there is a kernel for that.
func (j *job[T]) packTogetherA(dst *T, k, at int) bool {
	switch {
	case j.halfA.format == nil && j.copyA != nil:
		j.copyA(k, &j.a[at], j.acs, dst, k*j.mr)
	case j.halfA.format != nil && j.halfA.copyA != nil:
		j.halfA.copyA(k, &j.halfA.bits[at], j.acs, dst, k*j.mr)
	default:
		return false
	}
	return true
}

// packTogetherB is the same for B, whose columns are contiguous.
func (j *job[T]) packTogetherB(dst *T, k, at int) bool {
	switch {
	case j.halfB.format == nil && j.copyB != nil:
		j.copyB(k, &j.b[at], j.brs, dst, k*j.nr)
	case j.halfB.format != nil && j.halfB.copyB != nil:
		j.halfB.copyB(k, &j.halfB.bits[at], j.brs, dst, k*j.nr)
	default:
		return false
	}
	return true
}

// computeBlock adds t's products to C, while what it needs of the following block of B is on its way.
func (j *job[T]) computeBlock(worker int, t *block, next block) {
	s, announced := &j.scratch[worker], t.i0
	s.next.c.count, s.next.end.at = uintptr(j.mr), uintptr(unsafe.Pointer(&s.b[0]))
	panels := ceilDiv(t.i1-t.i0, j.mr)
	for n := range panels {
		i := t.i0 + n*j.mr
		rows := min(j.mr, t.i1-i)
		s.next.a, s.next.b = j.nextA(s, t, i+j.mr), j.nextB(t, &next, n, panels)
		col, k := t.j0, t.k1-t.k0
		if blocks := (t.j1 - t.j0) / j.nr; blocks > 0 && j.inRows() {
			d, stride := j.addend(i, col, t.k0)
			j.computePanel(s, t, i, rows, &s.b[0], &j.c[i*j.crs+col], j.crs, d, stride, blocks)
			col += blocks * j.nr
		}
		for ; col < t.j1; col += j.nr {
			j.computePanel(s, t, i, rows, &s.b[(col-t.j0)*k], &s.tile[0], j.nr, nil, 0, 1)
			j.scatter(s.tile, rows, min(t.j1-col, j.nr), i, col, t.k0)
		}
		if end := i + rows; t.k1 == j.k && (end == t.i1 || end-announced >= j.tm) {
			j.finished(announced, end, t.j0, t.j1)
			announced = end
		}
	}
}

// computePanel computes rows of C from row i on with the kernel that reads A as it is.
func (j *job[T]) computePanel(s *scratch[T], t *block, i, rows int, b, c *T, cstride int, d *T, dstride, blocks int) {
	k := t.k1 - t.k0
	switch {
	case j.layout == packed && rows == j.mr && j.engine.tall != nil:
		j.engine.tall(k, j.panelA(s, t, i), j.mr, b, j.nr, c, cstride, d, dstride, blocks, &s.next.c.at)
	case j.layout == packed || rows < j.mr:
		j.micro(rows, k, j.panelA(s, t, i), b, j.nr, c, cstride, d, dstride, blocks)
	case j.layout == copiedRows:
		stride := j.copyRows(s.copied, i, t.k0, k)
		j.engine.rows(k, &s.copied[0], stride, b, j.nr, c, cstride, d, dstride, blocks, &s.next.c.at)
	case j.layout == inRows:
		j.engine.rows(k, &j.a[i*j.ars+t.k0], j.ars, b, j.nr, c, cstride, d, dstride, blocks, &s.next.c.at)
	case j.layout == copiedColumns:
		j.engine.tall(k, j.copyColumns(s.copied, t, i), j.mr, b, j.nr, c, cstride, d, dstride, blocks, &s.next.c.at)
	default:
		j.engine.tall(k, &j.a[i+t.k0*j.acs], j.acs, b, j.nr, c, cstride, d, dstride, blocks, &s.next.c.at)
	}
}

// copyRows copies k products of the panel of A from row i on to dst and returns how far its rows are apart there.
func (j *job[T]) copyRows(dst []T, i, k0, k int) int {
	stride := j.copiedStride(k)
	for r := range j.mr {
		copy(dst[r*stride:][:k], j.a[(i+r)*j.ars+k0:])
	}
	return stride
}

// copyColumns returns the panel of A from row i on of t's products: in dst, to which it copies that and the following
// ones if it is the first of as many as are copied together.
func (j *job[T]) copyColumns(dst []T, t *block, i int) *T {
	k, place := t.k1-t.k0, (i-t.i0)/j.mr%together
	panel := dst[place*k*j.mr:]
	switch first := i - place*j.mr; {
	case first+together*j.mr > t.i1:
		j.packA(panel, j.mr, k, i, t.k0)
	case place == 0:
		j.copyA(k, &j.a[i+t.k0*j.acs], j.acs, &dst[0], k*j.mr)
	}
	return &panel[0]
}

// copiedStride is how far rows of k elements are apart in a copied panel.
func (j *job[T]) copiedStride(k int) int { return k + slack/int(unsafe.Sizeof(*new(T))) }

// nextA is the request for the panel of A from row i on, or for the first one of the products that follow; of panels
// that are copied together, for the one that is as far behind them.
func (j *job[T]) nextA(s *scratch[T], t *block, i int) request {
	size, next := int(unsafe.Sizeof(*new(T))), *t
	if i >= t.i1 {
		i, next.k0, next.k1 = t.i0, t.k1, min(t.k1+kc, j.k)
	}
	if j.layout == copiedColumns {
		i += (together - 1) * j.mr
	}
	k := next.k1 - next.k0
	if k <= 0 || i+j.mr > t.i1 {
		return request{}
	}
	switch j.layout {
	case inRows, copiedRows:
		return across(&j.a[i*j.ars+next.k0], j.ars*size, j.mr, k*size, t.panelsB(j.nr))
	case inColumns, copiedColumns:
		return down(&j.a[i+next.k0*j.acs], j.acs*size, k, t.panelsB(j.nr))
	case packed:
		if j.ka > kc && (next.k0 == t.k0 || next.k0%j.ka > 0) {
			return down(j.panelA(s, &next, i), j.nr*size, ceilDiv(k*j.mr, j.nr), t.panelsB(j.nr))
		}
	}
	return request{}
}

// nextB is panel n's share, of so many panels, of the request for a block of B.
func (j *job[T]) nextB(t, next *block, n, panels int) request {
	wide, high := next.j1-next.j0, next.k1-next.k0
	if wide == 0 || j.bcs != 1 && j.brs != 1 {
		return request{}
	}
	stride := j.brs
	if j.bcs != 1 {
		wide, high, stride = high, wide, j.bcs
	}
	at := next.k0*j.brs + next.j0*j.bcs
	if j.halfB.format != nil {
		width := j.nr * int(unsafe.Sizeof(*new(T))/unsafe.Sizeof(j.halfB.bits[0]))
		return share(&j.halfB.bits[at], width, wide, high, stride, n, panels, t.panelsB(j.nr))
	}
	return share(&j.b[at], j.nr, wide, high, stride, n, panels, t.panelsB(j.nr))
}

// panelsB is how many whole panels of B the block has, at least one.
func (t *block) panelsB(nr int) int { return max(1, (t.j1-t.j0)/nr) }

// share is turn n's part, of so many turns, of the request for rows of wide elements: a column of width elements, which
// are as many bytes as the columns of a tile of C.
func share[E element | uint16](first *E, width, wide, rows, stride, n, turns, blocks int) request {
	size := int(unsafe.Sizeof(*first))
	columns := ceilDiv(wide, width)
	column := n * columns / turns
	if column == (n+1)*columns/turns {
		return request{}
	}
	r := down(first, stride*size, rows, blocks)
	r.at += uintptr(column * width * size)
	return r
}

// down is the request for so many rows, from first on and stride bytes apart, in the course of so many blocks.
func down[E element | uint16](first *E, stride, rows, blocks int) request {
	count := ceilDiv(rows, blocks)
	return request{uintptr(unsafe.Pointer(first)), uintptr(stride), uintptr(count), uintptr(count * stride)}
}

// across is the request for rows of so many bytes, from first on and stride bytes apart: each of so many blocks
// prefetches a part of all rows.
func across[T element](first *T, stride, rows, bytes, blocks int) request {
	return request{uintptr(unsafe.Pointer(first)), uintptr(stride), uintptr(rows), uintptr(ceilDiv(bytes, blocks))}
}
