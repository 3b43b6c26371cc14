// SPDX-License-Identifier: Apache-2.0

package gemm

import "fmt"

// RowStep is what the products of panels round numbers of rows up to.
const RowStep = 4

// panelKernels are the kernels for products that are put together from outside, with a B that is packed once and an A
// that is read where it lies.
type panelKernels[T element] struct {
	nr    int   // columns of a panel
	sizes []int // numbers of rows of the kernels, the largest first; any multiple of RowStep is a sum of them
	// rows and tall compute sizes[i] rows of C = A·B and C = Aᵀ·B: row i of A, or row p, is at a[i·astride]. The rest
	// is as for engine.micro.
	rows, tall []placedKernel[T]
	pack       func(dst []T, width, lanes, k int, src []T, laneStride, kStride int)
}

// placedKernel is a kernel that reads A where it lies.
type placedKernel[T element] func(k int, a *T, astride int, b *T, bstride int, c *T, cstride int, d *T, dstride,
	blocks int)

var (
	genericPanels32 = panelKernels[float32]{4, []int{4}, []placedKernel[float32]{rowsGeneric[float32]},
		[]placedKernel[float32]{tallGeneric[float32]}, packGeneric[float32]}
	genericPanels64 = panelKernels[float64]{4, []int{4}, []placedKernel[float64]{rowsGeneric[float64]},
		[]placedKernel[float64]{tallGeneric[float64]}, packGeneric[float64]}
)

// panelsOf returns the kernels of the active variant.
func panelsOf[T element]() *panelKernels[T] {
	var list any = panels32()
	if k, ok := list.(*panelKernels[T]); ok {
		return k
	}
	list = &genericPanels64
	return list.(*panelKernels[T])
}

// sharedPanels is the number of elements of panels up to which some rows of A go through all of them, as they stay in
// the second-level cache: else all rows go through one.
const sharedPanels = 1 << 16

// PanelWidth is the number of columns of a panel in the active variant; matrices that products of panels write have a
// multiple of it.
func PanelWidth[T element]() int { return panelsOf[T]().nr }

// PackPanels lays out B [k,n] for [MultiplyPanels], in dst of k·n elements with n rounded up to a multiple of
// [PanelWidth]; element (p,j) of B is b[p·brs + j·bcs]. Columns that B lacks are zero. Panel by panel of columns,
// blocks of 256 rows one after the other in each: that of columns [j,j+width) from row p on begins at p·width + j·k.
func PackPanels[T element](dst []T, k, n int, b []T, brs, bcs int) {
	e := panelsOf[T]()
	checkExtent("B", k, n, len(b), brs, bcs)
	for j := 0; j < n && k > 0; j += e.nr {
		e.pack(dst[j*k:], e.nr, min(e.nr, n-j), k, b[j*bcs:], bcs, brs)
	}
}

// MultiplyPanels computes C = A·B, or C = D + A·B if d is not nil, on the caller alone: A [m,k] has rows of contiguous
// elements, ars apart, panels are [PackPanels]'s of B [k,n], and C has rows crs apart. m is rounded up to a multiple of
// [RowStep], n to one of [PanelWidth]: A must have such rows to read and C such elements to write. Row i of D is
// d[i·drs:], and drs may be 0. An element of C is summed as by [Float32]; in double precision it is portable Go. It
// panics if a slice is too short.
func MultiplyPanels[T element](m, n, k int, a []T, ars int, panels []T, c []T, crs int, d []T, drs int) {
	e := panelsOf[T]()
	m, n = ceilDiv(m, RowStep)*RowStep, ceilDiv(n, e.nr)*e.nr
	if m == 0 || n == 0 || k == 0 {
		return
	}
	checkPlaced(m, n, k, len(a), (m-1)*ars+k, len(panels), n*k, len(c), crs, d != nil, len(d), drs)
	for k0 := 0; k0 < k; k0 += kc {
		part := min(kc, k-k0)
		if k0 > 0 {
			d, drs = c, crs
		}
		if k <= kc && n*k <= sharedPanels { // panels lie one behind the other
			for i := 0; i < m; {
				rows, run := e.choose(e.rows, m-i)
				run(k, &a[i*ars], ars, &panels[0], e.nr, &c[i*crs], crs, place(d, i*drs), drs, n/e.nr)
				i += rows
			}
			continue
		}
		for j := 0; j < n; j += e.nr {
			for i := 0; i < m; {
				rows, run := e.choose(e.rows, m-i)
				run(part, &a[i*ars+k0], ars, &panels[k0*e.nr+j*k], e.nr, &c[i*crs+j], crs, place(d, i*drs+j), drs, 1)
				i += rows
			}
		}
	}
}

// MultiplyTall computes C = Aᵀ·B, or C = D + Aᵀ·B if d is not nil, on the caller alone: A [k,m] and B [k,n] have rows
// of contiguous elements, ars and brs apart. m and n are rounded up as for [MultiplyPanels], and A and B must have such
// elements to read. It panics if a slice is too short.
func MultiplyTall[T element](m, n, k int, a []T, ars int, b []T, brs int, c []T, crs int, d []T, drs int) {
	e := panelsOf[T]()
	m, n = ceilDiv(m, RowStep)*RowStep, ceilDiv(n, e.nr)*e.nr
	if m == 0 || n == 0 || k == 0 {
		return
	}
	checkPlaced(m, n, k, len(a), (k-1)*ars+m, len(b), (k-1)*brs+n, len(c), crs, d != nil, len(d), drs)
	for k0 := 0; k0 < k; k0 += kc {
		part := min(kc, k-k0)
		if k0 > 0 {
			d, drs = c, crs
		}
		for j := 0; j < n; j += e.nr {
			for i := 0; i < m; {
				rows, run := e.choose(e.tall, m-i)
				run(part, &a[k0*ars+i], ars, &b[k0*brs+j], brs, &c[i*crs+j], crs, place(d, i*drs+j), drs, 1)
				i += rows
			}
		}
	}
}

// choose returns the largest kernel for at most so many rows that does not leave as few as the smallest has, which is
// slow.
func (e *panelKernels[T]) choose(list []placedKernel[T], rows int) (int, placedKernel[T]) {
	last := len(e.sizes) - 1
	for i, n := range e.sizes {
		if n == rows || n < rows && (i == last || rows-n > e.sizes[last]) {
			return n, list[i]
		}
	}
	panic(fmt.Sprintf("gemm: no kernel for %d rows", rows))
}

// place is the address of element i of d, or nil.
func place[T element](d []T, i int) *T {
	if d == nil {
		return nil
	}
	return &d[i]
}

// checkPlaced panics unless A and B have so many elements and the rows of C and D lie in their slices.
func checkPlaced(m, n, k, lenA, needA, lenB, needB, lenC, crs int, added bool, lenD, drs int) {
	if lenA < needA || lenB < needB || lenC < (m-1)*crs+n || crs < n || added && lenD < (m-1)*drs+n {
		panic(
			fmt.Sprintf("gemm: %d×%d results of %d products: A has %d elements of %d, B %d of %d, C %d with rows %d "+
				"apart, D %d with rows %d apart",
				m, n, k, lenA, needA, lenB, needB, lenC, crs, lenD, drs))
	}
}

// rowsGeneric is panelKernels.rows in portable Go, tallGeneric panelKernels.tall: four rows, blocks of four columns.
func rowsGeneric[T element](k int, a *T, astride int, b *T, bstride int, c *T, cstride int, d *T, dstride, blocks int) {
	placedGeneric(k, a, astride, 1, b, bstride, c, cstride, d, dstride, blocks)
}

func tallGeneric[T element](k int, a *T, astride int, b *T, bstride int, c *T, cstride int, d *T, dstride, blocks int) {
	placedGeneric(k, a, 1, astride, b, bstride, c, cstride, d, dstride, blocks)
}
