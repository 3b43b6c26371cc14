// SPDX-License-Identifier: Apache-2.0

package blockwise

import (
	"encoding/binary"
	"math"

	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// A block of Q8_0, as llama.cpp's files have it, is a scale in float16, little-endian, and 32 signed numbers of 8 bits.
const (
	Q8Block = 32
	Q8Bytes = 2 + Q8Block
)

// AppendQ8 appends the blocks of src, a multiple of Q8Block elements, as llama.cpp rounds them: the largest of a block
// becomes 127 or -127. bad is the first number whose scale float16 cannot hold, -1 if there is none. Numbers that
// blocks of llama.cpp stand for become these blocks again.
func AppendQ8(dst []byte, src []float32) (out []byte, bad int) {
	for first := 0; first < len(src); first += Q8Block {
		block := src[first : first+Q8Block]
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
			dst = append(dst, byte(int8(math.Round(float64(x*inverse)))))
		}
	}
	return dst, -1
}

// infinite are the bits of an infinite float16, smallestNormal is the smallest float32 whose reciprocal is surely
// finite.
const (
	infinite       = dtype.F16(0x7c00)
	smallestNormal = float32(0x1p-126)
)

// DequantizeQ8 writes the numbers of len(dst)/Q8Block blocks.
func DequantizeQ8(dst []float32, w []byte) {
	for i := 0; i < len(dst); i += Q8Block {
		block, to := w[i/Q8Block*Q8Bytes:][:Q8Bytes], dst[i:][:Q8Block]
		scale := dtype.F16(binary.LittleEndian.Uint16(block)).Float32()
		for j, q := range block[2:] {
			to[j] = float32(int8(q)) * scale
		}
	}
}

// RowsQ8 is how many rows MultiplyQ8 takes at most.
const RowsQ8 = 8

// tileQ8 is how many columns are computed for all rows before the next ones: their blocks stay in the second-level
// cache.
const tileQ8 = 64

// groupsQ8 are the numbers of rows that are computed together.
var groupsQ8 = [...]int{8, 4, 2, 1}

// PackQ8 writes rows × k elements of x, whose row r is at r·stride, to dst as MultiplyQ8 reads them: rows in groups,
// block by block. k is a multiple of Q8Block, rows at most RowsQ8.
func PackQ8(dst, x []float32, rows, k, stride int) {
	for lo, n := range groups(rows) {
		to := dst[lo*k : (lo+n)*k]
		for r := range n {
			row := x[(lo+r)*stride:][:k]
			for i := 0; i < k; i += Q8Block {
				copy(to[i*n+r*Q8Block:][:Q8Block], row[i:])
			}
		}
	}
}

// MultiplyQ8 computes columns [lo, hi) of y = x·wᵀ, row r of which is at r·stride: x has rows that PackQ8 packed, and w
// the blocks of k numbers for each column. It is exact to the numbers that the blocks stand for: products and sums are
// float32, in an order that does not depend on how many rows or columns there are.
func MultiplyQ8(y []float32, stride int, packed []float32, rows, k int, w []uint8, lo, hi int) {
	bytes := k / Q8Block * Q8Bytes
	var tile [tileQ8 * RowsQ8]float32
	for ; lo < hi; lo += tileQ8 {
		columns := min(tileQ8, hi-lo)
		for first, n := range groups(rows) {
			productQ8(n, columns, k/Q8Block, w[lo*bytes:(lo+columns)*bytes], packed[first*k:(first+n)*k],
				tile[:columns*n])
			for r := range n {
				to := y[(first+r)*stride+lo:][:columns]
				for j := range to {
					to[j] = tile[j*n+r]
				}
			}
		}
	}
}

// groups yields the first row of each group, and how many there are.
func groups(rows int) func(yield func(first, n int) bool) {
	return func(yield func(first, n int) bool) {
		first := 0
		for _, n := range groupsQ8 {
			for ; rows-first >= n; first += n {
				if !yield(first, n) {
					return
				}
			}
		}
	}
}

// productQ8Generic is what the kernels compute, sum by sum. Of float32 operands float64 has the exact product, so that
// only the sum is rounded twice.
func productQ8Generic(rows, columns, blocks int, w []uint8, x, y []float32) {
	fma := func(a, b, c float32) float32 { return float32(float64(a)*float64(b) + float64(c)) }
	for j := range columns {
		for r := range rows {
			var sums [8]float32
			for i := range blocks {
				block, from := w[(j*blocks+i)*Q8Bytes:][:Q8Bytes], x[Q8Block*(rows*i+r):][:Q8Block]
				scale := dtype.F16(binary.LittleEndian.Uint16(block)).Float32()
				for l := range sums {
					dot := from[l] * float32(int8(block[2+l]))
					for at := l + 8; at < Q8Block; at += 8 {
						dot = fma(from[at], float32(int8(block[2+at])), dot)
					}
					sums[l] = fma(scale, dot, sums[l])
				}
			}
			for half := 4; half > 0; half /= 2 {
				for l := range half {
					sums[l] += sums[l+half]
				}
			}
			y[rows*j+r] = sums[0]
		}
	}
}
