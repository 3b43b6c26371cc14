package vecmath

import "math"

// The polynomials and the reduction of the argument are those of Cephes' expf and tanhf (S. L. Moshier, Methods and Programs for Mathematical Functions,
// Ellis Horwood, 1989).
const (
	expHigh = 89   // e^89 overflows
	expLow  = -104 // e^-104 is less than half of the smallest subnormal
	log2e   = 1.4426950408889634
	ln2High = 0.693359375 // 9 bits, so that its product with an exponent is exact
	ln2Low  = -2.12194440e-4

	tanhSmall = 0.625 // below, 1 - 2/(e^2x+1) loses digits
)

// expGeneric is Exp in portable Go, and the oracle of the others.
func expGeneric(dst, src []float32, shift float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = exp(x - shift)
	}
}

// exp returns e^x. Every product is converted to its own type, which keeps compilers from fusing it with an addition.
func exp(x float32) float32 {
	if x != x {
		return x
	}
	x = max(min(x, expHigh), expLow)
	n := float32(math.RoundToEven(float64(float32(x * log2e))))
	x -= float32(n * ln2High)
	x -= float32(n * ln2Low)
	y := float32(1.9875691500e-4)
	y = float32(y*x) + 1.3981999507e-3
	y = float32(y*x) + 8.3334519073e-3
	y = float32(y*x) + 4.1665795894e-2
	y = float32(y*x) + 1.6666665459e-1
	y = float32(y*x) + 5.0000001201e-1
	y = float32(y*float32(x*x)) + x + 1
	half := int32(n) >> 1 // 2ⁿ in two steps: it may exceed the range of float32 at both ends
	return y * power(half) * power(int32(n)-half)
}

// power returns 2ⁿ for |n| < 127.
func power(n int32) float32 { return math.Float32frombits(uint32(n+127) << 23) }

// tanhGeneric is Tanh in portable Go, and the oracle of the others.
func tanhGeneric(dst, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = tanh(x)
	}
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
