// SPDX-License-Identifier: Apache-2.0

package blockwise

import (
	"encoding/binary"
	"math"
)

// Int8Bytes is how many bytes a block of so many 8-bit numbers has: its scale, a little-endian float32, comes first.
func Int8Bytes(size int) int { return 4 + size }

// QuantizeInt8 writes a block: a scale, and x divided by it, rounded to the nearest. The scale is the largest magnitude
// divided by 127, or NaN if a number is not finite. Where x is shorter than the block, zeros fill it.
func QuantizeInt8(block []byte, x []float32) {
	codes := block[Int8Bytes(0):]
	scale := math.Float32frombits(largest(x)) / 127
	if !(scale <= math.MaxFloat32) {
		scale = float32(math.NaN())
	}
	binary.LittleEndian.PutUint32(block, math.Float32bits(scale))
	if !(scale > 0) {
		clear(codes)
		return
	}
	clear(codes[len(x):])
	done := quantizeInt8Vector(codes, x, scale)
	quantizeInt8Generic(codes[done:], x[done:], scale)
}

// DequantizeInt8 writes the first len(x) numbers of a block.
func DequantizeInt8(x []float32, block []byte) {
	scale, codes := openInt8(block)
	for i := dequantizeInt8Vector(x, codes, scale); i < len(x); i++ {
		x[i] = float32(scale * float32(int8(codes[i])))
	}
}

// AddInt8 adds the first len(sum) numbers of a block to sum.
func AddInt8(sum []float32, block []byte) {
	scale, codes := openInt8(block)
	for i := addInt8Vector(sum, codes, scale); i < len(sum); i++ {
		sum[i] += float32(scale * float32(int8(codes[i])))
	}
}

func openInt8(block []byte) (scale float32, codes []byte) {
	return math.Float32frombits(binary.LittleEndian.Uint32(block)), block[Int8Bytes(0):]
}

// largest returns the bits of the largest magnitude: those of a NaN are larger than any.
func largest(x []float32) (bits uint32) {
	done, bits := largestVector(x)
	for _, v := range x[done:] {
		bits = max(bits, math.Float32bits(v)&math.MaxInt32)
	}
	return bits
}

// quantizeInt8Generic divides in float64: a quotient of float32 may be rounded to the middle between two codes.
func quantizeInt8Generic(codes []byte, x []float32, scale float32) {
	for i, v := range x {
		q := math.RoundToEven(float64(v) / float64(scale))
		codes[i] = byte(int8(max(-127, min(127, q))))
	}
}
