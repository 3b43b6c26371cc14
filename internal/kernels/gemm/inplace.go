// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"fmt"
	"unsafe"
)

// Panels is an operand B whose columns are contiguous within panels of a width w: element (p, j) is Data[j/w·Stride +
// p·RowStride + j%w], so that a Stride of w is a B in rows.
type Panels[T any] struct {
	Data              []T
	RowStride, Stride int
}

// InPlace computes C = A·B, or C += A·B if accumulate is set, as [Float32] does, for operands that lie in a core's
// caches already: it reads them where they are, packs nothing and spreads nothing over workers.
//
// Panels of B have the width [InPlaceWidth], and [PackInPlace] makes them of any B. Strides of A are any numbers ≥ 0.
//
// An element of C is the sum over k in ascending order, which begins with the old value if accumulate is set: it
// depends on its row, its column and the variant alone, but differs in the last bits from Float32's. While it computes
// it prefetches what prefetch lists, unless that is nil. It panics if a size is negative or a slice too short for its
// matrix.
func InPlace[T element](m, n, k int, a Matrix[T], b Panels[T], c Rows[T], accumulate bool, prefetch *Prefetch) {
	inPlace(engineOf[T](), m, n, k, a, b, c, accumulate, prefetch)
}

// InPlaceWidth is the number of columns of a panel of B of [InPlace] for the active variant.
func InPlaceWidth[T element]() int { return engineOf[T]().nr }

// InPlaceHeight is the number of rows that [InPlace] computes at a time: fewer take nearly as long.
func InPlaceHeight[T element]() int { return engineOf[T]().mr }

// SideBySide says whether [InPlace] computes two panels side by side, over broadProducts products at
// a time.
func SideBySide() bool { return engine32().broad != nil && sideBySide() }

// PackInPlace packs B, [k, n], into panels for [InPlace] with a row stride of the panels' width w and a stride of k·w.
// The last panel is filled up with zeros: dst has k·w elements for each panel. It panics if a slice is too short.
func PackInPlace[T element](dst []T, k, n int, b Matrix[T]) { packInPlace(engineOf[T](), dst, k, n, b) }

func packInPlace[T element](e *engine[T], dst []T, k, n int, b Matrix[T]) {
	packColumns(dst, k, n, b, e.nr, e.pack)
}

// placed is a product of operands where they lie.
type placed[T element] struct {
	*engine[T]
	m, k int
	a    Matrix[T]
	b    Panels[T]
	c    Rows[T]
	add  int // 1 if C is added to, else 0, as kernels want it
}

func inPlace[T element](e *engine[T], m, n, k int, a Matrix[T], b Panels[T], c Rows[T], accumulate bool,
	prefetch *Prefetch) {
	if m < 0 || n < 0 || k < 0 || c.Stride < n {
		panic(fmt.Sprintf("gemm: sizes m=%d n=%d k=%d and rows of C %d apart: want none negative and at least n", m, n,
			k, c.Stride))
	}
	if m == 0 || n == 0 {
		return
	}
	checkExtent("C", m, n, len(c.Data), c.Stride, 1)
	if k == 0 {
		for i := 0; i < m && !accumulate; i++ {
			clear(c.Data[i*c.Stride:][:n])
		}
		return
	}
	checkExtent("A", m, k, len(a.Data), a.RowStride, a.ColStride)
	whole := n / e.nr
	if whole > 0 {
		checkExtent("B", whole, k, len(b.Data)-e.nr+1, b.Stride, b.RowStride)
	}
	q := placed[T]{engine: e, m: m, k: k, a: a, b: b, c: c}
	if accumulate {
		q.add = 1
	}
	if whole > 0 && m <= e.mr {
		e.strided(m, k, &a.Data[0], a.RowStride, a.ColStride, &b.Data[0], b.RowStride, &c.Data[0], c.Stride, q.add,
			whole, 0, b.Stride, e.nr, uintptr(unsafe.Pointer(&b.Data[0])), 0)
	} else {
		j := 0
		if e.broad != nil && sideBySide() {
			for ; j+2 <= whole; j += 2 {
				q.twoPanels(j, prefetch)
			}
		}
		for ; j < whole; j++ {
			q.onePanel(j, prefetch)
		}
	}
	if whole*e.nr < n {
		q.edge(whole, n-whole*e.nr)
	}
}

// onePanel computes the columns of C of panel j of B, which stays in the first-level cache while rows of A pass by.
func (q *placed[T]) onePanel(j int, prefetch *Prefetch) {
	a, c, rows := &q.a, &q.c, q.m/q.mr*q.mr
	panel := &q.b.Data[j*q.b.Stride]
	for i := 0; i < rows; {
		count, next, step := prefetch.take((rows-i)/q.mr, q.k, unsafe.Pointer(panel))
		q.strided(q.mr, q.k, &a.Data[i*a.RowStride], a.RowStride, a.ColStride, panel, q.b.RowStride,
			&c.Data[i*c.Stride+j*q.nr], c.Stride, q.add, count, q.mr*a.RowStride, 0, q.mr*c.Stride, next, step)
		i += count * q.mr
	}
	if rows < q.m {
		q.strided(q.m-rows, q.k, &a.Data[rows*a.RowStride], a.RowStride, a.ColStride, panel, q.b.RowStride,
			&c.Data[rows*c.Stride+j*q.nr], c.Stride, q.add, 1, 0, 0, 0, uintptr(unsafe.Pointer(panel)), 0)
	}
}

// broadProducts is how many products are summed at a time with two panels side by side: B's rows for them, 32 KiB, stay
// in a first-level cache of 48.
const broadProducts = 128

// sideBySide says whether two panels are computed side by side; a variable for tests. Fewer elements are read for each
// multiply-add, and A half as often, which matters where a core has two multiply-adds per cycle: then each load beside
// them counts, in time and in the power that a clock's frequency depends on. Where the first-level cache holds no more
// than 32 KiB it would read B from the second again and again. Processors with a large first but a small second-level
// cache lose nothing to loads.
var sideBySide = func() bool { return l1Ways() >= roomy && largeL2() }

// twoPanels computes the columns of panels j and j+1 of B side by side, some products after the others.
func (q *placed[T]) twoPanels(j int, prefetch *Prefetch) {
	a, b, c, add := &q.a, &q.b, &q.c, q.add
	height := q.mr / 2
	rows, blocks := q.m/height*height, ceilDiv(q.k, broadProducts)
	each := ceilDiv(ceilDiv(q.k, blocks), productsPerTurn) * productsPerTurn
	for p := 0; p < q.k; p += each {
		n := min(each, q.k-p)
		row := &b.Data[j*b.Stride+p*b.RowStride]
		for i := 0; i < rows; {
			count, next, step := prefetch.take((rows-i)/height, n, unsafe.Pointer(row))
			q.broad(n, &a.Data[i*a.RowStride+p*a.ColStride], a.RowStride, a.ColStride, row, b.RowStride, b.Stride,
				&c.Data[i*c.Stride+j*q.nr], c.Stride, add, count, height*a.RowStride, height*c.Stride, next, step)
			i += count * height
		}
		if rows < q.m {
			q.strided(q.m-rows, n, &a.Data[rows*a.RowStride+p*a.ColStride], a.RowStride, a.ColStride, row, b.RowStride,
				&c.Data[rows*c.Stride+j*q.nr], c.Stride, add, 2, 0, b.Stride, q.nr, uintptr(unsafe.Pointer(row)), 0)
		}
		add = 1
	}
}

// edge computes the n columns of C that are less than a panel, of panel number whole of B: of a copy that is filled up
// with zeros, to scratch.
func (q *placed[T]) edge(whole, n int) {
	a, b, c := &q.a, q.b.Data[whole*q.b.Stride:], q.c.Data[whole*q.nr:]
	checkExtent("B", q.k, n, len(b), q.b.RowStride, 1)
	list := jobsOf[T]()
	j := list.take()
	j.engine = q.engine
	j.reserve(1)
	s := &j.scratch[0]
	s.b = grown(s.b, q.k*q.nr)
	tile := s.tile
	q.pack(s.b, q.nr, n, q.k, b, 1, q.b.RowStride)
	for i := 0; i < q.m; i += q.mr {
		rows := min(q.mr, q.m-i)
		if q.add != 0 {
			for r := range rows {
				copy(tile[r*q.nr:][:n], c[(i+r)*q.c.Stride:])
			}
		}
		q.strided(rows, q.k, &a.Data[i*a.RowStride], a.RowStride, a.ColStride, &s.b[0], q.nr, &tile[0], q.nr, q.add,
			1, 0, 0, 0, uintptr(unsafe.Pointer(&s.b[0])), 0)
		for r := range rows {
			copy(c[(i+r)*q.c.Stride:][:n], tile[r*q.nr:])
		}
	}
	list.put(j)
}
