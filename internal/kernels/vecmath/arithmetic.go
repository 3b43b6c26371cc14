// SPDX-License-Identifier: Apache-2.0

package vecmath

// Every product below is converted to float32, which keeps compilers from fusing it with an addition: all variants give
// the same bits.

// Add sets dst[i] = x[i] + y[i]. dst may be x or y, here and below; else operands must not overlap. Lengths that differ
// are a panic.
func Add(dst, x, y []float32) {
	checkLengths(len(dst), len(x), len(y))
	done := addVector(len(dst), first(dst), first(x), first(y), len(dst) >= NonTemporalLength)
	for i := done; i < len(dst); i++ {
		dst[i] = x[i] + y[i]
	}
}

// Sub sets dst[i] = x[i] - y[i].
func Sub(dst, x, y []float32) {
	checkLengths(len(dst), len(x), len(y))
	done := subVector(len(dst), first(dst), first(x), first(y), len(dst) >= NonTemporalLength)
	for i := done; i < len(dst); i++ {
		dst[i] = x[i] - y[i]
	}
}

// Mul sets dst[i] = x[i]·y[i].
func Mul(dst, x, y []float32) {
	checkLengths(len(dst), len(x), len(y))
	done := mulVector(len(dst), first(dst), first(x), first(y), len(dst) >= NonTemporalLength)
	for i := done; i < len(dst); i++ {
		dst[i] = x[i] * y[i]
	}
}

// Div sets dst[i] = x[i]/y[i].
func Div(dst, x, y []float32) {
	checkLengths(len(dst), len(x), len(y))
	done := divVector(len(dst), first(dst), first(x), first(y), len(dst) >= NonTemporalLength)
	for i := done; i < len(dst); i++ {
		dst[i] = x[i] / y[i]
	}
}

// Axpby sets dst[i] = a·x[i] + b·y[i].
func Axpby(dst []float32, a float32, x []float32, b float32, y []float32) {
	checkLengths(len(dst), len(x), len(y))
	done := axpbyVector(len(dst), first(dst), first(x), first(y), a, b, len(dst) >= NonTemporalLength)
	for i := done; i < len(dst); i++ {
		dst[i] = float32(a*x[i]) + float32(b*y[i])
	}
}

// Affine sets dst[i] = a·x[i] + b.
func Affine(dst, x []float32, a, b float32) {
	checkLengths(len(dst), len(x))
	done := affineVector(len(dst), first(dst), first(x), a, b, len(dst) >= NonTemporalLength)
	for i := done; i < len(dst); i++ {
		dst[i] = float32(a*x[i]) + b
	}
}

// Scale sets dst[i] = a·x[i].
func Scale(dst, x []float32, a float32, nonTemporal bool) {
	checkLengths(len(dst), len(x))
	done := scaleVector(len(dst), first(dst), first(x), a, nonTemporal)
	for i := done; i < len(dst); i++ {
		dst[i] = a * x[i]
	}
}

// ReLU sets dst[i] = x[i], or 0 where x[i] < 0. NaN stays NaN.
func ReLU(dst, x []float32) {
	checkLengths(len(dst), len(x))
	done := reluVector(len(dst), first(dst), first(x), len(dst) >= NonTemporalLength)
	for i := done; i < len(dst); i++ {
		v := x[i]
		if v < 0 {
			v = 0
		}
		dst[i] = v
	}
}

// ReLUGrad sets dst[i] = dy[i] where y[i] > 0, else 0.
func ReLUGrad(dst, y, dy []float32) {
	checkLengths(len(dst), len(y), len(dy))
	done := reluGradVector(len(dst), first(dst), first(y), first(dy), len(dst) >= NonTemporalLength)
	for i := done; i < len(dst); i++ {
		var v float32
		if y[i] > 0 {
			v = dy[i]
		}
		dst[i] = v
	}
}

// SoftmaxGrad sets dst[i] = y[i]·(dy[i]-dot).
func SoftmaxGrad(dst, y, dy []float32, dot float32, nonTemporal bool) {
	checkLengths(len(dst), len(y), len(dy))
	done := softmaxGradVector(len(dst), first(dst), first(y), first(dy), dot, nonTemporal)
	for i := done; i < len(dst); i++ {
		dst[i] = y[i] * (dy[i] - dot)
	}
}

// SoftmaxGradDot is [SoftmaxGrad] of a row and returns [RowDot] of the next one: so a row is written while the next one
// is read.
func SoftmaxGradDot(dst, y, dy, nextY, nextDY []float32, dot float32, nonTemporal bool) float64 {
	checkLengths(len(dst), len(y), len(dy), len(nextY), len(nextDY))
	var a accumulators
	done := softmaxGradDotVector(len(dst), first(dst), first(y), first(dy), first(nextY), first(nextDY), &a[0], dot,
		nonTemporal)
	for i := done; i < len(dst); i++ {
		dst[i] = y[i] * (dy[i] - dot)
	}
	a.fours(done, len(dst), func(i int) float32 { return nextY[i] * nextDY[i] })
	return a.total()
}

// SubWide sets dst[i] = x[i] - c, computed in float64 and rounded once.
func SubWide(dst, x []float32, c float64, nonTemporal bool) {
	checkLengths(len(dst), len(x))
	done := subWideVector(len(dst), first(dst), first(x), c, nonTemporal)
	for i := done; i < len(dst); i++ {
		dst[i] = float32(float64(x[i]) - c)
	}
}

// Rotate turns the pairs (x[i], y[i]) by angles: a[i] = x[i]·cos[i] - y[i]·sin[i] and b[i] = y[i]·cos[i] + x[i]·sin[i],
// with sin multiplied by sign (1, or -1 to turn back). a and b may be x and y.
func Rotate(a, b, x, y, cos, sin []float32, sign float32) {
	checkLengths(len(a), len(b), len(x), len(y), len(cos), len(sin))
	done := rotateVector(len(a), first(a), first(b), first(x), first(y), first(cos), first(sin), sign)
	for i := done; i < len(a); i++ {
		u, v, c, s := x[i], y[i], cos[i], sign*sin[i]
		a[i], b[i] = float32(u*c)-float32(v*s), float32(v*c)+float32(u*s)
	}
}
