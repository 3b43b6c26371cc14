// SPDX-License-Identifier: Apache-2.0

// Package gemm multiplies matrices: C = A·B or C += A·B for float32 and float64, with operands strided in any way;
// those of a float32 C may be of half types.
//
// The algorithm is that of Goto and van de Geijn ("Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3),
// 2008) in BLIS's arrangement (Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS
// Functionality", ACM TOMS 41(3), 2015): panels of B are packed so that a small register-blocked kernel reads them in
// sequence, and so are those of A that it cannot read where they lie. Packing takes any strides, so transposed operands
// need no copy, and widens half types, so that these need none either.
//
// An element of C depends only on its row of A, its column of B, its old value and the kernel variant: k is summed in
// ascending order within blocks of kc, and the blocks are added in ascending order. So neither the number of workers,
// nor the tile that an element falls into, nor the other rows of a batch change its bits; the AVX2 and AVX-512 variants
// agree with each other, and the generic one differs from them only by not fusing multiplication and addition. NaN and
// infinities propagate as the sum of products does it.
//
// The AMX variant multiplies float32 and bfloat16 by a matrix unit where a product has enough rows, columns and
// summands, and otherwise as AVX-512 does. Blocks of kc are the same; within one, sums of 16 products and of pieces of
// floats are added, with less rounding than one by one. So the size of a product matters too, and denormal numbers
// count as zero there.
//
// It is NOT a BLAS: no alpha and beta, no triangular or symmetric forms, no sums in half precision.
package gemm

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// Matrix is an operand: element (i, j) is Data[i·RowStride + j·ColStride].
type Matrix[T any] struct {
	Data                 []T
	RowStride, ColStride int
}

// Strided returns the matrix of data with these strides, counted in elements.
func Strided[T any](data []T, rowStride, colStride int) Matrix[T] {
	return Matrix[T]{data, rowStride, colStride}
}

// Rows is a result, or an operand, whose rows are contiguous: element (i, j) is Data[i·Stride + j].
type Rows[T any] struct {
	Data   []T
	Stride int
}

// InRows returns the result that goes to data, with rows so many elements apart.
func InRows[T any](data []T, stride int) Rows[T] { return Rows[T]{data, stride} }

// Float32 computes C = A·B, or C += A·B if accumulate is set, where A is [m, k], B is [k, n] and C is [m, n].
//
// Strides of A and B may be any number ≥ 0 (0 repeats a row or column), and that of C must be at least n. So a
// transposed operand is one whose strides are swapped. With k = 0 the product is zero; with m = 0 or n = 0 nothing
// happens. C must not overlap A or B.
//
// The work is spread over the workers of p; nil means the caller alone. The bits of the result do not depend on p. Once
// the scratch memory for packing has grown to the largest size in use (at most about 5 MiB per worker and concurrent
// call), a call allocates nothing. It panics if a size is negative or a slice too short for its matrix.
func Float32(p *parallel.Pool, m, n, k int, a, b Matrix[float32], c Rows[float32], accumulate bool) {
	check(m, n, k, a, b, c)
	multiply(p, engine32(), newProblem(m, n, k, a, b, c, accumulate))
}

// Float64 is [Float32] in double precision; its scratch memory takes as much.
func Float64(p *parallel.Pool, m, n, k int, a, b Matrix[float64], c Rows[float64], accumulate bool) {
	check(m, n, k, a, b, c)
	multiply(p, engine64(), newProblem(m, n, k, a, b, c, accumulate))
}

// check panics unless the arguments describe three matrices that lie within their slices.
func check[A, B, C any](m, n, k int, a Matrix[A], b Matrix[B], c Rows[C]) {
	if m < 0 || n < 0 || k < 0 {
		panic(fmt.Sprintf("gemm: sizes m=%d n=%d k=%d: want none negative", m, n, k))
	}
	if m == 0 || n == 0 {
		return
	}
	if c.Stride < n {
		panic(fmt.Sprintf("gemm: row stride of C is %d: want at least n=%d", c.Stride, n))
	}
	checkExtent("A", m, k, len(a.Data), a.RowStride, a.ColStride)
	checkExtent("B", k, n, len(b.Data), b.RowStride, b.ColStride)
	checkExtent("C", m, n, len(c.Data), c.Stride, 1)
}

func checkExtent(name string, rows, cols, length, rowStride, colStride int) {
	if rows == 0 || cols == 0 {
		return
	}
	if rowStride < 0 || colStride < 0 {
		panic(fmt.Sprintf("gemm: strides of %s are %d and %d: want none negative", name, rowStride, colStride))
	}
	if need := (rows-1)*rowStride + (cols-1)*colStride + 1; length < need {
		panic(fmt.Sprintf("gemm: %s has %d elements: want at least %d for %d×%d with strides %d and %d",
			name, length, need, rows, cols, rowStride, colStride))
	}
}
