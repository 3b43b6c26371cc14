package gemm

// element is a type that matrices are made of.
type element interface{ float32 | float64 }

// kc is the number of products that a kernel sums in registers before it touches C. It decides the order of summation, so it is the
// same for all variants, and changing it changes the last bits of every result. 256 rows of a 32 column panel are 32 KiB of B,
// and a 12 row panel of A takes 12 KiB of the first-level cache.
const kc = 256

// tiling says how a product is cut. It is a matter of speed alone: no entry changes a bit of the result.
type tiling struct {
	// mr × nr elements of C are kept in registers by one call of the kernel: mr broadcast rows of A by nr columns of B in vectors.
	// 12×32 fills 24 of AVX-512's 32 registers, 6×16 fills 12 of AVX2's 16.
	mr, nr int
	// tm × tn elements of C are one task: A's kc × mr panel stays in the first-level cache while B's kc × tn block (512 KiB at most) comes
	// from the second-level cache. tm is a multiple of mr, tn of nr.
	tm, tn int
	// mb × kb of A and kb × nb of B are packed at once, shared by all workers through the last-level cache. kb is a multiple of kc.
	mb, nb, kb int
	// skinny is the largest m for which B is not packed ahead: its elements are used by so few rows that packing all of it would not pay.
	skinny int
	// narrow is the largest n for which the transposed product is computed instead, as most of each vector would be padding.
	narrow int
}

// engine is a kernel variant for one element type.
type engine[T element] struct {
	tiling
	// micro computes a tile of rows ≤ mr by nr: C = A·B, or C += A·B if add is set, over k ≤ kc products. A is packed k × rows; row p of B is at
	// b[p·bstride], row i of C at c[i·cstride].
	micro func(rows, k int, a, b *T, bstride int, c *T, cstride int, add bool)
	// stream reads a B whose rows are contiguous, dots one whose columns are: there row p of B is at b[p·bstride], here column j at b[j·bstride].
	stream, dots direct[T]
	// rows is micro for mr rows of A where they lie: row i at a[i·astride]. It is nil where there is none.
	rows func(k int, a *T, astride int, b *T, bstride int, c *T, cstride int, add bool)
	// pack is packGeneric or something faster that does the same.
	pack func(dst []T, width, lanes, k int, src []T, laneStride, kStride int)
	// transpose is transposeGeneric or something faster that does the same.
	transpose func(dst []T, width, lanes, k int, src []T, stride int)
}

// direct is a family of kernels for few rows, which read B where it lies. The zero value has none.
type direct[T element] struct {
	widths []int // by number of rows: how many columns a kernel computes at once; a divisor of nr or a multiple of it or of its half
	whole  int   // what k must be a multiple of
	// compute computes a tile of rows by blocks·widths[rows]; the rest is as for engine.micro.
	compute func(rows, k int, a, b *T, bstride int, c *T, cstride, blocks int, add bool)
}

// problem is one product as the caller described it, but for ccs: element (i, j) of C is c[i·crs + j·ccs], so that it can be transposed.
type problem[T element] struct {
	m, n, k    int
	a          []T
	ars, acs   int
	b          []T
	brs, bcs   int
	c          []T
	crs, ccs   int
	accumulate bool
}

// transposed returns the problem Cᵀ = Bᵀ·Aᵀ, which has the same bits, as each product is the same and the order of k too.
func (q *problem[T]) transposed() problem[T] {
	return problem[T]{q.n, q.m, q.k, q.b, q.bcs, q.brs, q.a, q.acs, q.ars, q.c, q.ccs, q.crs, q.accumulate}
}

// flops returns the number of multiplications and additions.
func (q *problem[T]) flops() float64 { return 2 * float64(q.m) * float64(q.n) * float64(q.k) }

// zero sets C to zero.
func (q *problem[T]) zero() {
	for i := range q.m {
		clear(q.c[i*q.crs : i*q.crs+q.n])
	}
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
