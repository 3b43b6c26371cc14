// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"fmt"
	"unsafe"
)

// Float32InPlace computes C = A·B, or C += A·B if accumulate is set, as [Float32] does, for operands that lie in a
// core's caches already: it reads them where they are, packs nothing and spreads nothing over workers.
//
// Columns of B are contiguous within panels of [PanelWidth32], which lie bps elements apart: element (p, j) is
// b[j/w·bps + p·brs + j%w], so that a bps of w is a B in rows, and [PackPanels32] makes one of any other. Strides of A
// are any numbers ≥ 0.
//
// An element of C is the sum over k in ascending order, which begins with the old value if accumulate is set: it
// depends on its row, its column and the variant alone, but differs in the last bits from Float32's. While it computes
// it asks for what ahead lists, unless that is nil. It panics if a size is negative or a slice too short for its
// matrix.
func Float32InPlace(m, n, k int, a []float32, ars, acs int, b []float32, brs, bps int, c []float32, ldc int, accumulate bool, ahead *Ahead) {
	inPlace(engine32(), m, n, k, a, ars, acs, b, brs, bps, c, ldc, accumulate, ahead)
}

// Float64InPlace is [Float32InPlace] in double precision, with panels of [PanelWidth64]; see [Float64].
func Float64InPlace(m, n, k int, a []float64, ars, acs int, b []float64, brs, bps int, c []float64, ldc int, accumulate bool, ahead *Ahead) {
	inPlace(engine64(), m, n, k, a, ars, acs, b, brs, bps, c, ldc, accumulate, ahead)
}

// PanelWidth32 is the number of columns of a panel of B for the active variant.
func PanelWidth32() int { return engine32().nr }

// PanelWidth64 is [PanelWidth32] for float64.
func PanelWidth64() int { return engine64().nr }

// PanelHeight32 is the number of rows that [Float32InPlace] computes at a time: fewer take nearly as long.
func PanelHeight32() int { return engine32().mr }

// PanelHeight64 is [PanelHeight32] for float64.
func PanelHeight64() int { return engine64().mr }

// SideBySide says whether [Float32InPlace] and its like compute two panels side by side, over broadProducts products at
// a time.
func SideBySide() bool { return engine32().broad != nil && sideBySide() }

// PackPanels32 packs B, [k, n] with any strides, into panels for [Float32InPlace] with a brs of the panels' width w and
// a bps of k·w. The last panel is filled up with zeros: dst has k·w elements for each panel. It panics if a slice is
// too short.
func PackPanels32(dst []float32, k, n int, b []float32, brs, bcs int) {
	packPanels(engine32(), dst, k, n, b, brs, bcs)
}

// PackPanels64 is [PackPanels32] for float64.
func PackPanels64(dst []float64, k, n int, b []float64, brs, bcs int) {
	packPanels(engine64(), dst, k, n, b, brs, bcs)
}

func packPanels[T element](e *engine[T], dst []T, k, n int, b []T, brs, bcs int) {
	if k <= 0 || n <= 0 {
		return
	}
	checkExtent("B", k, n, len(b), brs, bcs)
	for j := 0; j < n; j += e.nr {
		e.pack(dst[j*k:][:k*e.nr], e.nr, min(e.nr, n-j), k, b[j*bcs:], bcs, brs)
	}
}

func inPlace[T element](e *engine[T], m, n, k int, a []T, ars, acs int, b []T, brs, bps int, c []T, ldc int, accumulate bool, ahead *Ahead) {
	if m < 0 || n < 0 || k < 0 || ldc < n {
		panic(fmt.Sprintf("gemm: sizes m=%d n=%d k=%d and rows of C %d apart, want none negative and at least n", m, n, k, ldc))
	}
	if m == 0 || n == 0 {
		return
	}
	checkExtent("C", m, n, len(c), ldc, 1)
	if k == 0 {
		for i := 0; i < m && !accumulate; i++ {
			clear(c[i*ldc:][:n])
		}
		return
	}
	checkExtent("A", m, k, len(a), ars, acs)
	whole := n / e.nr
	if whole > 0 {
		checkExtent("B", whole, k, len(b)-e.nr+1, bps, brs)
	}
	add := 0
	if accumulate {
		add = 1
	}
	j := 0
	if e.broad != nil && m > e.mr && sideBySide() {
		for ; j+2 <= whole; j += 2 {
			inPlaceBroad(e, m, k, a, ars, acs, b[j*bps:], brs, bps, c[j*e.nr:], ldc, add, ahead)
		}
	}
	if rows := m / e.mr * e.mr; whole > 0 && m <= e.mr {
		e.strided(m, k, &a[0], ars, acs, &b[0], brs, &c[0], ldc, add, whole, 0, bps, e.nr, uintptr(unsafe.Pointer(&b[0])), 0)
	} else {
		for ; j < whole; j++ { // a panel of B stays in the first-level cache while rows of A pass by
			panel := &b[j*bps]
			for i := 0; i < rows; {
				count, next, step := ahead.take((rows-i)/e.mr, k, unsafe.Pointer(panel))
				e.strided(e.mr, k, &a[i*ars], ars, acs, panel, brs, &c[i*ldc+j*e.nr], ldc, add, count, e.mr*ars, 0, e.mr*ldc, next, step)
				i += count * e.mr
			}
			if rows < m {
				e.strided(m-rows, k, &a[rows*ars], ars, acs, panel, brs, &c[rows*ldc+j*e.nr], ldc, add, 1, 0, 0, 0, uintptr(unsafe.Pointer(panel)), 0)
			}
		}
	}
	if j := whole * e.nr; j < n {
		inPlaceEdge(e, m, n-j, k, a, ars, acs, b[whole*bps:], brs, c[j:], ldc, accumulate)
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
var sideBySide = func() bool { return firstCacheWays() >= roomy && largeL2() }

// inPlaceBroad computes two panels side by side, some products after the others.
func inPlaceBroad[T element](e *engine[T], m, k int, a []T, ars, acs int, b []T, brs, bps int, c []T, ldc, add int, ahead *Ahead) {
	height := e.mr / 2
	rows, blocks := m/height*height, ceilDiv(k, broadProducts)
	each := ceilDiv(ceilDiv(k, blocks), productsPerTurn) * productsPerTurn
	for p := 0; p < k; p += each {
		n := min(each, k-p)
		row := &b[p*brs]
		for i := 0; i < rows; {
			count, next, step := ahead.take((rows-i)/height, n, unsafe.Pointer(row))
			e.broad(n, &a[i*ars+p*acs], ars, acs, row, brs, bps, &c[i*ldc], ldc, add, count, height*ars, height*ldc, next, step)
			i += count * height
		}
		if rows < m {
			e.strided(m-rows, n, &a[rows*ars+p*acs], ars, acs, row, brs, &c[rows*ldc], ldc, add, 2, 0, bps, e.nr, uintptr(unsafe.Pointer(row)), 0)
		}
		add = 1
	}
}

// inPlaceEdge computes the n columns of C that are less than a panel: of a copy of B that is filled up with zeros, to
// scratch.
func inPlaceEdge[T element](e *engine[T], m, n, k int, a []T, ars, acs int, b []T, brs int, c []T, ldc int, accumulate bool) {
	checkExtent("B", k, n, len(b), brs, 1)
	list := jobsOf[T]()
	j := list.take()
	j.engine = e
	j.reserve(1)
	s := &j.scratch[0]
	s.b = grown(s.b, k*e.nr)
	tile := s.tile
	e.pack(s.b, e.nr, n, k, b, 1, brs)
	for i := 0; i < m; i += e.mr {
		rows, add := min(e.mr, m-i), 0
		if accumulate {
			add = 1
			for r := range rows {
				copy(tile[r*e.nr:][:n], c[(i+r)*ldc:])
			}
		}
		e.strided(rows, k, &a[i*ars], ars, acs, &s.b[0], e.nr, &tile[0], e.nr, add, 1, 0, 0, 0, uintptr(unsafe.Pointer(&s.b[0])), 0)
		for r := range rows {
			copy(c[(i+r)*ldc:][:n], tile[r*e.nr:])
		}
	}
	list.put(j)
}
