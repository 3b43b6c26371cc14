// SPDX-License-Identifier: Apache-2.0

package rng

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

// Uint32At returns the 32 random bits of one element.
func Uint32At(key, position, element uint64) uint32 {
	return At(key, position, element/4)[element%4]
}

// Uint64At returns the 64 random bits of one element.
func Uint64At(key, position, element uint64) uint64 {
	return At(key, position, element/2).Uint64(int(element % 2))
}

// Float32At returns the uniform number in [0, 1) of one element, a multiple of 2⁻²⁴.
func Float32At(key, position, element uint64) float32 {
	return Unit32(Uint32At(key, position, element))
}

// Float64At returns the uniform number in [0, 1) of one element, a multiple of 2⁻⁵³.
func Float64At(key, position, element uint64) float64 {
	return Unit64(Uint64At(key, position, element))
}

// Unit32 maps random bits to [0, 1): the upper 24 bits times 2⁻²⁴.
func Unit32(x uint32) float32 { return float32(x>>8) * 0x1p-24 }

// Unit64 maps random bits to [0, 1): the upper 53 bits times 2⁻⁵³.
func Unit64(x uint64) float64 { return float64(x>>11) * 0x1p-53 }

// FillUint32 sets dst[i] to Uint32At(key, position, first+i).
func FillUint32(dst []uint32, key, position, first uint64) {
	for len(dst) > 0 && first%4 != 0 { // a block that begins before
		dst[0] = Uint32At(key, position, first)
		dst, first = dst[1:], first+1
	}
	whole := len(dst) / 4 * 4
	if whole > 0 {
		blocks := unsafe.Slice((*[4]uint32)(unsafe.Pointer(unsafe.SliceData(dst))), whole/4)
		for i := vecmath.PhiloxBlocks(blocks, key, position, first/4); i < len(blocks); i++ {
			blocks[i] = At(key, position, first/4+uint64(i))
		}
	}
	for i := whole; i < len(dst); i++ {
		dst[i] = Uint32At(key, position, first+uint64(i))
	}
}

// FillFloat32 sets dst[i] to Float32At(key, position, first+i).
func FillFloat32(dst []float32, key, position, first uint64) {
	bits := unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst))
	FillUint32(bits, key, position, first)
	for i, x := range bits {
		dst[i] = Unit32(x)
	}
}

// FillFloat64 sets dst[i] to Float64At(key, position, first+i).
func FillFloat64(dst []float64, key, position, first uint64) {
	for i := 0; i < len(dst); {
		element := first + uint64(i)
		b := At(key, position, element/2)
		for half := int(element % 2); half < 2 && i < len(dst); half++ {
			dst[i] = Unit64(b.Uint64(half))
			i++
		}
	}
}

// KeepThreshold returns the integer t for which an element is kept by dropout with probability p exactly if its upper
// 24 random bits, Uint32At(…)>>8, are at least t: the same as Float32At(…) ≥ p without a conversion. It panics if p is
// outside [0, 1].
func KeepThreshold(p float64) uint32 {
	if !(p >= 0 && p <= 1) {
		panic(fmt.Sprintf("rng: dropout probability is %v: want 0 to 1", p))
	}
	return uint32(math.Ceil(p * (1 << 24)))
}

// piece is the number of elements whose bits are held at a time, where they are not drawn into the result itself.
const piece = 256
