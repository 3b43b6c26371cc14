// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package gemm

import "github.com/lockstep-ml/lockstep/internal/kernels"

var (
	streamBF16AVX2 = directOf(1, upTo[float32, uint16]{1, 64, streamBF16AVX2x1},
		upTo[float32, uint16]{2, 32, streamBF16AVX2x2}, upTo[float32, uint16]{3, 32, streamBF16AVX2x3},
		upTo[float32, uint16]{4, 16, streamBF16AVX2x4})
	streamBF16AVX512 = directOf(1, upTo[float32, uint16]{1, 256, streamBF16AVX512x1},
		upTo[float32, uint16]{2, 192, streamBF16AVX512x2}, upTo[float32, uint16]{3, 128, streamBF16AVX512x3},
		upTo[float32, uint16]{4, 96, streamBF16AVX512x4}, upTo[float32, uint16]{6, 64, streamBF16AVX512x6},
		upTo[float32, uint16]{8, 32, streamBF16AVX512x8})

	streamF16AVX2 = directOf(1, upTo[float32, uint16]{1, 64, streamF16AVX2x1},
		upTo[float32, uint16]{2, 48, streamF16AVX2x2}, upTo[float32, uint16]{3, 32, streamF16AVX2x3},
		upTo[float32, uint16]{4, 24, streamF16AVX2x4})
	streamF16AVX512 = directOf(1, upTo[float32, uint16]{1, 256, streamF16AVX512x1},
		upTo[float32, uint16]{2, 192, streamF16AVX512x2}, upTo[float32, uint16]{3, 128, streamF16AVX512x3},
		upTo[float32, uint16]{4, 96, streamF16AVX512x4}, upTo[float32, uint16]{6, 64, streamF16AVX512x6},
		upTo[float32, uint16]{8, 48, streamF16AVX512x8})

	dotsBF16AVX2 = aheadOf(16, aheadUpTo[float32, uint16]{2, 16, dotsBF16AVX2x2},
		aheadUpTo[float32, uint16]{5, 8, halvesOf(1)},
		aheadUpTo[float32, uint16]{8, 8, lanesOf[uint16](1)})
	dotsBF16AVX512 = aheadOf(32, aheadUpTo[float32, uint16]{4, 32, dotsBF16AVX512x4},
		aheadUpTo[float32, uint16]{11, 16, dotsBF16AVX512x11}).with(32,
		aheadUpTo[float32, uint16]{11, 16, dotsBF16AVX512x11})
	dotsF16AVX2 = aheadOf(16, aheadUpTo[float32, uint16]{2, 16, dotsF16AVX2x2},
		aheadUpTo[float32, uint16]{5, 8, halvesOf(2)},
		aheadUpTo[float32, uint16]{8, 8, lanesOf[uint16](2)})
	dotsF16AVX512 = aheadOf(16, aheadUpTo[float32, uint16]{8, 16, dotsF16AVX512x8})
)

// halvesOf is dotsHalfAVX2x5 for a B of bfloat16, 1, or float16, 2.
func halvesOf(of int) func(rows, k int, a *float32, b *uint16, bstride int, c *float32, cstride int, d *float32,
	dstride, blocks int, ahead uintptr) {
	return func(rows, k int, a *float32, b *uint16, bstride int, c *float32, cstride int, d *float32, dstride,
		blocks int, ahead uintptr) {
		dotsHalfAVX2x5(rows, k, a, b, bstride, c, cstride, d, dstride, blocks, ahead, of)
	}
}

// The half types of the variants.
var (
	avx2BF16 = format[float32]{
		pack: (&packing[float32, uint16]{16, 6, copyRowsBF16AVX2, copyTallBF16AVX2x6, transposeBF16AVX2,
			packBF16Generic}).pack,
		copyA:  copyPanelsABF16AVX2,
		copyB:  copyPanelsBBF16AVX2,
		stream: streamBF16AVX2,
		dots:   dotsBF16AVX2,
	}
	avx512BF16 = format[float32]{
		pack: (&packing[float32, uint16]{32, 12, copyRowsBF16AVX512, copyTallBF16AVX512x12, transposeBF16AVX512,
			packBF16Generic}).pack,
		copyA:  copyPanelsABF16AVX512,
		copyB:  copyPanelsBBF16AVX512,
		stream: streamBF16AVX512,
		dots:   dotsBF16AVX512,

		bfloat16: true,
	}
	avx2F16 = format[float32]{
		pack: (&packing[float32, uint16]{16, 6, copyRowsF16AVX2, copyTallF16AVX2x6, transposeF16,
			packF16Generic}).pack,
		copyA:  copyPanelsAF16AVX2,
		copyB:  copyPanelsBF16AVX2,
		stream: streamF16AVX2,
		dots:   dotsF16AVX2,
	}
	avx512F16 = format[float32]{
		pack: (&packing[float32, uint16]{32, 12, copyRowsF16AVX512, copyTallF16AVX512x12, transposeF16,
			packF16Generic}).pack,
		copyA:  copyPanelsAF16AVX512,
		copyB:  copyPanelsBF16AVX512,
		stream: streamF16AVX512,
		dots:   dotsF16AVX512,
	}
)

// formatBF16 returns the active variant's way of reading bfloat16.
func formatBF16() *format[float32] {
	switch kernels.Vectors() {
	case kernels.AVX512:
		return formatAVX512()
	case kernels.AVX2:
		return &avx2BF16
	default:
		return &genericBF16
	}
}

// formatF16 returns the active variant's way of reading float16.
func formatF16() *format[float32] {
	switch kernels.Vectors() {
	case kernels.AVX512:
		return &avx512F16
	case kernels.AVX2:
		return &avx2F16
	default:
		return &genericF16
	}
}

// transposeBF16AVX512 sets dst[p·width + i] = src[i·stride + p] in blocks of 16 lanes, or of the 12 of a panel of A, by
// 32 products, lanes ≥ 4; what is left is transposeBF16AVX2's.
func transposeBF16AVX512(dst []float32, width, lanes, k int, src []uint16, stride int) {
	whole, deep := lanes&^15, k&^31
	if lanes == 12 && width == lanes && deep > 0 {
		_, _ = dst[deep*width-1], src[(lanes-1)*stride+deep-1]
		transposeBF16AVX512x12(deep/32, &src[0], stride, &dst[0])
		if deep < k {
			transposeBF16AVX2(dst[deep*width:], width, lanes, k-deep, src[deep:], stride)
		}
		return
	}
	if whole > 0 && deep > 0 {
		_, _ = dst[(deep-1)*width+whole-1], src[(whole-1)*stride+deep-1]
	}
	// all of a row of dst before the next ones, which may lie in the same places of the cache
	for p := 0; p < deep; p += 32 {
		for lane := 0; lane < whole; lane += 16 {
			transposeBF16AVX512x16(&src[lane*stride+p], stride, &dst[p*width+lane], width)
		}
	}
	if deep < k && whole > 0 {
		transposeBF16AVX2(dst[deep*width:], width, whole, k-deep, src[deep:], stride)
	}
	if whole < lanes {
		transposeBF16AVX2(dst[whole:], width, lanes-whole, k, src[whole*stride:], stride)
	}
}

// transposeBF16AVX2 is the same for any number of lanes.
func transposeBF16AVX2(dst []float32, width, lanes, k int, src []uint16, stride int) {
	transposeHalf(transposeBF16AVX2x8, transposeBF16AVX2x4, widenBF16, dst, width, lanes, k, src, stride)
}

// transposeF16 is transposeBF16AVX2 for float16.
func transposeF16(dst []float32, width, lanes, k int, src []uint16, stride int) {
	transposeHalf(transposeF16AVX2x8, transposeF16AVX2x4, widenF16, dst, width, lanes, k, src, stride)
}

// transposeHalf transposes eight lanes at a time, or four, in blocks of eight products, and what is left one by one.
func transposeHalf(eight, four func(blocks int, src *uint16, stride int, dst *float32, width int),
	widen func(uint16) float32,
	dst []float32, width, lanes, k int, src []uint16, stride int) {
	done := 0
	if blocks := k / 8; blocks > 0 && lanes >= 4 {
		_, _ = dst[(k-1)*width+lanes-1], src[(lanes-1)*stride+k-1]
		lane := 0
		for ; lane+8 <= lanes; lane += 8 {
			eight(blocks, &src[lane*stride], stride, &dst[lane], width)
		}
		for lane < lanes {
			lane = min(lane, lanes-4) // the last group may overlap the one before: it writes the same values
			four(blocks, &src[lane*stride], stride, &dst[lane], width)
			lane += 4
		}
		done = 8 * blocks
	}
	for p := done; p < k; p++ {
		for i := range lanes {
			dst[p*width+i] = widen(src[i*stride+p])
		}
	}
}
