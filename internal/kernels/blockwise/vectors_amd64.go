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

// productQ8 multiplies rows, 1, 2, 4 or 8 of them. AVX-512 has the kernels of AVX2, which wait for memory.
func productQ8(rows, columns, blocks int, w []uint8, x, y []float32) {
	if kernels.Vectors() == kernels.Generic {
		productQ8Generic(rows, columns, blocks, w, x, y)
		return
	}
	if blocks == 0 {
		clear(y)
		return
	}
	_, _, _ = w[columns*blocks*Q8Bytes-1], x[rows*blocks*Q8Block-1], y[rows*columns-1]
	switch rows {
	case 1:
		productQ8AVX2x1(columns, blocks, &w[0], &x[0], &y[0])
	case 2:
		productQ8AVX2x2(columns, blocks, &w[0], &x[0], &y[0])
	case 4:
		productQ8AVX2x4(columns, blocks, &w[0], &x[0], &y[0])
	case 8:
		productQ8AVX2x8(columns, blocks, &w[0], &x[0], &y[0])
	}
}

// vectorInt8 is how many numbers the vector kernels of 8-bit blocks do: whole vectors.
func vectorInt8(numbers int) int {
	if kernels.Vectors() == kernels.Generic {
		return 0
	}
	return numbers &^ 7
}

// largestVector is largest of the numbers of which it returns how many there are.
func largestVector(x []float32) (done int, bits uint32) {
	n := vectorInt8(len(x))
	if n == 0 {
		return 0, 0
	}
	return n, largestAVX2(n, &x[0])
}

// quantizeInt8Vector is quantizeInt8Generic of the numbers of which it returns how many there are, as the two below are
// of DequantizeInt8 and AddInt8.
func quantizeInt8Vector(codes []byte, x []float32, scale float32) int {
	n := vectorInt8(len(x))
	if n > 0 {
		_ = codes[n-1]
		quantizeInt8AVX2(n, &codes[0], &x[0], float64(scale))
	}
	return n
}

func dequantizeInt8Vector(x []float32, codes []byte, scale float32) int {
	n := vectorInt8(len(x))
	if n > 0 {
		_ = codes[n-1]
		dequantizeInt8AVX2(n, &x[0], &codes[0], scale)
	}
	return n
}

func addInt8Vector(sum []float32, codes []byte, scale float32) int {
	n := vectorInt8(len(sum))
	if n > 0 {
		_ = codes[n-1]
		addInt8AVX2(n, &sum[0], &codes[0], scale)
	}
	return n
}
