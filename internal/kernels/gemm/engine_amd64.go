// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package gemm

import (
	"github.com/lockstep-ml/lockstep/internal/kernels"
)

//go:generate sh -c "cd _asm && go run . -dir .."

// kernel is engine.micro or direct.compute for a fixed number of rows.
type kernel func(k int, a, b *float32, bstride int, c *float32, cstride int, d *float32, dstride, blocks int)

// The kernels by number of rows.
var (
	kernelsAVX2   = [...]kernel{nil, microAVX2x1, microAVX2x2, microAVX2x3, microAVX2x4, microAVX2x5, microAVX2x6}
	kernelsAVX512 = [...]kernel{nil, microAVX512x1, microAVX512x2, microAVX512x3, microAVX512x4, microAVX512x5,
		microAVX512x6,
		microAVX512x7, microAVX512x8, microAVX512x9, microAVX512x10, microAVX512x11, microAVX512x12}

	streamsAVX2   = [...]kernel{nil, streamAVX2x1, streamAVX2x2, streamAVX2x3, streamAVX2x4}
	streamsAVX512 = [...]kernel{nil, streamAVX512x1, streamAVX512x2, streamAVX512x3, streamAVX512x4,
		streamAVX512x5, streamAVX512x6, streamAVX512x7, streamAVX512x8}

	dottersAVX2   = [...]kernel{nil, dotsAVX2x1, dotsAVX2x2, dotsAVX2x3, dotsAVX2x4, dotsAVX2x5}
	dottersAVX512 = [...]kernel{nil, dotsAVX512x1, dotsAVX512x2, dotsAVX512x3, dotsAVX512x4, dotsAVX512x5, dotsAVX512x6,
		dotsAVX512x7, dotsAVX512x8, dotsAVX512x9, dotsAVX512x10, dotsAVX512x11, dotsAVX512x12}
)

// The tilings for processors whose second-level cache is not large.
var (
	avx2Tiling   = tiling{mr: 6, nr: 16, mb: 2064, tm: 96, ka: kc, nb: 512, kb: 4 * kc, skinny: 96, narrow: 12}
	avx512Tiling = tiling{mr: 12, nr: 32, mb: 2064, tm: 96, ka: kc, nb: 512, kb: 4 * kc, skinny: 144, narrow: 24}
)

var (
	avx2 = engine[float32]{
		tiling: avx2Tiling.on(kernels.AmpleSecondCache()),
		micro:  microAVX2,
		rows:   rowsAVX2x6Ahead,
		tall:   tallAVX2x6Ahead,
		outer:  outer[float32]{32, outerAVX2, outerAVX2Past, fence},
		stream: direct[float32, float32]{[]int{0, 64, 48, 32, 24}, 1, streamAVX2},
		gemvRows: gemvRows[float32]{4, 32, gemvRowsAVX2x1, gemvRowsAVX2x4, gemvRowsAVX2x4Ahead, addBlocksAVX2,
			limits},
		splitKLimits: splitKLimits32,
		dots:         direct[float32, float32]{[]int{0, 16, 16, 8, 8, 8}, 8, dotsAVX2},
		pack:         packAVX2,
		copyA:        copyPanelsAAVX2,
		copyB:        copyPanelsBAVX2,

		transpose: transposeAVX2,
		strided:   stridedAVX2,
	}
	avx512 = engine[float32]{
		tiling:  avx512Tiling.on(kernels.AmpleSecondCache()),
		micro:   microAVX512,
		rows:    rowsAVX512x12Ahead,
		tall:    tallAVX512x12Ahead,
		keeping: rowsAVX512x12Keeping,
		outer:   outer[float32]{64, outerAVX512, outerAVX512Past, fence},
		stream:  direct[float32, float32]{[]int{0, 256, 192, 128, 96, 64, 64, 48, 48}, 1, streamAVX512},
		gemvRows: gemvRows[float32]{4, 64, gemvRowsAVX512x1, gemvRowsAVX512x4, gemvRowsAVX512x4Ahead,
			addBlocksAVX512, limits},
		splitKLimits: splitKLimits32,
		dots: direct[float32, float32]{[]int{0, 32, 32, 32, 32, 32, 32, 16, 16, 16, 16, 16, 16}, 16,
			dotsAVX512},
		gemvHalves:  gemvHalves[float32]{16, gemvHalvesAVX512},
		gemvColumns: gemvColumns[float32]{8, 16, gemvColumnsAVX512, gemvColumnsCrowdedAVX512},
		pack:        packAVX512,
		copyA:       copyPanelsAAVX512,
		copyB:       copyPanelsBAVX512,

		transpose: transposeAVX512,
		strided:   stridedAVX512,
		broad:     broadAVX512x6,
	}
)

// engine32 returns the engine of the active variant for single precision.
func engine32() *engine[float32] {
	switch kernels.Active() {
	case kernels.AMX:
		return &amx
	case kernels.AVX512:
		return &avx512
	case kernels.AVX2:
		return &avx2
	default:
		return &generic32
	}
}

func microAVX2(rows, k int, a, b *float32, bstride int, c *float32, cstride int, d *float32, dstride, blocks int) {
	kernelsAVX2[rows](k, a, b, bstride, c, cstride, d, dstride, blocks)
}

func microAVX512(rows, k int, a, b *float32, bstride int, c *float32, cstride int, d *float32, dstride, blocks int) {
	kernelsAVX512[rows](k, a, b, bstride, c, cstride, d, dstride, blocks)
}

func streamAVX2(rows, k int, a, b *float32, bstride int, c *float32, cstride int, d *float32, dstride, blocks int) {
	streamsAVX2[rows](k, a, b, bstride, c, cstride, d, dstride, blocks)
}

func streamAVX512(rows, k int, a, b *float32, bstride int, c *float32, cstride int, d *float32, dstride, blocks int) {
	streamsAVX512[rows](k, a, b, bstride, c, cstride, d, dstride, blocks)
}

func dotsAVX2(rows, k int, a, b *float32, bstride int, c *float32, cstride int, d *float32, dstride, blocks int) {
	dottersAVX2[rows](k, a, b, bstride, c, cstride, d, dstride, blocks)
}

func dotsAVX512(rows, k int, a, b *float32, bstride int, c *float32, cstride int, d *float32, dstride, blocks int) {
	dottersAVX512[rows](k, a, b, bstride, c, cstride, d, dstride, blocks)
}

// packAVX2 is packGeneric with vector instructions for whole panels of contiguous rows, and for lanes that are
// contiguous along k.
func packAVX2(dst []float32, width, lanes, k int, src []float32, laneStride, kStride int) {
	if laneStride == 1 && lanes == 16 && width == 16 && k > 0 {
		_, _ = dst[k*width-1], src[(k-1)*kStride+lanes-1]
		copyRowsAVX2(k, &src[0], kStride, &dst[0])
		return
	}
	if laneStride == 1 && lanes == 6 && width == 6 && k > 0 {
		_, _ = dst[k*width-1], src[(k-1)*kStride+lanes-1]
		copyTall6(k, &src[0], kStride, &dst[0])
		return
	}
	packTransposing(transposeAVX2, dst, width, lanes, k, src, laneStride, kStride)
}

// packAVX512 is packAVX2 with wider panels.
func packAVX512(dst []float32, width, lanes, k int, src []float32, laneStride, kStride int) {
	if laneStride == 1 && lanes == 32 && width == 32 && k > 0 {
		_, _ = dst[k*width-1], src[(k-1)*kStride+lanes-1]
		copyRowsAVX512(k, &src[0], kStride, &dst[0])
		return
	}
	if laneStride == 1 && lanes == 12 && width == 12 && k > 0 {
		_, _ = dst[k*width-1], src[(k-1)*kStride+lanes-1]
		copyTall12(k, &src[0], kStride, &dst[0])
		return
	}
	packTransposing(transposeAVX512, dst, width, lanes, k, src, laneStride, kStride)
}

// packTransposing is the part for lanes that are contiguous along k; it leaves the rest to packGeneric.
func packTransposing[T element](transpose func(dst []T, width, lanes, k int, src []T, stride int), dst []T, width,
	lanes, k int, src []T, laneStride, kStride int) {
	if kStride != 1 || laneStride == 1 || lanes < 4 || k < 4 {
		packGeneric(dst, width, lanes, k, src, laneStride, kStride)
		return
	}
	transpose(dst, width, lanes, k, src, laneStride)
	if lanes < width {
		for p := range k {
			clear(dst[p*width+lanes : (p+1)*width])
		}
	}
}

// transposeAVX512 is transposeGeneric in squares of 16×16; what is left is transposeAVX2's.
func transposeAVX512(dst []float32, width, lanes, k int, src []float32, stride int) {
	whole, deep := lanes&^15, k&^15
	if whole > 0 && deep > 0 {
		_, _ = dst[(deep-1)*width+whole-1], src[(whole-1)*stride+deep-1]
	}
	// all of a row of dst before the next ones, which may lie in the same places of the cache
	for p := 0; p < deep; p += 16 {
		for lane := 0; lane < whole; lane += 16 {
			transpose16(&src[lane*stride+p], stride, &dst[p*width+lane], width)
		}
	}
	if deep < k && whole > 0 {
		transposeAVX2(dst[deep*width:], width, whole, k-deep, src[deep:], stride)
	}
	if whole < lanes {
		transposeAVX2(dst[whole:], width, lanes-whole, k, src[whole*stride:], stride)
	}
}

// transposeAVX2 is transposeGeneric for eight lanes at a time, or four.
func transposeAVX2(dst []float32, width, lanes, k int, src []float32, stride int) {
	blocks := k / 4
	if lanes < 4 || blocks == 0 {
		transposeGeneric(dst, width, lanes, k, src, stride)
		return
	}
	_, _ = dst[(k-1)*width+lanes-1], src[(lanes-1)*stride+k-1]
	lane := 0
	for ; lane+8 <= lanes; lane += 8 {
		transpose8(blocks, &src[lane*stride], stride, &dst[lane], width)
	}
	for lane < lanes {
		lane = min(lane, lanes-4) // the last group may overlap the one before: it writes the same values
		transpose4(blocks, &src[lane*stride], stride, &dst[lane], width)
		lane += 4
	}
	for p := 4 * blocks; p < k; p++ {
		for i := range lanes {
			dst[p*width+i] = src[i*stride+p]
		}
	}
}
