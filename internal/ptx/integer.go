// SPDX-License-Identifier: Apache-2.0

package ptx

import "math/bits"

func mulHigh(x, y uint64) uint64 {
	hi, _ := bits.Mul64(x, y)
	return hi
}

func mulHighSigned(x, y uint64) uint64 {
	hi, _ := bits.Mul64(x, y)
	return hi - uint64(int64(x)>>63)&y - uint64(int64(y)>>63)&x
}

func abs32(x int32) int32 { return (x ^ x>>31) - x>>31 }
func abs64(x int64) int64 { return (x ^ x>>63) - x>>63 }

type integer interface {
	~int16 | ~int32 | ~int64 | ~uint32 | ~uint64
}

// divide returns what the hardware gives for a division by zero, which PTX leaves open: all bits set.
func divide[T integer](x, y T) T {
	if y == 0 {
		return ^T(0)
	}
	return x / y
}

func remainder[T integer](x, y T) T {
	if y == 0 {
		return x
	}
	return x % y
}

func isZero[T uint32 | uint64](x T) T {
	if x == 0 {
		return 1
	}
	return 0
}

func choose[T uint32 | uint64](first bool, x, y T) T {
	if first {
		return x
	}
	return y
}

// bfe extracts length bits from position pos, with the sign if signed; width is the operand's.
func bfe(x uint64, pos, length, width uint32, signed bool) uint64 {
	pos, length = pos&0xff, length&0xff
	sign := uint64(0)
	if signed && length > 0 {
		sign = x >> min(pos+length-1, width-1) & 1
	}
	v := uint64(0)
	if pos < width {
		v = x >> pos
	}
	n := length
	if pos+length > width {
		n = width - min(pos, width)
	}
	if n < 64 {
		v &= 1<<n - 1
		if sign != 0 {
			v |= ^uint64(0) << n
		}
	}
	return v
}

// bfi puts the low length bits of x at position pos of y.
func bfi(x, y uint64, pos, length, width uint32) uint64 {
	pos, length = pos&0xff, length&0xff
	if pos >= width {
		return y
	}
	length = min(length, width-pos)
	mask := ^uint64(0)
	if length < 64 {
		mask = 1<<length - 1
	}
	mask <<= pos
	return y&^mask | x<<pos&mask
}

// shiftAmount is how far the highest bit must be shifted to be the top bit; n is the value's length.
func shiftAmount(n, width int) uint32 {
	if n == 0 {
		return 0xffffffff
	}
	return uint32(width - n)
}

// prmt picks four of the eight bytes of y:x; bit 3 of a selector repeats the byte's sign.
func prmt(x, y, selector uint32) uint32 {
	v := uint64(y)<<32 | uint64(x)
	r := uint32(0)
	for i := range 4 {
		s := selector >> (4 * i) & 15
		b := uint32(v>>(8*(s&7))) & 0xff
		if s&8 != 0 {
			b = uint32(int32(int8(b))>>7) & 0xff
		}
		r |= b << (8 * i)
	}
	return r
}

// lop3 applies the truth table to each bit.
func lop3(x, y, z, table uint32) uint32 {
	r := uint32(0)
	for i := range uint32(8) {
		if table>>i&1 == 0 {
			continue
		}
		t := ^uint32(0)
		if i&4 != 0 {
			t &= x
		} else {
			t &= ^x
		}
		if i&2 != 0 {
			t &= y
		} else {
			t &= ^y
		}
		if i&1 != 0 {
			t &= z
		} else {
			t &= ^z
		}
		r |= t
	}
	return r
}

// dot4 adds the products of four bytes to z.
func dot4(x, y, z uint32, signedX, signedY bool) uint32 {
	for i := 0; i < 32; i += 8 {
		a, b := int32(x>>i&0xff), int32(y>>i&0xff)
		if signedX {
			a = int32(int8(a))
		}
		if signedY {
			b = int32(int8(b))
		}
		z += uint32(a * b)
	}
	return z
}
