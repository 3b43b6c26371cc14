// SPDX-License-Identifier: Apache-2.0

package gemm

import "fmt"

// HasTiles reports whether the active variant multiplies by a matrix unit, for which [SplitPanels32] and
// [MultiplySplit32] are.
func HasTiles() bool { return engine32().tiles.floats.micro != nil }

// SplitSize32 is the number of elements that [SplitPanels32] writes for a B of [k, n]: if n is a multiple of
// [InPlaceWidth], that is where those of the columns from n on begin in a wider B's.
func SplitSize32(k, n int) int { return ceilDiv(n, tileSide) * ceilDiv(k, tileStep) * largeStep }

// SplitPanels32 splits B, [k, n], for [MultiplySplit32], into panels of [InPlaceWidth] columns; what the last one lacks
// is zero. It panics if the variant has no matrix unit, or a slice is too short.
func SplitPanels32(dst []float32, k, n int, b Matrix[float32]) {
	if k <= 0 || n <= 0 {
		return
	}
	checkExtent("B", k, n, len(b.Data), b.RowStride, b.ColStride)
	j, size := takeSplitter(k), SplitSize32(k, 1)
	for col := 0; col < n; col += tileSide {
		splitPanel(j, &j.scratch[0], &j.tiles.floats, dst[col/tileSide*size:][:size], false,
			b.Data[col*b.ColStride:], min(tileSide, n-col), k, b.ColStride, b.RowStride)
	}
	jobsOf[float32]().put(j)
}

// MultiplySplit32 computes C = A·B on the caller alone, with A [m, k], and B [k, n] in the panels of [SplitPanels32].
//
// All products of an element are summed as [Float32] sums a block of them by the matrix unit: it depends on its row and
// its column alone. What is not finite makes it not a number. It panics if the variant has no matrix unit, k is not
// positive or a slice is too short.
func MultiplySplit32(m, n, k int, a Rows[float32], panels []float32, c Rows[float32]) {
	if m == 0 || n == 0 {
		return
	}
	if k < 1 || c.Stride < n || len(panels) < SplitSize32(k, n) {
		panic(
			fmt.Sprintf("gemm: %d×%d results of %d products: panels have %d elements: want %d, and rows of C are "+
				"%d apart", m, n, k, len(panels), SplitSize32(k, n), c.Stride))
	}
	checkExtent("A", m, k, len(a.Data), a.Stride, 1)
	checkExtent("C", m, n, len(c.Data), c.Stride, 1)
	j := takeSplitter(k)
	for i := 0; i < m; i += tileSide {
		rows, s := min(tileSide, m-i), &j.scratch[0]
		splitPanel(j, s, &j.tiles.floats, s.a, true, a.Data[i*a.Stride:], rows, k, a.Stride, 1)
		j.tiles.floats.micro(rows, ceilDiv(k, tileStep), &s.a[0], &panels[0], c.at(i, 0), c.Stride, nil, 0, n,
			&s.sums[0])
	}
	jobsOf[float32]().put(j)
}

// takeSplitter takes a job with what one worker needs to split panels of k products.
func takeSplitter(k int) *job[float32] {
	e := engine32()
	if e.tiles.floats.micro == nil {
		panic("gemm: the variant has no matrix unit")
	}
	j := jobsOf[float32]().take()
	j.engine, j.stepSize = e, largeStep
	j.reserve(1)
	j.scratch[0].forTiles(ceilDiv(k, tileStep), largeStep)
	return j
}
