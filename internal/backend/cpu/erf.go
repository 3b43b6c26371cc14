// SPDX-License-Identifier: Apache-2.0

package cpu

import "math"

// The error function for float32 kernels. It is computed in float64, where short polynomials already have more digits
// than float32 keeps, and the caller rounds once: errors stay near half a unit in the last place, and there are no
// cancellations to guard against.

const (
	sqrtPi   = 1.77245385090551602729816748334114518279754945612238712821380779
	expSteps = 32       // table entries per power of two
	expShift = 0x1.8p52 // adding it leaves the nearest integer in the low bits of the significand
	expMax   = 709.     // beyond the borders float64 overflows
	expMin   = -708.    //
	expStep  = math.Ln2 / expSteps
	expC2    = expStep * expStep / 2
	expC3    = expStep * expStep * expStep / 6
)

// expTable[i] holds the bits of 2^(i/32) less i<<47, so that adding k<<47 for k = 32n+i gives those of 2ⁿ·2^(i/32).
var expTable = func() (t [expSteps]uint64) {
	for i := range t {
		t[i] = math.Float64bits(math.Exp2(float64(i)/expSteps)) - uint64(i)<<47
	}
	return t
}()

// exp is eˣ with a relative error below 1e-9; outside [−708, 709] the value at the border. x = (k+r)·ln2/32 with |r| ≤
// ½: a table gives 2^(k/32), three terms of Taylor's series the rest. After Tang, "Table-driven implementation of the
// exponential function", 1989.
func exp(x float64) float64 {
	if x > expMax {
		x = expMax
	}
	if x < expMin {
		x = expMin
	}
	z := x * (expSteps / math.Ln2)
	k := z + expShift
	r := z - (k - expShift)
	n := math.Float64bits(k)
	return math.Float64frombits(expTable[n%expSteps]+n<<47) * (1 + r*(expStep+r*(expC2+r*expC3)))
}

// erfcScaled is erfc(x)·exp(x²) for x ≥ 0 with a relative error below 2e-8: t = 2/(2+x) maps the half line to (0, 1],
// and the rest is smooth enough for a polynomial of degree 10 in 2t−1 (the Chebyshev series of erfcScaled(x)/t, cut
// off).
func erfcScaled(x float64) float64 {
	t := 2 / (2 + x)
	s := 2*t - 1
	p := 0.51079135691594502 + s*(0.34358031871096567+
		s*(0.13973573352193064+s*(0.018221669428383245+s*(-0.010751626186604314+
			s*(-0.0032434519180944226+s*(0.0015291571608313959+s*(0.00043067048843442703+s*(-0.00029938271215598886+
				s*(-3.6601876943933578e-05+s*4.2161197231393996e-05)))))))))
	return t * p
}

// erf is accurate to float32; near zero by its series.
func erf(x float64) float64 {
	z := x * x
	switch {
	case z < 0.25:
		return x * (2 / sqrtPi) * (1 + z*(-1./3+z*(1./10+z*(-1./42+z*(1./216+z*(-1./1320+z*(1./9360)))))))
	case x > 0:
		return 1 - erfcScaled(x)*exp(-z)
	default:
		return erfcScaled(-x)*exp(-z) - 1
	}
}
