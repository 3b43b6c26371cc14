// SPDX-License-Identifier: Apache-2.0

package vecmath

import "math"

const (
	// GELU's tanh form (Hendrycks & Gimpel 2016): ½x(1+tanh(u)) = x·σ(2u), 2u = geluA·x + geluB·x³.
	geluA    = 1.59576912160573071175978423973752747390343452465714 // 2√(2/π)
	geluB    = geluA * 0.044715
	geluFlat = 9.5 // beyond, the slope is 0 or 1; e^-u is finite within

	halfRoot2 = 0.70710678118654752440 // √½
	density0  = 0.39894228040143267794 // 1/√(2π)
)

// Sigmoid sets dst[i] = 1/(1+e^-src[i]). dst may be src.
func Sigmoid(dst, src []float32) {
	checkLengths(len(dst), len(src))
	done := sigmoidVector(len(src), first(dst), first(src), len(dst) >= NonTemporalLength)
	if dst, src = dst[done:], src[done:]; len(src) == 0 {
		return
	}
	if !vectors() {
		for i, x := range src {
			dst[i] = 1 / (1 + exp(-x))
		}
		return
	}
	var rest [lanes]float32
	copy(rest[:], src)
	sigmoidVector(lanes, &rest[0], &rest[0], false)
	copy(dst, rest[:])
}

// SiLU sets dst[i] = src[i]·σ(src[i]) (Elfwing et al. 2018). dst may be src.
func SiLU(dst, src []float32) {
	checkLengths(len(dst), len(src))
	done := siluVector(len(src), first(dst), first(src), len(dst) >= NonTemporalLength)
	if dst, src = dst[done:], src[done:]; len(src) == 0 {
		return
	}
	if !vectors() {
		for i, x := range src {
			dst[i] = x / (1 + exp(-x))
		}
		return
	}
	var rest [lanes]float32
	copy(rest[:], src)
	siluVector(lanes, &rest[0], &rest[0], false)
	copy(dst, rest[:])
}

// SiLUGrad sets dst[i] = dy[i] times the derivative of SiLU at x[i]. dst may be x or dy.
func SiLUGrad(dst, x, dy []float32) {
	checkLengths(len(dst), len(x), len(dy))
	done := siluGradVector(len(dst), first(dst), first(x), first(dy), len(dst) >= NonTemporalLength)
	if dst, x, dy = dst[done:], x[done:], dy[done:]; len(dst) == 0 {
		return
	}
	if !vectors() {
		for i, v := range x {
			s := 1 / (1 + exp(-v))
			dst[i] = dy[i] * (s * (float32(v*(1-s)) + 1))
		}
		return
	}
	var a, b [lanes]float32
	copy(a[:], x)
	copy(b[:], dy)
	siluGradVector(lanes, &a[0], &a[0], &b[0], false)
	copy(dst, a[:])
}

// SwiGLU sets dst[i] = gate[i]·σ(gate[i])·up[i] (Shazeer, "GLU Variants Improve Transformer", 2020). dst may be gate or
// up.
func SwiGLU(dst, gate, up []float32) {
	checkLengths(len(dst), len(gate), len(up))
	done := swigluVector(len(dst), first(dst), first(gate), first(up), len(dst) >= NonTemporalLength)
	if dst, gate, up = dst[done:], gate[done:], up[done:]; len(dst) == 0 {
		return
	}
	if !vectors() {
		for i, x := range gate {
			dst[i] = x / (1 + exp(-x)) * up[i]
		}
		return
	}
	var a, b [lanes]float32
	copy(a[:], gate)
	copy(b[:], up)
	swigluVector(lanes, &a[0], &a[0], &b[0], false)
	copy(dst, a[:])
}

// SwiGLUGrad sets dgate and dup to dy times the derivatives of SwiGLU by gate and up. They may be any of gate, up and
// dy.
func SwiGLUGrad(dgate, dup, gate, up, dy []float32) {
	checkLengths(len(dy), len(dgate), len(dup), len(gate), len(up))
	done := swigluGradVector(len(dy), first(dgate), first(dup), first(gate), first(up), first(dy))
	if dgate, dup, gate, up, dy = dgate[done:], dup[done:], gate[done:], up[done:], dy[done:]; len(dy) == 0 {
		return
	}
	if !vectors() {
		for i, x := range gate {
			s, d, u := 1/(1+exp(-x)), dy[i], up[i]
			dgate[i] = d * u * (s * (float32(x*(1-s)) + 1))
			dup[i] = d * float32(s*x)
		}
		return
	}
	var a, b, c [lanes]float32
	copy(a[:], gate)
	copy(b[:], up)
	copy(c[:], dy)
	swigluGradVector(lanes, &a[0], &b[0], &a[0], &b[0], &c[0])
	copy(dgate, a[:])
	copy(dup, b[:])
}

// GELUTanh sets dst[i] to GELU of src[i] in its tanh form. dst may be src.
func GELUTanh(dst, src []float32) {
	checkLengths(len(dst), len(src))
	done := geluTanhVector(len(src), first(dst), first(src), len(dst) >= NonTemporalLength)
	if dst, src = dst[done:], src[done:]; len(src) == 0 {
		return
	}
	if !vectors() {
		for i, x := range src {
			dst[i] = x / (1 + exp(geluArgument(x, x*x)))
		}
		return
	}
	var rest [lanes]float32
	copy(rest[:], src)
	geluTanhVector(lanes, &rest[0], &rest[0], false)
	copy(dst, rest[:])
}

// geluArgument is -x(a + b·square).
func geluArgument(x, square float32) float32 {
	return x * (float32(-geluB*square) - geluA)
}

// GELUTanhGrad sets dst[i] = dy[i] times the derivative of GELU's tanh form at x[i]. dst may be x or dy.
func GELUTanhGrad(dst, x, dy []float32) {
	checkLengths(len(dst), len(x), len(dy))
	done := geluTanhGradVector(len(dst), first(dst), first(x), first(dy), len(dst) >= NonTemporalLength)
	if dst, x, dy = dst[done:], x[done:], dy[done:]; len(dst) == 0 {
		return
	}
	if !vectors() {
		for i, v := range x {
			dst[i] = dy[i] * geluTanhSlope(v)
		}
		return
	}
	var a, b [lanes]float32
	copy(a[:], x)
	copy(b[:], dy)
	geluTanhGradVector(lanes, &a[0], &a[0], &b[0], false)
	copy(dst, a[:])
}

// GELUTanhBoth is GELUTanh(y, x) and GELUTanhGrad(dst, x, dy) at once: y has the same bits, and dst has where |x| ≤ 9.5
// or x is positive; below both are about 0. dst may be x or dy, and y none of the others.
func GELUTanhBoth(y, dst, x, dy []float32) {
	checkLengths(len(dst), len(y), len(x), len(dy))
	done := geluTanhBothVector(len(dst), first(y), first(dst), first(x), first(dy))
	if y, dst, x, dy = y[done:], dst[done:], x[done:], dy[done:]; len(dst) == 0 {
		return
	}
	if !vectors() {
		GELUTanh(y, x)
		GELUTanhGrad(dst, x, dy)
		return
	}
	var a, b, c [lanes]float32
	copy(a[:], x)
	copy(b[:], dy)
	geluTanhBothVector(lanes, &c[0], &a[0], &a[0], &b[0])
	copy(y, c[:])
	copy(dst, a[:])
}

func geluTanhSlope(x float32) float32 {
	if x > geluFlat { // a NaN stays
		x = geluFlat
	} else if x < -geluFlat {
		x = -geluFlat
	}
	square := float32(x * x)
	e := exp(geluArgument(x, square))
	s := 1 / (1 + e) // and 1-s is e·s
	slope := float32(3*geluB*square) + geluA
	return float32(slope*float32(x*float32(float32(e*s)*s))) + s
}

// GELU sets dst[i] = src[i]·Φ(src[i]), by the error function. dst may be src.
func GELU(dst, src []float32) {
	checkLengths(len(dst), len(src))
	done := geluVector(len(src), first(dst), first(src), len(dst) >= NonTemporalLength)
	if dst, src = dst[done:], src[done:]; len(src) == 0 {
		return
	}
	if !vectors() {
		for i, x := range src {
			cdf, _ := normalCDF(x)
			dst[i] = x * cdf
		}
		return
	}
	var rest [lanes]float32
	copy(rest[:], src)
	geluVector(lanes, &rest[0], &rest[0], false)
	copy(dst, rest[:])
}

// GELUGrad sets dst[i] = dy[i] times the derivative of GELU at x[i]. dst may be x or dy.
func GELUGrad(dst, x, dy []float32) {
	checkLengths(len(dst), len(x), len(dy))
	done := geluGradVector(len(dst), first(dst), first(x), first(dy), len(dst) >= NonTemporalLength)
	if dst, x, dy = dst[done:], x[done:], dy[done:]; len(dst) == 0 {
		return
	}
	if !vectors() {
		for i, v := range x {
			cdf, e := normalCDF(v)
			dst[i] = dy[i] * (float32(v*float32(e*density0)) + cdf)
		}
		return
	}
	var a, b [lanes]float32
	copy(a[:], x)
	copy(b[:], dy)
	geluGradVector(lanes, &a[0], &a[0], &b[0], false)
	copy(dst, a[:])
}

// normalExp returns e^(−x²/2), as a power of 2.
func normalExp(x float32) float32 {
	y := float32(-0.5*x) * x
	if y < expLow { // a NaN stays
		y = expLow
	}
	w := float32(y * log2e)
	n := w + roundHalf
	n -= roundHalf
	w -= n
	if n != n {
		return n
	}
	p := float32(powerPoly[0])
	for _, c := range powerPoly[1:] {
		p = float32(p*w) + c
	}
	return scaled(p, int32(n))
}

// powerPoly is 2^r for |r| ≤ ½, to 1e-7: a polynomial through 1 at 0 whose largest relative error is smallest.
var powerPoly = [6]float32{0.001326472032815218, 0.009671512991189957, 0.05550733581185341, 0.24022242426872253,
	0.6931470036506653, 1}

// normalCDF gives Φ(x) = erfc(−x/√2)/2 and e^(−x²/2). t = 2/(2+|x|/√2) maps the half line to (0, 1], where
// erfc(z)·e^(z²) = t times a polynomial of degree 10 in 2t−1, to 2e-8 (a Chebyshev series, cut off).
func normalCDF(x float32) (cdf, e float32) {
	e = normalExp(x)
	size := math.Float32frombits(math.Float32bits(x) &^ (1 << 31))
	t := 2 / (float32(size*halfRoot2) + 2)
	s := t + t - 1
	p := float32(erfcPoly[0])
	for _, c := range erfcPoly[1:] {
		p = float32(p*s) + c
	}
	tail := p * t * e * 0.5
	if math.Float32bits(x)>>31 == 1 {
		return tail, e
	}
	return 1 - tail, e
}

var erfcPoly = [11]float32{4.2161197231393996e-05, -3.6601876943933578e-05, -0.00029938271215598886,
	0.00043067048843442703, 0.0015291571608313959,
	-0.0032434519180944226, -0.010751626186604314, 0.018221669428383245, 0.13973573352193064, 0.34358031871096567,
	0.51079135691594502}
