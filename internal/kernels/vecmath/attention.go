// SPDX-License-Identifier: Apache-2.0

package vecmath

import (
	"fmt"
	"math"
)

// Log2E is 1/ln 2: e^x = 2^(x·Log2E).
const Log2E = log2e

// power2Poly is 2^f for 0 ≤ f < 1, to 1.5e-7, with 1 at 0: the polynomial whose largest relative error is smallest, the
// coefficient of the highest power first.
var power2Poly = [...]float32{0.0018671300495043397, 0.009017030708491802, 0.05579991266131401, 0.24016444385051727,
	0.6931512951850891, 1}

// softmaxStep is the number of rows whose largest elements are found before their exponentials are computed: one row's
// latency is hidden behind the others, and they stay in the first-level cache.
const softmaxStep = 12

// SoftmaxRows is the step of a softmax over n more columns of rows (Milakov & Gimelshein, "Online normalizer
// calculation for softmax", 2018), to base 2. Element (i, j) of s is s[i·stride + j]; the number of rows is len(most).
// It sets
//
//	most[i] = max(most[i], scale·s[i,j] for all j)    s[i,j] = 2^(scale·s[i,j] − most[i])
//	factor[i] = 2^(most[i] before − most[i])          sum[i] = sum[i]·factor[i] + Σ s[i,j]
//
// where a row of nothing but −∞ becomes 0, and a NaN makes its row's sum NaN. A row's sum is taken in float32, with 16
// accumulators. n is a multiple of 16 and scale above 0; pad with −∞. It panics if n is not, or a slice too short.
func SoftmaxRows(s []float32, n, stride int, most []float32, sum []float64, factor []float32, scale float32) {
	rows := len(most)
	checkRows(rows, n, stride, len(s), len(sum), len(factor))
	if rows == 0 || n == 0 {
		for i := range rows {
			factor[i] = 1
		}
		return
	}
	if vectors() {
		for i := 0; i < rows; i += softmaxStep {
			m := min(softmaxStep, rows-i)
			maxRowsVector(m, n, &s[i*stride], stride, &most[i], &factor[i], scale)
			expRowsVector(m, n, &s[i*stride], stride, &most[i], &factor[i], &sum[i], scale)
		}
		return
	}
	for i := range rows {
		row := s[i*stride:][:n]
		largest := negInf
		for _, x := range row {
			if x > largest {
				largest = x
			}
		}
		before := most[i]
		most[i] = max(before, float32(largest*scale))
		shift := most[i]
		if shift == negInf {
			shift = 0
		}
		factor[i] = power2(before - shift)
		var sums [lanes]float32
		for j, x := range row {
			row[j] = power2(float32(x*scale) - shift)
			sums[j%lanes] += row[j]
		}
		sum[i] = sum[i]*float64(factor[i]) + float64(folded(sums))
	}
}

// ScoreRows sets, for matrices of len(shift) rows with element (i, j) at i·stride + j, and j < n,
//
//	s[i,j] = 2^(base·s[i,j] − shift[i])    d[i,j] = s[i,j]·(scale·d[i,j] − scale·delta[i])
//
// as the gradient of attention needs it of products and gradients of probabilities. n is a multiple of 16. It panics if
// n is not, or a slice too short.
func ScoreRows(s, d []float32, n, stride int, shift, delta []float32, base, scale float32) {
	rows := len(shift)
	checkRows(rows, n, stride, min(len(s), len(d)), len(delta))
	if rows == 0 || n == 0 {
		return
	}
	if vectors() {
		scoreRowsVector(rows, n, &s[0], &d[0], stride, &shift[0], &delta[0], base, scale)
		return
	}
	for i := range rows {
		p, g := s[i*stride:][:n], d[i*stride:][:n]
		for j, x := range p {
			p[j] = power2(float32(x*base) - shift[i])
			g[j] = p[j] * (float32(g[j]*scale) - float32(delta[i]*scale))
		}
	}
}

// ScaleRows sets x[i,j] = x[i,j]·factor[i], with element (i, j) at i·stride + j, j < n. It panics if x is too short.
func ScaleRows(x []float32, n, stride int, factor []float32) {
	rows := len(factor)
	if rows == 0 || n == 0 {
		return
	}
	if n%lanes == 0 && vectors() {
		checkRows(rows, n, stride, len(x))
		scaleRowsVector(rows, n, &x[0], stride, &factor[0])
		return
	}
	for i, f := range factor {
		Scale(x[i*stride:][:n], x[i*stride:][:n], f, false)
	}
}

// DotRows sets sum[i] = Σ x[i,j]·y[i,j], summed in float64 as [Dot] does, with element (i, j) of x at i·xstride + j, of
// y at i·ystride + j, and j < n. It panics if a slice is too short.
func DotRows(sum []float32, n int, x []float32, xstride int, y []float32, ystride int) {
	rows := len(sum)
	if rows > 0 && n > 0 && n%lanes == 0 && vectors() {
		checkRows(rows, n, xstride, len(x))
		checkRows(rows, n, ystride, len(y))
		dotRowsVector(rows, n, &x[0], xstride, &y[0], ystride, &sum[0])
		return
	}
	for i := range sum {
		sum[i] = float32(Dot(x[i*xstride:][:n], y[i*ystride:][:n]))
	}
}

// HideRows sets s[i,j] = −∞ where seen + i·grow ≤ j < n, for rows of n elements with element (i, j) at i·stride + j. n
// is a multiple of 16. It panics if n is not, or s too short.
func HideRows(s []float32, rows, n, stride, seen, grow int) {
	checkRows(rows, n, stride, len(s))
	if rows <= 0 || n == 0 {
		return
	}
	if vectors() {
		hideRowsVector(rows, n, &s[0], stride, seen, grow)
		return
	}
	for i := range rows {
		for j := max(0, seen+i*grow); j < n; j++ {
			s[i*stride+j] = negInf
		}
	}
}

// checkRows panics unless matrices of that size lie within their slices, and the others have an element for each row.
func checkRows(rows, n, stride, length int, others ...int) {
	if n%lanes != 0 || stride < 0 || rows > 0 && n > 0 && (rows-1)*stride+n > length {
		panic(fmt.Sprintf("vecmath: %d rows of %d elements, %d apart, of %d: want a multiple of %d of each", rows, n,
			stride, length, lanes))
	}
	for _, k := range others {
		if k < rows {
			panic(fmt.Sprintf("vecmath: an operand has %d elements: want one for each of %d rows", k, rows))
		}
	}
}

// folded adds lane i and lane i+8, then i+4, i+2 and i+1.
func folded(x [lanes]float32) float32 {
	for half := lanes / 2; half > 0; half /= 2 {
		for i := range half {
			x[i] += x[i+half]
		}
	}
	return x[0]
}

// power2 returns 2^x.
func power2(x float32) float32 {
	switch {
	case x != x:
		return x
	case x < -150: // 2^-150 rounds to 0
		return 0
	case x > 129: // 2^129 overflows
		x = 129
	}
	n := float32(math.Floor(float64(x)))
	x -= n
	y := power2Poly[0]
	for _, c := range power2Poly[1:] {
		y = float32(y*x) + c
	}
	return scaled(y, int32(n))
}
