// SPDX-License-Identifier: Apache-2.0

package gemm

// element is a type that matrices are made of.
type element interface{ float32 | float64 }

// kc is the number of products that a kernel sums in registers before it touches C. It decides the order of summation,
// so it is the same for all variants, and changing it changes the last bits of every result. 256 rows of a 32 column
// panel are 32 KiB of B, and a 12 row panel of A takes 12 KiB of the first-level cache.
const kc = 256

// tiling says how a product is cut. It is a matter of speed alone: no entry changes a bit of the result.
type tiling struct {
	// mr × nr elements of C are kept in registers by one call of the kernel: mr broadcast rows of A by nr columns of B
	// in vectors. 12×32 fills 24 of AVX-512's 32 registers, 6×16 fills 12 of AVX2's 16.
	mr, nr int
	// mb is the most rows that a worker packs A for at a time, if it must, and tm the rows of C after which they are
	// announced as complete. Both are multiples of mr.
	mb, tm int
	// ka is how many products A is packed for at a time, if it must be, a multiple of kc: all products of those come
	// before the next columns of C.
	ka int
	// kc × nb of B, 512 KiB at most, or as much of fewer products, are packed at once and stay in the second-level
	// cache of the worker that packed them. nb is a multiple of nr.
	nb int
	// kb is how many products of some rows of A are packed at once if B is read where it lies, a multiple of kc.
	kb int
	// skinny is the largest m for which B is not packed ahead: its elements are used by so few rows that packing all of
	// it would not pay.
	skinny int
	// fusedPacking says for which products panels of B are packed by the kernel that reads them first; the zero value:
	// none.
	fusedPacking fusedPacking
	// narrow is the largest n for which the transposed product is computed instead, as most of each vector would be
	// padding.
	narrow int
}

// on is the tiling for a processor whose second-level cache is large, or is not. In a large one columns of A are packed
// for more products than a kernel adds up: in place, a panel of them takes a line or two of each of many pages. Few
// rows pack B there, too: where it lies it would come from the third-level cache a line here and a line there, and
// nothing be prefetched. So its panels are packed in the kernel for the first rows, or as usual.
func (t tiling) on(largeL2 bool) tiling {
	if largeL2 {
		t.ka, t.fusedPacking, t.skinny = 2*kc, fusedPacking{t.skinny, 1 << 20}, 0
	}
	return t
}

// engine is a kernel variant for one element type.
type engine[T element] struct {
	tiling
	off []string // names of plans that are not used, for tests and benchmarks
	// micro computes rows ≤ mr by blocks·nr: C = A·B, or C = D + A·B if d is not nil, over k ≤ kc products. A is packed
	// k × rows; row p of B is at b[p·bstride], and those of the next block follow; row i of C is at c[i·cstride], of D
	// at d[i·dstride].
	micro func(rows, k int, a, b *T, bstride int, c *T, cstride int, d *T, dstride, blocks int)
	// stream reads a B whose rows are contiguous, dots one whose columns are: there row p of B is at b[p·bstride], here
	// column j at b[j·bstride].
	stream direct[T, T]
	dots   directAhead[T, T]
	// gemvHalves is what dots is for one row and crowded columns.
	gemvHalves gemvHalves[T]
	// gemvColumns is what dots is for one row, where it is better.
	gemvColumns gemvColumns[T]
	// gemvRows is what stream is for one row and a large B.
	gemvRows gemvRows[T]
	// rows and tall are micro for mr rows of A where they lie: row i at a[i·astride], or column p at a[p·astride]. With
	// each block they prefetch a part of the requests whose address is next. They are nil where there are none.
	rows, tall func(k int, a *T, astride int, b *T, bstride int, c *T, cstride int, d *T, dstride, blocks int,
		next *uintptr)
	// keeping is rows for one block that packs B as it reads it: row p of it goes to kept[p·nr:]. With that it
	// prefetches nr elements at near[p·bstride]. It is nil where there is none.
	keeping func(k int, a *T, astride int, b *T, bstride int, c *T, cstride int, d *T, dstride int, kept, near *T)
	// strided computes count tiles of rows ≤ mr by nr: C = A·B, or C += A·B if add is not 0, over k ≥ 1 products.
	// Element (i, p) of A is at a[i·ars + p·acs], row p of B at b[p·brs], row i of C at c[i·crs]. From one tile to the
	// next a, b and c move on by astep, bstep and cstep. With each productsPerTurn products it may prefetch two
	// neighbouring cache lines: the first time at next, each time step bytes further.
	strided func(rows, k int, a *T, ars, acs int, b *T, brs int, c *T, crs, add, count, astep, bstep, cstep int, next,
		step uintptr)
	// broad is strided for tiles below each other of mr/2 rows by two panels, of which the second lies bps elements
	// behind the first. It is nil where there is none.
	broad func(k int, a *T, ars, acs int, b *T, brs, bps int, c *T, crs, add, count, astep, cstep int, next,
		step uintptr)
	// tiles is zero where there is no matrix unit.
	tiles tiles[T]
	// splitKLimits is zero where gemvRows.add is missing.
	splitKLimits
	// outer writes rows of a product of one summand.
	outer outer[T]
	// pack is packGeneric or something faster that does the same.
	pack func(dst []T, width, lanes, k int, src []T, laneStride, kStride int)
	// copyA and copyB pack together full panels of A and of B whose lanes are contiguous, each pitch elements after the
	// one before. They are nil where pack does as well.
	copyA, copyB copyPanels[T, T]
	// transpose is transposeGeneric or something faster that does the same.
	transpose func(dst []T, width, lanes, k int, src []T, stride int)
}

// engineOf returns the active variant.
func engineOf[T element]() *engine[T] {
	var e any = engine32()
	if e, ok := e.(*engine[T]); ok {
		return e
	}
	e = engine64()
	return e.(*engine[T])
}

// direct is a family of kernels for few rows, which read a B of elements of their own where it lies. The zero value has
// none.
type direct[T element, B any] struct {
	// by number of rows: how many columns a kernel computes at once; a divisor of nr or a multiple of it or of its half
	widths []int
	whole  int // what k must be a multiple of
	// compute computes a tile of rows by blocks·widths[rows]; the rest is as for engine.micro.
	compute func(rows, k int, a *T, b *B, bstride int, c *T, cstride int, d *T, dstride, blocks int)
}

// directAhead is direct for kernels that compute widths[rows] columns, of which they add blocks sums of k products one
// after the other, and prefetch as many bytes from ahead on as they read of B.
type directAhead[T element, B any] struct {
	widths  []int // 0 where there is no kernel for so many rows
	whole   int
	compute func(rows, k int, a *T, b *B, bstride int, c *T, cstride int, d *T, dstride, blocks int, ahead uintptr)
	// crowded are those for columns that lie a multiple of 4 KiB apart: at most 16 of them side by side. A set of the
	// first-level cache has room for 8 or 12 lines, and half the second-level cache for two panels of long columns. So
	// AVX-512 has kernels of AVX2 there, where these compute faster than memory brings the columns. nil: the same.
	crowded *directAhead[T, B]
}

// has reports whether there is a kernel for so many rows.
func (s *directAhead[T, B]) has(rows int) bool { return rows < len(s.widths) && s.widths[rows] > 0 }

// problem is one product C = D + A·B as the caller described it. Element (i, j) of C is c[i·crs + j·ccs], so that it
// can be transposed, and of D likewise; a nil d is no D. finish is [Fused.Finish], with rows and columns exchanged if
// flipped is set.
type problem[T element] struct {
	m, n, k  int
	a        []T
	ars, acs int
	b        []T
	brs, bcs int
	c        []T
	crs, ccs int
	d        []T
	drs, dcs int

	finish  func(i0, i1, j0, j1 int)
	flipped bool

	halfA, halfB half[T] // in place of a and b
}

// newProblem is a product whose C lies in rows and is added to if accumulate is set.
func newProblem[T element](m, n, k int, a, b Matrix[T], c Rows[T], accumulate bool) problem[T] {
	q := problem[T]{
		m: m, n: n, k: k,
		a: a.Data, ars: a.RowStride, acs: a.ColStride,
		b: b.Data, brs: b.RowStride, bcs: b.ColStride,
		c: c.Data, crs: c.Stride, ccs: 1,
	}
	if accumulate {
		q.d, q.drs, q.dcs = c.Data, c.Stride, 1
	}
	return q
}

// transposed returns the problem Cᵀ = Dᵀ + Bᵀ·Aᵀ, which has the same bits, as each product is the same and the order of
// k too.
func (q *problem[T]) transposed() problem[T] {
	t := *q
	t.m, t.n = q.n, q.m
	t.a, t.ars, t.acs, t.halfA = q.b, q.bcs, q.brs, q.halfB
	t.b, t.brs, t.bcs, t.halfB = q.a, q.acs, q.ars, q.halfA
	t.crs, t.ccs = q.ccs, q.crs
	t.drs, t.dcs = q.dcs, q.drs
	t.flipped = !q.flipped
	return t
}

// inRows reports whether the rows of C and D are contiguous, as kernels want them.
func (q *problem[T]) inRows() bool { return q.ccs == 1 && (q.d == nil || q.dcs == 1) }

// addend is what a kernel adds to the block of products from k0 on, for the elements from (i, j) on: C as it is so far,
// or D, or nothing.
func (q *problem[T]) addend(i, j, k0 int) (d *T, stride int) {
	switch {
	case k0 > 0:
		return &q.c[i*q.crs+j], q.crs
	case q.d != nil:
		return &q.d[i*q.drs+j], q.drs
	}
	return nil, 0
}

// finished announces that rows [i0, i1) × columns [j0, j1) of C are complete.
func (q *problem[T]) finished(i0, i1, j0, j1 int) {
	switch {
	case q.finish == nil:
	case q.flipped:
		q.finish(j0, j1, i0, i1)
	default:
		q.finish(i0, i1, j0, j1)
	}
}

// flops returns the number of multiplications and additions.
func (q *problem[T]) flops() float64 { return 2 * float64(q.m) * float64(q.n) * float64(q.k) }

// empty computes the product of no summands: D, or zero.
func (q *problem[T]) empty() {
	for i := range q.m {
		row := q.c[i*q.crs : i*q.crs+q.n]
		if q.d == nil {
			clear(row)
			continue
		}
		for j := range row {
			row[j] = q.d[i*q.drs+j*q.dcs]
		}
	}
	q.finished(0, q.m, 0, q.n)
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
