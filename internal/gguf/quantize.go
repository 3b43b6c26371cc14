// SPDX-License-Identifier: Apache-2.0

package gguf

import (
	"encoding/binary"
	"math"

	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Writable are the types that are written, for messages.
const Writable = "F32, F16, BF16 or Q8_0"

// encoders append numbers as they lie in a file, rounded as llama.cpp and its Python package round them. bad is the
// first number that the type cannot hold, -1 if there is none.
var encoders = map[Type]func(dst []byte, src []float32) (out []byte, bad int){
	F32: func(dst []byte, src []float32) ([]byte, int) {
		for _, x := range src {
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(x))
		}
		return dst, -1
	},
	F16: func(dst []byte, src []float32) ([]byte, int) {
		for i, x := range src {
			h := dtype.ToF16(x)
			if h&infinite == infinite {
				return dst, i
			}
			dst = binary.LittleEndian.AppendUint16(dst, uint16(h))
		}
		return dst, -1
	},
	BF16: func(dst []byte, src []float32) ([]byte, int) {
		for i, x := range src {
			h := dtype.ToBF16(x)
			if h&0x7f80 == 0x7f80 {
				return dst, i
			}
			dst = binary.LittleEndian.AppendUint16(dst, uint16(h))
		}
		return dst, -1
	},
	Q8_0: appendQ8_0,
}

// infinite are the bits of an infinite float16.
const infinite dtype.F16 = 0x7c00

// appendQ8_0 makes blocks of a scale and 32 numbers of 8 bits: the largest of a block becomes 127 or -127.
func appendQ8_0(dst []byte, src []float32) (out []byte, bad int) {
	for first := 0; first < len(src); first += 32 {
		block := src[first : first+32]
		most, at := float32(0), 0
		for i, x := range block {
			if x < 0 {
				x = -x
			}
			if x > most {
				most, at = x, i
			}
		}
		scale, inverse := most/127, float32(0)
		if scale >= smallestNormal { // what is smaller is 0 as a float16
			inverse = 1 / scale
		}
		h := dtype.ToF16(scale)
		if h&infinite == infinite {
			return dst, first + at
		}
		dst = binary.LittleEndian.AppendUint16(dst, uint16(h))
		for _, x := range block {
			dst = append(dst, byte(int8(roundAway(x*inverse))))
		}
	}
	return dst, -1
}

// smallestNormal is the smallest float32 whose reciprocal is surely finite.
const smallestNormal = 0x1p-126

// roundAway is the nearest whole number, of two the one farther from 0, as roundf of C.
func roundAway(x float32) float32 { return float32(math.Round(float64(x))) }
