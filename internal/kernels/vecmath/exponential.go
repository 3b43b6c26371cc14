// SPDX-License-Identifier: Apache-2.0

package vecmath

import "math"

// The polynomials and the reduction of the argument are those of Cephes' expf and tanhf (S. L. Moshier, Methods and
// Programs for Mathematical Functions, Ellis Horwood, 1989).
const (
	expHigh   = 89   // e^89 overflows
	expLow    = -104 // e^-104 is less than half of the smallest subnormal
	log2e     = 1.4426950408889634
	roundHalf = 0x1.8p23    // adding it rounds to the nearest integer, ties to even
	ln2High   = 0.693359375 // 9 bits, so that its product with an exponent is exact
	ln2Low    = -2.12194440e-4

	tanhSmall = 0.625 // below, 1 - 2/(e^2x+1) loses digits
)

var negInf = float32(math.Inf(-1))

// Exp sets dst[i] = e^(src[i]-shift), with an error below 2 units in the last place of the result for shift 0 (a shift
// adds the rounding of the difference). Results below the smallest subnormal are 0, those beyond the largest float32
// are +Inf, and NaN stays NaN. dst may be src; else they must not overlap. It panics if the lengths differ.
func Exp(dst, src []float32, shift float32) { ExpScaled(dst, src, shift, 1, false) }

// ExpScaled sets dst[i] = factor·e^(src[i]-shift): [Exp], with the rounding of one more product.
func ExpScaled(dst, src []float32, shift, factor float32, nonTemporal bool) {
	checkLengths(len(dst), len(src))
	done := expVector(len(src), first(dst), first(src), shift, factor, nonTemporal || len(dst) >= NonTemporalLength)
	if dst, src = dst[done:], src[done:]; len(src) == 0 {
		return
	}
	if !vectors() {
		for i, x := range src {
			dst[i] = exp(x-shift) * factor
		}
		return
	}
	var rest [lanes]float32 // the rest of a vector is computed on a copy
	copy(rest[:], src)
	expVector(lanes, &rest[0], &rest[0], shift, factor, false)
	copy(dst, rest[:])
}

// ExpSum sets dst[i] = e^(src[i]-shift) and returns the sum of dst.
func ExpSum(dst, src []float32, shift float32) float64 {
	checkLengths(len(dst), len(src))
	var sum accumulators
	done := expSumVector(len(src), first(dst), first(src), &sum[0], shift)
	if dst, src = dst[done:], src[done:]; len(src) > 0 {
		sum.expRest(dst, src, shift)
	}
	return sum.total()
}

// expRest is [ExpSum] of what whole vectors leave, or of everything where there are none.
func (a *accumulators) expRest(dst, src []float32, shift float32) {
	if !vectors() {
		for i, x := range src {
			dst[i] = exp(x - shift)
			a[i%lanes] += float64(dst[i])
		}
		return
	}
	rest := infinities // e^-Inf adds nothing
	copy(rest[:], src)
	expSumVector(lanes, &rest[0], &rest[0], &a[0], shift)
	copy(dst, rest[:])
}

// ScaleExpSum sets dst[i] = factor·near[i], as [Scale] does, then near[i], and returns what [ExpSum] does of src, and
// [Max] of next: so a row of softmax is written while the next one's exponentials are computed and the one after that
// is read.
func ScaleExpSum(dst, near, src, next []float32, factor, shift float32, nonTemporal bool) (total float64,
	most float32) {
	checkLengths(len(dst), len(near), len(src), len(next))
	var sum accumulators
	largest := infinities
	done := scaleExpSumVector(len(dst), first(dst), first(near), first(src), first(next), &sum[0], &largest[0], factor,
		shift, nonTemporal)
	if dst, near, src = dst[done:], near[done:], src[done:]; len(dst) > 0 {
		Scale(dst, near, factor, false)
		sum.expRest(near, src, shift)
	}
	return sum.total(), largestOf(&largest, next[done:])
}

// SumExp returns the sum of e^(src[i]-shift).
func SumExp(src []float32, shift float32) float64 {
	var sum accumulators
	done := sumExpVector(len(src), first(src), &sum[0], shift)
	if src = src[done:]; len(src) > 0 {
		if !vectors() {
			for i, x := range src {
				sum[i%lanes] += float64(exp(x - shift))
			}
			return sum.total()
		}
		rest := infinities
		copy(rest[:], src)
		sumExpVector(lanes, &rest[0], &sum[0], shift)
	}
	return sum.total()
}

var infinities = func() (x [lanes]float32) {
	for i := range x {
		x[i] = negInf
	}
	return x
}()

// LogSoftmaxGrad sets dst[i] = dy[i] - sum·e^y[i]. dst may be y or dy.
func LogSoftmaxGrad(dst, y, dy []float32, sum float32, nonTemporal bool) {
	checkLengths(len(dst), len(y), len(dy))
	done := logSoftmaxGradVector(len(dst), first(dst), first(y), first(dy), sum, nonTemporal)
	if dst, y, dy = dst[done:], y[done:], dy[done:]; len(dst) == 0 {
		return
	}
	if !vectors() {
		for i := range dst {
			dst[i] = dy[i] - float32(sum*exp(y[i]))
		}
		return
	}
	var a, b [lanes]float32
	copy(a[:], y)
	copy(b[:], dy)
	logSoftmaxGradVector(lanes, &a[0], &a[0], &b[0], sum, false)
	copy(dst, a[:])
}

// exp returns e^x. Every product is converted to its own type, which keeps compilers from fusing it with an addition.
func exp(x float32) float32 {
	if x > expHigh { // a NaN stays
		x = expHigh
	} else if x < expLow {
		x = expLow
	}
	n := float32(x*log2e) + roundHalf
	n -= roundHalf
	x -= float32(n * ln2High)
	x -= float32(n * ln2Low)
	y := float32(1.9875691500e-4)
	y = float32(y*x) + 1.3981999507e-3
	y = float32(y*x) + 8.3334519073e-3
	y = float32(y*x) + 4.1665795894e-2
	y = float32(y*x) + 1.6666665459e-1
	y = float32(y*x) + 5.0000001201e-1
	y = float32(y*float32(x*x)) + x + 1
	if n != n {
		return n
	}
	return scaled(y, int32(n))
}

// scaled returns y·2ⁿ, in two steps: 2ⁿ may exceed the range of float32 at both ends.
func scaled(y float32, n int32) float32 {
	half := n >> 1
	return y * power(half) * power(n-half)
}

// power returns 2ⁿ for |n| < 127.
func power(n int32) float32 { return math.Float32frombits(uint32(n+127) << 23) }

// Tanh sets dst[i] = tanh(src[i]), with an error below 3 units in the last place; the sign of zero and NaN are kept.
// dst may be src; else they must not overlap. It panics if the lengths differ.
func Tanh(dst, src []float32) {
	checkLengths(len(dst), len(src))
	done := tanhVector(len(src), first(dst), first(src), len(dst) >= NonTemporalLength)
	if dst, src = dst[done:], src[done:]; len(src) == 0 {
		return
	}
	if !vectors() {
		for i, x := range src {
			dst[i] = tanh(x)
		}
		return
	}
	var rest [lanes]float32
	copy(rest[:], src)
	tanhVector(lanes, &rest[0], &rest[0], false)
	copy(dst, rest[:])
}

// tanh returns the hyperbolic tangent of x.
func tanh(x float32) float32 {
	size := math.Float32frombits(math.Float32bits(x) &^ (1 << 31))
	y := float32(0)
	if size < tanhSmall {
		square := float32(x * x)
		y = -5.70498872745e-3
		y = float32(y*square) + 2.06390887954e-2
		y = float32(y*square) + -5.37397155531e-2
		y = float32(y*square) + 1.33314422036e-1
		y = float32(y*square) + -3.33332819422e-1
		y = float32(float32(y*square)*x) + x
	} else {
		y = 1 - 2/(exp(size+size)+1)
	}
	return math.Float32frombits(math.Float32bits(y) | math.Float32bits(x)&(1<<31))
}
