// SPDX-License-Identifier: Apache-2.0

package rng

import "math"

// Normal32At returns the standard normal number of one element in float32.
//
// Elements 4j … 4j+3 come from block j by the transform of Box and Muller (1958), two at a time: lanes 0 and 1 give the
// radius and angle of elements 4j and 4j+1, lanes 2 and 3 those of 4j+2 and 4j+3; the even element is the cosine's. The
// largest magnitude is √(−2 ln 2⁻³³) ≈ 6.76.
func Normal32At(key, position, element uint64) float32 {
	b := At(key, position, element/4)
	lane := element % 4
	even, odd := normals32(b[lane&^1], b[lane|1])
	if lane%2 == 0 {
		return even
	}
	return odd
}

// Normal64At returns the standard normal number of one element in float64: elements 2j and 2j+1 come from block j,
// whose first 64 bits are the radius and whose last 64 bits the angle, with 53 bits used of each. The largest magnitude
// is √(−2 ln 2⁻⁵⁴) ≈ 8.65.
func Normal64At(key, position, element uint64) float64 {
	even, odd := normals64(At(key, position, element/2))
	if element%2 == 0 {
		return even
	}
	return odd
}

// FillNormal32 sets dst[i] to Normal32At(key, position, first+i).
func FillNormal32(dst []float32, key, position, first uint64) {
	var bits [piece]uint32
	for len(dst) > 0 {
		if first%4 != 0 || len(dst) < 4 { // part of a block
			dst[0] = Normal32At(key, position, first)
			dst, first = dst[1:], first+1
			continue
		}
		n := min(piece, len(dst)&^3)
		FillUint32(bits[:n], key, position, first)
		for i := 0; i < n; i += 2 {
			dst[i], dst[i+1] = normals32(bits[i], bits[i+1])
		}
		dst, first = dst[n:], first+uint64(n)
	}
}

// FillNormal64 sets dst[i] to Normal64At(key, position, first+i).
func FillNormal64(dst []float64, key, position, first uint64) {
	for i := 0; i < len(dst); {
		element := first + uint64(i)
		even, odd := normals64(At(key, position, element/2))
		if element%2 == 0 {
			dst[i] = even
			i++
		}
		if i < len(dst) {
			dst[i] = odd
			i++
		}
	}
}

func normals32(radius, angle uint32) (even, odd float32) {
	u := (float64(radius) + 0.5) * 0x1p-32 // in (0, 1), exact
	r := math.Sqrt(-2 * logUnit(u))
	sin, cos := sincosTurn(float64(angle) * 0x1p-32)
	return float32(r * cos), float32(r * sin)
}

func normals64(b Block) (even, odd float64) {
	u := (float64(b.Uint64(0)>>11) + 0.5) * 0x1p-53 // in (0, 1]: the addition rounds to even
	r := math.Sqrt(-2 * logUnit(u))
	sin, cos := sincosTurn(Unit64(b.Uint64(1)))
	return r * cos, r * sin
}

// logUnit is the natural logarithm of u in (0, 1], to within a few units in the last place. u = m·2ᵉ with m in [√½,
// √2); then with s = (m−1)/(m+1), ln m = 2·artanh(s) = 2s(1 + s²/3 + s⁴/5 + …), of which the terms to s²⁰ suffice since
// s² < 0.0295.
func logUnit(u float64) float64 {
	m, e := math.Frexp(u)
	if m < math.Sqrt2/2 {
		m, e = m*2, e-1
	}
	s := (m - 1) / (m + 1)
	z := float64(s * s)
	series := float64(z * horner(z, &artanhSeries))
	return float64(float64(e)*math.Ln2) + float64(2*s*(1+series))
}

// sincosTurn returns the sine and cosine of 2πt for t in [0, 1). The reduction to an eighth of a turn is exact, and the
// Taylor series are summed to the last place.
func sincosTurn(t float64) (sin, cos float64) {
	quadrant := math.Floor(t*4 + 0.5)     // nearest quarter turn
	x := (t - quadrant/4) * (2 * math.Pi) // in [−π/4, π/4]
	z := float64(x * x)
	s := float64(x * (1 + float64(z*horner(z, &sinSeries))))
	c := 1 + float64(z*horner(z, &cosSeries))
	switch int(quadrant) % 4 {
	case 0:
		return s, c
	case 1:
		return c, -s
	case 2:
		return -s, -c
	default:
		return -c, s
	}
}

// Coefficients from the highest power of z down: artanh(s)/s, sin(x)/x and cos(x) as 1 + z·series(z), with z the square
// of the argument.
var (
	artanhSeries = [10]float64{1. / 21, 1. / 19, 1. / 17, 1. / 15, 1. / 13, 1. / 11, 1. / 9, 1. / 7, 1. / 5, 1. / 3}
	sinSeries    = [10]float64{0, 0, 1. / 355687428096000, -1. / 1307674368000, 1. / 6227020800, -1. / 39916800,
		1. / 362880, -1. / 5040, 1. / 120, -1. / 6}
	cosSeries = [10]float64{0, -1. / 6402373705728000, 1. / 20922789888000, -1. / 87178291200, 1. / 479001600,
		-1. / 3628800, 1. / 40320, -1. / 720, 1. / 24, -1. / 2}
)

// horner evaluates a polynomial of z. Every product is rounded by a conversion, so that no compiler fuses it with the
// addition.
func horner(z float64, coefficients *[10]float64) float64 {
	var p float64
	for _, c := range coefficients {
		p = float64(p*z) + c
	}
	return p
}
