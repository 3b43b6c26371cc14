// SPDX-License-Identifier: Apache-2.0

package gguf

import (
	"encoding/binary"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/blockwise"
)

// The functions below write the values of a block as llama.cpp and its Python package compute them in float32, product
// by product, so that no bit differs. Conversions keep compilers from fusing a product and a sum.

func half(b []byte) float32 { return dtype.F16(binary.LittleEndian.Uint16(b)).Float32() }

// q4_0 is a scale and 32 numbers of 4 bits: the lower halves of 16 bytes, then the upper ones.
func q4_0(dst []float32, block []byte) {
	d := half(block)
	low, high := dst[:16], dst[16:32]
	for i, q := range block[2:18] {
		low[i], high[i] = d*float32(int(q&15)-8), d*float32(int(q>>4)-8)
	}
}

// q4_1 is a scale, a minimum and 32 numbers of 4 bits.
func q4_1(dst []float32, block []byte) {
	d, m := half(block), half(block[2:])
	low, high := dst[:16], dst[16:32]
	for i, q := range block[4:20] {
		low[i], high[i] = float32(d*float32(q&15))+m, float32(d*float32(q>>4))+m
	}
}

// q8_0 is a scale and 32 numbers of 8 bits.
func q8_0(dst []float32, block []byte) { blockwise.DequantizeQ8(dst[:32], block) }

// q4_K is a scale of scales and one of minima, 8 scales and 8 minima of 6 bits, and 8 times 32 numbers of 4 bits.
func q4_K(dst []float32, block []byte) {
	d, dmin := half(block), half(block[2:])
	packed := block[4:16]
	for j := range 8 {
		var scale, least byte
		if j < 4 {
			scale, least = packed[j]&63, packed[j+4]&63
		} else {
			scale = packed[j+4]&15 | packed[j-4]>>6<<4
			least = packed[j+4]>>4 | packed[j]>>6<<4
		}
		s, m := d*float32(scale), dmin*float32(least)
		shift := uint(j&1) * 4
		out := dst[32*j : 32*j+32]
		for i, q := range block[16+32*(j/2):][:32] {
			out[i] = float32(s*float32(q>>shift&15)) - m
		}
	}
}

// q6_K is 256 numbers of 6 bits, of which the upper two lie apart, 16 scales of 8 bits, and a scale of these.
func q6_K(dst []float32, block []byte) {
	d := half(block[208:])
	for part := range 2 {
		low, high, scales := block[64*part:], block[128+32*part:], block[192+8*part:]
		for k := range 4 { // 32 numbers with the same place in a byte of high
			out := dst[128*part+32*k:][:32]
			nibbles, shift := low[32*(k&1):][:32], uint(k/2)*4
			for i := range out {
				q := nibbles[i]>>shift&15 | high[i]>>(2*k)&3<<4
				s := d * float32(int8(scales[2*k+i/16]))
				out[i] = s * float32(int(q)-32)
			}
		}
	}
}
