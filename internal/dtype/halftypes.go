// SPDX-License-Identifier: Apache-2.0

package dtype

import "math"

// BF16 is a bfloat16 value in its storage form: the upper half of a float32.
type BF16 uint16

// F16 is an IEEE 754 binary16 value in its storage form.
type F16 uint16

// ToBF16 rounds to the nearest bfloat16, ties to even; a NaN stays a (quiet) NaN.
func ToBF16(f float32) BF16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return BF16(b>>16) | 0x0040
	}
	b += 0x7fff + (b>>16)&1
	return BF16(b >> 16)
}

// Float32 widens exactly.
func (h BF16) Float32() float32 { return math.Float32frombits(uint32(h) << 16) }

// ToF16 rounds to the nearest binary16, ties to even; values beyond 65504 plus
// half a unit become infinite, and a NaN stays a (quiet) NaN.
func ToF16(f float32) F16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000: // NaN: keep the top payload bits, force quiet
		return F16(sign | 0x7e00 | uint16(b>>13)&0x01ff)
	case b >= 0x477ff000: // rounds to 65536 or is infinite
		return F16(sign | 0x7c00)
	case b >= 0x38800000: // normal
		b += 0xfff + (b>>13)&1
		return F16(sign | uint16((b-0x38000000)>>13))
	case b < 0x33000000: // below half of the smallest subnormal
		return F16(sign)
	}
	// Subnormal: shift the significand (with its implicit bit) into place.
	shift := 126 - b>>23 // 14 … 24
	m := b&0x7fffff | 0x800000
	half := uint32(1) << (shift - 1)
	q := m >> shift
	if rest := m & (1<<shift - 1); rest > half || rest == half && q&1 == 1 {
		q++
	}
	return F16(sign | uint16(q))
}

// Float32 widens exactly; a NaN becomes a quiet one.
func (h F16) Float32() float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h>>10) & 0x1f
	m := uint32(h) & 0x3ff
	switch {
	case exp == 0x1f && m != 0: // NaN: quiet, as processors do it
		return math.Float32frombits(sign | 0x7fc00000 | m<<13)
	case exp == 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | m<<13)
	case exp == 0 && m == 0:
		return math.Float32frombits(sign)
	case exp == 0: // subnormal: m × 2⁻²⁴
		f := float32(m) * (1.0 / (1 << 24))
		return math.Float32frombits(sign | math.Float32bits(f))
	}
	return math.Float32frombits(sign | (exp+112)<<23 | m<<13)
}
