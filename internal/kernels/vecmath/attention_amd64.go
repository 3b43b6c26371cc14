// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package vecmath

import "github.com/lockstep-ml/lockstep/internal/kernels"

// maxRowsVector is the first half of SoftmaxRows: most and factor, under a variant with vectors.
func maxRowsVector(rows, n int, s *float32, stride int, most, factor *float32, scale float32) {
	if kernels.Vectors() == kernels.AVX512 {
		maxRowsAVX512(rows, n, s, stride, most, factor, scale)
		return
	}
	maxRowsAVX2(rows, n, s, stride, most, factor, scale)
}

// expRowsVector is the second half.
func expRowsVector(rows, n int, s *float32, stride int, most, factor *float32, sum *float64, scale float32) {
	if kernels.Vectors() == kernels.AVX512 {
		expRowsAVX512(rows, n, s, stride, most, factor, sum, scale)
		return
	}
	expRowsAVX2(rows, n, s, stride, most, factor, sum, scale)
}

// scoreRowsVector is ScoreRows.
func scoreRowsVector(rows, n int, s, d *float32, stride int, shift, delta *float32, base, scale float32) {
	if kernels.Vectors() == kernels.AVX512 {
		scoreRowsAVX512(rows, n, s, d, stride, shift, delta, base, scale)
		return
	}
	scoreRowsAVX2(rows, n, s, d, stride, shift, delta, base, scale)
}

// scaleRowsVector is ScaleRows for rows of whole blocks.
func scaleRowsVector(rows, n int, x *float32, stride int, factor *float32) {
	if kernels.Vectors() == kernels.AVX512 {
		scaleRowsAVX512(rows, n, x, stride, factor)
		return
	}
	scaleRowsAVX2(rows, n, x, stride, factor)
}

// dotRowsVector is DotRows for rows of whole blocks.
func dotRowsVector(rows, n int, x *float32, xstride int, y *float32, ystride int, sum *float32) {
	if kernels.Vectors() == kernels.AVX512 {
		dotRowsAVX512(rows, n, x, xstride, y, ystride, sum)
		return
	}
	dotRowsAVX2(rows, n, x, xstride, y, ystride, sum)
}

// hideRowsVector is HideRows.
func hideRowsVector(rows, n int, s *float32, stride, seen, grow int) {
	if kernels.Vectors() == kernels.AVX512 {
		hideRowsAVX512(rows, n, s, stride, seen, grow)
		return
	}
	hideRowsAVX2(rows, n, s, stride, seen, grow)
}
