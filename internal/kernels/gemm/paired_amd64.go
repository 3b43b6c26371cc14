// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package gemm

import (
	"math"
	"sync"
	"time"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// The kernels for panels of pairs.
var (
	microDotAVX512BF16 = directOf(1, upTo[float32, float32]{11, 32, microDotAVX512BF16x11},
		upTo[float32, float32]{12, 32, microDotAVX512BF16x12}).compute
	microWidenedAVX512 = directOf(1, upTo[float32, float32]{11, 32, microWidenedAVX512x11},
		upTo[float32, float32]{12, 32, microWidenedAVX512x12}).compute
)

// pairingAVX512 is for processors with AVX512_BF16. Others have VDPBF16PS's results from FMA: this changes no bit.
var pairingAVX512 = pairing[float32]{packPairsAVX512, microDotAVX512BF16, microWidenedAVX512}

// formatAVX512 is avx512BF16, with pairs if the processor multiplies them as documented, and faster than it multiplies
// what was widened.
var formatAVX512 = sync.OnceValue(func() *format[float32] {
	f := avx512BF16
	if kernels.Has(kernels.FeatureAVX512BF16) && dotsAsWidened() && dotsAreFaster() {
		f.pairing = &pairingAVX512
	}
	return &f
})

// dotsAsWidened reports whether VDPBF16PS adds two products as two FMAs do, that of the upper halves first. Intel's
// manual says so; this asks the processor.
func dotsAsWidened() bool {
	const pairs = 64
	var a [pairs]float32
	var b [pairs * 32]float32
	var dot, widened [32]float32
	state := uint32(1)
	number := func() uint32 { // of either sign, between 2⁻⁸ and 2⁸
		state = state*1664525 + 1013904223
		return state>>31<<15 | (119+state>>20&15)<<7 | state>>8&127
	}
	for _, x := range [][]float32{a[:], b[:]} {
		for i := range x {
			x[i] = math.Float32frombits(number()<<16 | number())
		}
	}
	microDotAVX512BF16(1, pairs, &a[0], &b[0], 32, &dot[0], 32, nil, 0, 1)
	microWidenedAVX512(1, pairs, &a[0], &b[0], 32, &widened[0], 32, nil, 0, 1)
	return dot == widened
}

// dotsAreFaster reports whether VDPBF16PS does 32 products in less time than FMA, twice 16. AMD's Zen 4 and Zen 5 need
// half of it. An Intel Xeon (family 6, model 207) needs twice as much, as its matrix unit is the fast way, which an
// operating system may withhold. The fastest of some turns of a few microseconds counts, so that other work on the
// processor decides nothing.
func dotsAreFaster() bool {
	const rows, products, turns = 12, 256, 16 // panels of as many products stay in the first-level cache
	var a [rows * products]float32
	var b [32 * products]float32
	var c [32 * rows]float32
	run := func(k int, micro func(rows, k int, a, b *float32, bstride int, c *float32, cstride int, d *float32, dstride,
		blocks int)) time.Duration {
		start := time.Now()
		micro(rows, k, &a[0], &b[0], 32, &c[0], 32, nil, 0, 1)
		return time.Since(start)
	}
	dots, fma := time.Hour, time.Hour
	for range turns {
		dots, fma = min(dots, run(products/2, microDotAVX512BF16)), min(fma, run(products, microAVX512))
	}
	return dots < fma
}

// packPairsAVX512 is pairing.pack.
func packPairsAVX512(dst []float32, width, lanes, k int, src []uint16, laneStride, kStride int, pad uint16) uint32 {
	whole, pairs := k/2, ceilDiv(k, 2)
	dst = dst[:pairs*width]
	words := unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst))
	_ = src[(lanes-1)*laneStride+(k-1)*kStride]
	switch {
	case whole == 0:
	case laneStride == 1 && lanes == width && lanes == 32:
		copyPairsAVX512x32(whole, &src[0], kStride, &dst[0])
	case laneStride == 1 && lanes == width && lanes == 12:
		copyPairsAVX512x12(whole, &src[0], kStride, &dst[0])
	case kStride == 1 && laneStride%2 == 0:
		asPairs := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(src))), len(src)/2)
		transposeAVX512(dst, width, lanes, whole, asPairs, laneStride/2)
	default:
		for p := range whole {
			for i := range lanes {
				at := i*laneStride + 2*p*kStride
				words[p*width+i] = uint32(src[at]) | uint32(src[at+kStride])<<16
			}
		}
	}
	if whole < pairs {
		for i := range lanes {
			words[whole*width+i] = uint32(src[i*laneStride+(k-1)*kStride]) | uint32(pad)<<16
		}
	}
	for p := 0; lanes < width && p < pairs; p++ {
		clear(words[p*width+lanes : (p+1)*width])
	}
	return exchangePairs(dst, words)
}

// exchangePairs exchanges the halves of all words, which are those of dst, and returns the least magnitude but zero
// among them.
func exchangePairs(dst []float32, words []uint32) uint32 {
	least := uint32(math.MaxUint16)
	if n := len(dst) / 16; n > 0 {
		least = endPairsAVX512(n, &dst[0])
	}
	for i := len(words) &^ 15; i < len(words); i++ {
		x := words[i]
		least = min(least, (x&0x7fff-1)&0xffff, (x>>16&0x7fff-1)&0xffff)
		words[i] = x<<16 | x>>16
	}
	return least + 1
}
