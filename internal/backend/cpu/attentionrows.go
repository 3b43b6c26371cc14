// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

// softmaxStep is the step of a softmax over n more columns of some rows; see [vecmath.SoftmaxRows].
func softmaxStep[T float](s []T, n, stride int, most []T, sum []float64, factor []T, scale T) {
	if single[T]() {
		vecmath.SoftmaxRows(cast[float32](s), n, stride, cast[float32](most), sum, cast[float32](factor),
			float32(scale))
		return
	}
	for i, before := range most {
		row := s[i*stride:][:n]
		most[i] = max(before, largest(row)*scale)
		shift := most[i]
		if float64(shift) == negInf {
			shift = 0
		}
		factor[i] = T(math.Exp2(float64(before - shift)))
		sum[i] *= float64(factor[i])
		for j, x := range row {
			row[j] = T(math.Exp2(float64(x*scale - shift)))
			sum[i] += float64(row[j])
		}
	}
}

// scoreRows turns products into probabilities and their gradients into those of the products; see [vecmath.ScoreRows].
func scoreRows[T float](s, d []T, n, stride int, shift, delta []T, base, scale T) {
	if single[T]() {
		vecmath.ScoreRows(cast[float32](s), cast[float32](d), n, stride, cast[float32](shift), cast[float32](delta),
			float32(base), float32(scale))
		return
	}
	for i := range shift {
		p, g := s[i*stride:][:n], d[i*stride:][:n]
		for j, x := range p {
			p[j] = T(math.Exp2(float64(x*base - shift[i])))
			g[j] = p[j] * (g[j] - delta[i]) * scale
		}
	}
}

// scaleRows multiplies rows of n elements by a factor each.
func scaleRows[T float](x []T, n, stride int, factor []T) {
	if single[T]() {
		vecmath.ScaleRows(cast[float32](x), n, stride, cast[float32](factor))
		return
	}
	for i, f := range factor {
		row := x[i*stride:][:n]
		scaleRow(row, row, f, false)
	}
}

// dotRows sets sum[i] to the inner product, in float64, of rows i of x and y.
func dotRows[T float](sum []T, n int, x []T, xstride int, y []T, ystride int) {
	if single[T]() {
		vecmath.DotRows(cast[float32](sum), n, cast[float32](x), xstride, cast[float32](y), ystride)
		return
	}
	for i := range sum {
		sum[i] = T(dot(x[i*xstride:][:n], y[i*ystride:][:n]))
	}
}

// hideRows sets what row i of n columns has from column seen + i·grow on to −∞.
func hideRows[T float](s []T, rows, n, stride, seen, grow int) {
	if single[T]() {
		vecmath.HideRows(cast[float32](s), rows, n, stride, seen, grow)
		return
	}
	for i := range rows {
		if from := max(0, seen+i*grow); from < n {
			fill(s[i*stride+from:][:n-from], T(negInf))
		}
	}
}
