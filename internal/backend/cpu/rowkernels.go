// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

// The inner loops of the row kernels over contiguous elements: by package vecmath in float32, by plain loops in
// float64.

// single reports whether T is float32. It is a constant wherever T is known.
func single[T float]() bool { return unsafe.Sizeof(*new(T)) == 4 }

// cast is the same slice under the name of its own element type, for a generic function that has looked at the size.
func cast[D, S any](s []S) []D {
	return unsafe.Slice((*D)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}

var negInf = math.Inf(-1)

// largest is the largest element; a NaN does not count, and of none it is −∞. What uses it makes the whole row NaN by
// the sum that follows.
func largest[T float](x []T) T {
	if single[T]() {
		return T(vecmath.Max(cast[float32](x)))
	}
	most := T(negInf)
	for _, v := range x {
		if v > most {
			most = v
		}
	}
	return most
}

// sumOf is the sum in float64, with sixteen accumulators.
func sumOf[T float](x []T) float64 {
	if single[T]() {
		return vecmath.Sum(cast[float32](x))
	}
	var acc [sumLanes]float64
	addLanes(&acc, x, len(x), 1)
	return total(&acc)
}

// dot is the inner product in float64.
func dot[T float](x, y []T) float64 {
	if single[T]() {
		return vecmath.Dot(cast[float32](x), cast[float32](y))
	}
	var a, b, c, d float64
	y = y[:len(x)]
	i := 0
	for ; i+4 <= len(x); i += 4 {
		u, v := x[i:i+4:i+4], y[i:i+4:i+4]
		a += float64(float64(u[0]) * float64(v[0]))
		b += float64(float64(u[1]) * float64(v[1]))
		c += float64(float64(u[2]) * float64(v[2]))
		d += float64(float64(u[3]) * float64(v[3]))
	}
	for ; i < len(x); i++ {
		a += float64(float64(x[i]) * float64(y[i]))
	}
	return (a + b) + (c + d)
}

// rowDot is the inner product of two rows, to the precision of T.
func rowDot[T float](x, y []T) float64 {
	if single[T]() {
		return vecmath.RowDot(cast[float32](x), cast[float32](y))
	}
	return dot(x, y)
}

// rowSquares is the sum of a row's squares, to the precision of T.
func rowSquares[T float](x []T) float64 {
	if single[T]() {
		return vecmath.RowSquares(cast[float32](x))
	}
	return dot(x, x)
}

// sumSquares is dot(x, x).
func sumSquares[T float](x []T) float64 { return dot(x, x) }

// meanAndVariance are those of a row, to the precision of T: float64 in one pass, from the sums of the distances to its
// first element and of their squares.
func meanAndVariance[T float](x []T) (mean, variance float64) {
	if single[T]() {
		return vecmath.MeanAndVariance(cast[float32](x))
	}
	var k, sum, squares float64
	if len(x) > 0 {
		k = float64(x[0])
	}
	for _, v := range x {
		d := float64(v) - k
		sum += d
		squares += float64(d * d)
	}
	n := float64(len(x))
	return k + sum/n, max(0, (squares-float64(sum*sum)/n)/n)
}

// deviations is Σ(x−m)² in float64.
func deviations[T float](x []T, m float64) float64 {
	if single[T]() {
		return vecmath.Deviations(cast[float32](x), m)
	}
	var a, b float64
	for ; len(x) >= 2; x = x[2:] {
		x0, x1 := float64(x[0])-m, float64(x[1])-m
		a += float64(x0 * x0)
		b += float64(x1 * x1)
	}
	for _, v := range x {
		e := float64(v) - m
		a += float64(e * e)
	}
	return a + b
}

// expRow sets dst[i] = factor·e^(x[i]−m).
func expRow[T float](dst, x []T, m, factor T, nonTemporal bool) {
	if single[T]() {
		vecmath.ExpScaled(cast[float32](dst), cast[float32](x), float32(m), float32(factor), nonTemporal)
		return
	}
	for i, v := range x {
		dst[i] = T(math.Exp(float64(v-m))) * factor
	}
}

// expSumRow sets dst[i] = e^(x[i]−m) and returns the sum in float64.
func expSumRow[T float](dst, x []T, m T) float64 {
	if single[T]() {
		return vecmath.ExpSum(cast[float32](dst), cast[float32](x), float32(m))
	}
	var sum float64
	for i, v := range x {
		e := math.Exp(float64(v - m))
		dst[i] = T(e)
		sum += e
	}
	return sum
}

// scaleExpSumRow is scaleRow of a row of exponentials, expSumRow of the next row in the place of those, and largest
// of the one after that.
func scaleExpSumRow[T float](dst, near, x, next []T, factor, m T, nonTemporal bool) (sum float64, most T) {
	if single[T]() {
		sum, most := vecmath.ScaleExpSum(cast[float32](dst), cast[float32](near), cast[float32](x), cast[float32](next),
			float32(factor), float32(m), nonTemporal)
		return sum, T(most)
	}
	scaleRow(dst, near, factor, nonTemporal)
	return expSumRow(near, x, m), largest(next)
}

// expSum is the sum of e^(x[i]−m).
func expSum[T float](x []T, m T) float64 {
	if single[T]() {
		return vecmath.SumExp(cast[float32](x), float32(m))
	}
	var sum float64
	for _, v := range x {
		sum += math.Exp(float64(v - m))
	}
	return sum
}

// scaleRow sets dst[i] = a·x[i].
func scaleRow[T float](dst, x []T, a T, nonTemporal bool) {
	if single[T]() {
		vecmath.Scale(cast[float32](dst), cast[float32](x), float32(a), nonTemporal)
		return
	}
	for i, v := range x {
		dst[i] = a * v
	}
}

// mulRow sets dst[i] = x[i]·y[i].
func mulRow[T float](dst, x, y []T) {
	if single[T]() {
		vecmath.Mul(cast[float32](dst), cast[float32](x), cast[float32](y))
		return
	}
	for i, v := range x {
		dst[i] = v * y[i]
	}
}

// subRow sets dst[i] = x[i]−c, rounded once.
func subRow[T float](dst, x []T, c float64, nonTemporal bool) {
	if single[T]() {
		vecmath.SubWide(cast[float32](dst), cast[float32](x), c, nonTemporal)
		return
	}
	for i, v := range x {
		dst[i] = T(float64(v) - c)
	}
}

// softmaxGradRow sets dx[i] = y[i]·(dy[i]−dot).
func softmaxGradRow[T float](dx, y, dy []T, dot T, nonTemporal bool) {
	if single[T]() {
		vecmath.SoftmaxGrad(cast[float32](dx), cast[float32](y), cast[float32](dy), float32(dot), nonTemporal)
		return
	}
	for i, v := range y {
		dx[i] = v * (dy[i] - dot)
	}
}

// softmaxGradDotRow is softmaxGradRow of a row and rowDot of the next one.
func softmaxGradDotRow[T float](dx, y, dy, nextY, nextDY []T, dot T, nonTemporal bool) float64 {
	if single[T]() {
		return vecmath.SoftmaxGradDot(cast[float32](dx), cast[float32](y), cast[float32](dy), cast[float32](nextY),
			cast[float32](nextDY), float32(dot), nonTemporal)
	}
	softmaxGradRow(dx, y, dy, dot, nonTemporal)
	return rowDot(nextY, nextDY)
}

// logSoftmaxGradRow sets dx[i] = dy[i] − e^y[i]·sum.
func logSoftmaxGradRow[T float](dx, y, dy []T, sum T, nonTemporal bool) {
	if single[T]() {
		vecmath.LogSoftmaxGrad(cast[float32](dx), cast[float32](y), cast[float32](dy), float32(sum), nonTemporal)
		return
	}
	for i, v := range y {
		dx[i] = dy[i] - T(math.Exp(float64(v)))*sum
	}
}

// normalizeRow sets y[i] = (x[i]−m)·s·w[i] + b[i]; b, or w and b, may be nil.
func normalizeRow[T float](y, x, w, b []T, m, s T, nonTemporal bool) {
	switch {
	case single[T]():
		vecmath.Normalize(cast[float32](y), cast[float32](x), cast[float32](w), cast[float32](b), float32(m),
			float32(s), nonTemporal)
	case b != nil:
		for i, v := range x {
			y[i] = T((v-m)*s*w[i]) + b[i]
		}
	case w != nil:
		for i, v := range x {
			y[i] = (v - m) * s * w[i]
		}
	default:
		for i, v := range x {
			y[i] = (v - m) * s
		}
	}
}

// normalizeMomentsRow is normalizeRow of a row and meanAndVariance of the next one; w and b are not nil.
func normalizeMomentsRow[T float](y, x, w, b, next []T, m, s T, nonTemporal bool) (mean, variance float64) {
	if single[T]() {
		return vecmath.NormalizeMoments(cast[float32](y), cast[float32](x), cast[float32](w), cast[float32](b),
			cast[float32](next), float32(m), float32(s), nonTemporal)
	}
	normalizeRow(y, x, w, b, m, s, nonTemporal)
	return meanAndVariance(next)
}

// normSumsRow is, with d = dy[i]·w[i], the sums of d and of d·(x[i]−m)·s. It adds to the parameters' gradients as
// normParamRow does, unless dw is nil.
func normSumsRow[T float](dw, db, x, dy, w []T, m, s T) (sum, inner float64) {
	if single[T]() {
		return vecmath.NormSums(cast[float32](dw), cast[float32](db), cast[float32](x), cast[float32](dy),
			cast[float32](w), float32(m), float32(s))
	}
	for i, v := range x {
		d := float64(dy[i] * w[i])
		sum += d
		inner += float64(d * float64((v-m)*s))
	}
	if dw != nil {
		normParamRow(dw, db, x, dy, m, s)
	}
	return sum, inner
}

// normGradRow sets dx[i] = f·(dy[i]·w[i] − a − (x[i]−m)·s·b).
func normGradRow[T float](dx, x, dy, w []T, m, s, a, b, f T, nonTemporal bool) {
	if single[T]() {
		vecmath.NormGrad(cast[float32](dx), cast[float32](x), cast[float32](dy), cast[float32](w), float32(m),
			float32(s), float32(a), float32(b), float32(f), nonTemporal)
		return
	}
	for i, v := range x {
		dx[i] = f * (T(dy[i]*w[i]) - a - T((v-m)*s*b))
	}
}

// normGradSumsRow is normGradRow of a row and normSumsRow of the next one; dw and db are not nil.
func normGradSumsRow[T float](dx, x, dy, w, dw, db, nextX, nextDY []T, m, s, a, b, f, nextM, nextS T,
	nonTemporal bool) (sum, inner float64) {
	if single[T]() {
		return vecmath.NormGradSums(cast[float32](dx), cast[float32](x), cast[float32](dy), cast[float32](w),
			cast[float32](dw), cast[float32](db), cast[float32](nextX),
			cast[float32](nextDY), float32(m), float32(s), float32(a), float32(b), float32(f), float32(nextM),
			float32(nextS), nonTemporal)
	}
	normGradRow(dx, x, dy, w, m, s, a, b, f, nonTemporal)
	return normSumsRow(dw, db, nextX, nextDY, w, nextM, nextS)
}

// normParamRow adds dy[i]·(x[i]−m)·s to dw[i], and dy[i] to db[i] unless db is nil.
func normParamRow[T float](dw, db, x, dy []T, m, s T) {
	if single[T]() {
		vecmath.NormParamGrad(cast[float32](dw), cast[float32](db), cast[float32](x), cast[float32](dy), float32(m),
			float32(s))
		return
	}
	for i, v := range x {
		dw[i] += T(dy[i] * T((v-m)*s))
		if db != nil {
			db[i] += dy[i]
		}
	}
}

// addRow adds x[i] to sums[i].
func addRow[T float](sums []float64, x []T) {
	if single[T]() {
		vecmath.AddWide(sums, cast[float32](x))
		return
	}
	for i, v := range x {
		sums[i] += float64(v)
	}
}

// keepRow sets dst[i] = scale·x[i] where the random bits keep element i (see rng.KeepThreshold), else 0.
func keepRow[T float](dst, x []T, bits []uint32, threshold uint32, scale T) {
	if single[T]() {
		vecmath.Keep(cast[float32](dst), cast[float32](x), bits, threshold, float32(scale))
		return
	}
	for i, v := range x {
		v *= scale
		if bits[i]>>8 < threshold {
			v = 0
		}
		dst[i] = v
	}
}

// maskedFill sets dst[i] to the value where mask[i] is 0.
func maskedFill[T float](dst []T, mask []uint8, value T) {
	if single[T]() {
		vecmath.Hide(cast[float32](dst), mask, float32(value))
		return
	}
	for i, m := range mask {
		if m == 0 {
			dst[i] = value
		}
	}
}

// rotateRow sets a[i] = x[i]·cos[i] − y[i]·sin[i]·sign and b[i] = y[i]·cos[i] + x[i]·sin[i]·sign.
func rotateRow[T float](a, b, x, y, cos, sin []T, sign T) {
	if single[T]() {
		vecmath.Rotate(cast[float32](a), cast[float32](b), cast[float32](x), cast[float32](y), cast[float32](cos),
			cast[float32](sin), float32(sign))
		return
	}
	for i, c := range cos {
		u, v, s := x[i], y[i], sin[i]*sign
		a[i], b[i] = T(u*c)-T(v*s), T(v*c)+T(u*s)
	}
}
