// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package blockwise

import (
	"math/bits"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

//go:generate sh -c "cd ../_asm && go run ./blockwise"

// stretch is the number of blocks per call of an assembly function, which cannot be preempted.
const stretch = 32

// vectorBlocks is how many blocks the vector kernels do: whole ones. AVX-512 runs those of AVX2, which wait for memory.
func vectorBlocks(codes []uint8, scales, x []float32) int {
	if kernels.Vectors() == kernels.Generic {
		return 0
	}
	blocks := len(x) / Block
	_, _ = codes[:len(x)], scales[:blocks] // or panic
	return blocks
}

// quantizeVector is Quantize of the blocks whose number it returns.
func (m *Map) quantizeVector(codes []uint8, scales, x []float32) int {
	blocks := vectorBlocks(codes, scales, x)
	for b := 0; b < blocks; b += stretch {
		var unsure [stretch]uint8
		quantizeAVX2(min(stretch, blocks-b), &codes[b*Block], &scales[b], &x[b*Block],
			(*float32)(unsafe.Pointer(&m.numbers)), &unsure[0])
		for i, groups := range unsure {
			for ; groups != 0; groups &= groups - 1 {
				lo := (b+i)*Block + Block/8*bits.TrailingZeros8(groups)
				hi := lo + Block/8
				m.encode(codes[lo:hi], x[lo:hi], scales[b+i])
			}
		}
	}
	return blocks
}

// dequantizeVector is Dequantize of the blocks whose number it returns.
func (m *Map) dequantizeVector(x []float32, codes []uint8, scales []float32) int {
	blocks := vectorBlocks(codes, scales, x)
	for b := 0; b < blocks; b += stretch {
		dequantizeAVX2(min(stretch, blocks-b), &codes[b*Block], &scales[b], &x[b*Block], &m.values[0])
	}
	return blocks
}
