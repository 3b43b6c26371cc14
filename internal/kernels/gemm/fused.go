// SPDX-License-Identifier: Apache-2.0

package gemm

import "github.com/lockstep-ml/lockstep/internal/parallel"

// Fused is what is done to C beside the product, while its elements are at hand. The zero value is nothing.
type Fused[T element] struct {
	// Add, if not nil, is a matrix that is added to the product: its element (i, j) is Add[i·RowStride + j·ColStride].
	// Strides may be any number ≥ 0: with a RowStride of 0 it is a row that is added to all rows, a bias. It must be C
	// itself or not overlap it. The bits are those of adding to a C that held these values.
	Add                  []T
	RowStride, ColStride int
	// Finish, if not nil, is called for rows [i0, i1) × columns [j0, j1) of C when they are complete, by the worker
	// that completed them: once for each element, several workers at a time. Which pieces C is cut into is no promise.
	Finish func(i0, i1, j0, j1 int)
}

// Float32Fused is [Float32] with f done to C, which is overwritten.
func Float32Fused(p *parallel.Pool, m, n, k int, a, b Matrix[float32], c Rows[float32], f *Fused[float32]) {
	multiply(p, engine32(), f.problem(m, n, k, a, b, c))
}

// Float64Fused is [Float64] with f done to C, which is overwritten.
func Float64Fused(p *parallel.Pool, m, n, k int, a, b Matrix[float64], c Rows[float64], f *Fused[float64]) {
	multiply(p, engine64(), f.problem(m, n, k, a, b, c))
}

// problem checks the arguments and puts them together.
func (f *Fused[T]) problem(m, n, k int, a, b Matrix[T], c Rows[T]) problem[T] {
	check(m, n, k, a, b, c)
	q := newProblem(m, n, k, a, b, c, false)
	f.addTo(&q)
	return q
}

// addTo makes f a part of the problem.
func (f *Fused[T]) addTo(q *problem[T]) {
	if f.Add != nil {
		checkExtent("Add", q.m, q.n, len(f.Add), f.RowStride, f.ColStride)
		q.d, q.drs, q.dcs = f.Add, f.RowStride, f.ColStride
	}
	q.finish = f.Finish
}
