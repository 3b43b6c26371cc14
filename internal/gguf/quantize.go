// SPDX-License-Identifier: Apache-2.0

package gguf

import (
	"encoding/binary"
	"math"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/blockwise"
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
	Q8_0: blockwise.AppendQ8,
}

// infinite are the bits of an infinite float16.
const infinite dtype.F16 = 0x7c00
