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
// [PanelWidth]. Columns that B lacks are zero. Panel by panel of columns, blocks of 256 rows one after the other in
// each: that of columns [j,j+width) from row p on begins at p·width + j·k.
func PackPanels[T element](dst []T, k, n int, b Matrix[T]) {
	e := panelsOf[T]()
	packColumns(dst, k, n, b, e.nr, e.pack)
}

// packColumns packs panels of width columns of B one after the other.
func packColumns[T element](dst []T, k, n int, b Matrix[T], width int,
	pack func(dst []T, width, lanes, k int, src []T, laneStride, kStride int)) {
	if k <= 0 || n <= 0 {
		return
	}
	checkExtent("B", k, n, len(b.Data), b.RowStride, b.ColStride)
	for j := 0; j < n; j += width {
		pack(dst[j*k:][:k*width], width, min(width, n-j), k, b.Data[j*b.ColStride:], b.ColStride, b.RowStride)
	}
}

// MultiplyPanels computes C = A·B, or C = D + A·B if D has elements, on the caller alone, with A [m,k], and B [k,n] in
// the panels of [PackPanels]. m is rounded up to a multiple of [RowStep], n to one of [PanelWidth]: A must have such
// rows to read and C such elements to write. The stride of D may be 0. An element of C is summed as by [Float32]; in
// double precision it is portable Go. It panics if a slice is too short.
func MultiplyPanels[T element](m, n, k int, a Rows[T], panels []T, c, d Rows[T]) {
	e := panelsOf[T]()
	m, n = ceilDiv(m, RowStep)*RowStep, ceilDiv(n, e.nr)*e.nr
	if m == 0 || n == 0 || k == 0 {
		return
	}
	checkPlaced(m, n, k, a, (m-1)*a.Stride+k, panels, n*k, c, d)
	for k0 := 0; k0 < k; k0 += kc {
		part := min(kc, k-k0)
		if k0 > 0 {
			d = c
		}
		if k <= kc && n*k <= sharedPanels { // panels lie one after the other
			for i := 0; i < m; {
				rows, run := e.choose(e.rows, m-i)
				run(k, a.at(i, 0), a.Stride, &panels[0], e.nr, c.at(i, 0), c.Stride, d.at(i, 0), d.Stride, n/e.nr)
				i += rows
			}
			continue
		}
		for j := 0; j < n; j += e.nr {
			for i := 0; i < m; {
				rows, run := e.choose(e.rows, m-i)
				run(part, a.at(i, k0), a.Stride, &panels[k0*e.nr+j*k], e.nr, c.at(i, j), c.Stride, d.at(i, j), d.Stride,
					1)
				i += rows
			}
		}
	}
}

// MultiplyTall computes C = Aᵀ·B, or C = D + Aᵀ·B if D has elements, on the caller alone, with A [k,m] and B [k,n]. m
// and n are rounded up as for [MultiplyPanels], and A and B must have such elements to read. It panics if a slice is
// too short.
func MultiplyTall[T element](m, n, k int, a, b, c, d Rows[T]) {
	e := panelsOf[T]()
	m, n = ceilDiv(m, RowStep)*RowStep, ceilDiv(n, e.nr)*e.nr
	if m == 0 || n == 0 || k == 0 {
		return
	}
	checkPlaced(m, n, k, a, (k-1)*a.Stride+m, b.Data, (k-1)*b.Stride+n, c, d)
	for k0 := 0; k0 < k; k0 += kc {
		part := min(kc, k-k0)
		if k0 > 0 {
			d = c
		}
		for j := 0; j < n; j += e.nr {
			for i := 0; i < m; {
				rows, run := e.choose(e.tall, m-i)
				run(part, a.at(k0, i), a.Stride, b.at(k0, j), b.Stride, c.at(i, j), c.Stride, d.at(i, j), d.Stride, 1)
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

// at is the address of element (i, j), nil if there are no elements.
func (r *Rows[T]) at(i, j int) *T {
	if r.Data == nil {
		return nil
	}
	return &r.Data[i*r.Stride+j]
}

// checkPlaced panics unless A and B have as many elements as they need and the rows of C and D lie in their slices.
func checkPlaced[T element](m, n, k int, a Rows[T], needA int, b []T, needB int, c, d Rows[T]) {
	if len(a.Data) < needA || len(b) < needB || len(c.Data) < (m-1)*c.Stride+n || c.Stride < n ||
		d.Data != nil && len(d.Data) < (m-1)*d.Stride+n {
		panic(fmt.Sprintf("gemm: %d×%d results of %d products: A has %d elements of %d, B %d of %d, C %d with rows %d "+
			"apart, D %d with rows %d apart", m, n, k, len(a.Data), needA, len(b), needB, len(c.Data), c.Stride,
			len(d.Data), d.Stride))
	}
}

// rowsGeneric is panelKernels.rows in portable Go, tallGeneric panelKernels.tall: four rows, blocks of four columns.
func rowsGeneric[T element](k int, a *T, astride int, b *T, bstride int, c *T, cstride int, d *T, dstride, blocks int) {
	placedGeneric(k, a, astride, 1, b, bstride, c, cstride, d, dstride, blocks)
}

func tallGeneric[T element](k int, a *T, astride int, b *T, bstride int, c *T, cstride int, d *T, dstride, blocks int) {
	placedGeneric(k, a, 1, astride, b, bstride, c, cstride, d, dstride, blocks)
}
