// SPDX-License-Identifier: Apache-2.0

// Package winograd has the transforms of Winograd's minimal filtering F(2×2,3×3) for convolutions of 3×3 kernels (Lavin
// and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016): a tile of 2×2 results takes 16 products
// instead of 36.
//
//	Output(Input(d) ∘ Kernel(g))
//
// are the 2×2 results of the kernel g on the 4×4 pixels d, where ∘ multiplies the 16 elements one by one. Sums over
// input channels, results and tiles are matrix products, one for each of the 16 places. OutputGrad and KernelGrad are
// the transposes of Output and Kernel, for the gradient of g. The sign of the last row is another one than in the
// paper, so that each row begins with a sum.
//
// Elements are vectors over channels. All variants give the same bits, since they add in the same order and factors are
// ±1 and ±½.
//
// It is NOT a convolution: package cpu puts one together of this and of package gemm.
package winograd

import "fmt"

// Points is the number of places of a tile that products are taken at, 4×4.
const Points = 16

// Transform is T·d·Tᵀ for a fixed matrix T and a square d of vectors.
type Transform struct {
	matrix [][]float32
	vector vectors
}

// The transforms.
var (
	// Input is 4×4 pixels to 4×4.
	Input = Transform{[][]float32{{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, -1, 0, 1}}, inputVectors}
	// Output is 4×4 products to 2×2 results.
	Output = Transform{[][]float32{{1, 1, 1, 0}, {0, 1, -1, 1}}, outputVectors}
	// OutputGrad is the gradient of 2×2 results to that of 4×4 products.
	OutputGrad = Transform{[][]float32{{1, 0}, {1, 1}, {1, -1}, {0, 1}}, outputGradVectors}
	// Kernel is a 3×3 kernel to 4×4.
	Kernel = Transform{[][]float32{{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}}, kernelVectors}
	// KernelGrad is the gradient of a 4×4 kernel to that of the 3×3 one.
	KernelGrad = Transform{[][]float32{{1, 0.5, 0.5, 0}, {0, 0.5, -0.5, 0}, {0, 0.5, 0.5, 1}}, kernelGradVectors}
)

// Flipped is the place at which a kernel that is turned by 180 degrees has what the kernel has at a place.
func Flipped(point int) int {
	turned := [4]int{3, 1, 2, 0}
	return 4*turned[point/4] + turned[point%4]
}

// Square is where the vectors of a square lie: (i,j) at i·Row + j·Col.
type Square struct{ Row, Col int }

// Apply transforms a square of vectors of n elements in src to one in dst, which must not overlap. It panics if a slice
// is too short.
func (t *Transform) Apply(n int, dst []float32, to Square, src []float32, from Square) {
	if n == 0 {
		return
	}
	in, out := len(t.matrix[0]), len(t.matrix)
	if n < 0 || min(to.Row, to.Col, from.Row, from.Col) < 0 || len(dst) < (out-1)*(to.Row+to.Col)+n ||
		len(src) < (in-1)*(from.Row+from.Col)+n {
		panic(fmt.Sprintf("winograd: %d×%d vectors of %d elements %+v in %d to %d×%d %+v in %d", in, in, n, from,
			len(src), out, out, to, len(dst)))
	}
	done := t.vector.apply(n, dst, to, src, from)
	if done < n {
		t.generic(n-done, dst[done:], to, src[done:], from)
	}
}

// generic is Apply in portable Go.
func (t *Transform) generic(n int, dst []float32, to Square, src []float32, from Square) {
	var d, sums [4]float32
	for e := range n {
		for i, row := range t.matrix {
			for j := range len(row) {
				for k := range len(row) {
					d[k] = src[k*from.Row+j*from.Col+e]
				}
				sums[j] = combine(row, &d)
			}
			for j, row := range t.matrix {
				dst[i*to.Row+j*to.Col+e] = combine(row, &sums)
			}
		}
	}
}

// combine adds the terms that the row names, the first positive one first, the others in order.
func combine(row []float32, terms *[4]float32) float32 {
	first := 0
	for row[first] <= 0 {
		first++
	}
	sum := float32(row[first] * terms[first])
	for k, f := range row {
		if k != first && f != 0 {
			sum += float32(f * terms[k])
		}
	}
	return sum
}
