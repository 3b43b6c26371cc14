// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package gemm

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

//go:generate sh -c "cd ../_asm && go run ./gemm"

// kernel is engine.micro or direct.compute for a fixed number of rows.
type kernel[T element, B any] func(k int, a *T, b *B, bstride int, c *T, cstride int, d *T, dstride, blocks int)

// ofRows is engine.micro or direct.compute of the kernels for 1, 2, 3 … rows.
func ofRows[T element, B any](kernels ...kernel[T, B]) func(rows, k int, a *T, b *B, bstride int, c *T, cstride int,
	d *T, dstride, blocks int) {
	return func(rows, k int, a *T, b *B, bstride int, c *T, cstride int, d *T, dstride, blocks int) {
		kernels[rows-1](k, a, b, bstride, c, cstride, d, dstride, blocks)
	}
}

// upTo is a kernel for up to so many rows, and so many columns at once: direct.compute for those rows that no smaller
// one is for.
type upTo[T element, B any] struct {
	rows, columns int
	compute       func(rows, k int, a *T, b *B, bstride int, c *T, cstride int, d *T, dstride, blocks int)
}

// directOf are kernels in the order of their numbers of rows.
func directOf[T element, B any](whole int, kernels ...upTo[T, B]) direct[T, B] {
	widths, of := []int{0}, []upTo[T, B]{{}}
	for _, kernel := range kernels {
		for len(widths) <= kernel.rows {
			widths, of = append(widths, kernel.columns), append(of, kernel)
		}
	}
	return direct[T, B]{widths, whole, func(rows, k int, a *T, b *B, bstride int, c *T, cstride int, d *T, dstride,
		blocks int) {
		of[rows].compute(rows, k, a, b, bstride, c, cstride, d, dstride, blocks)
	}}
}

// aheadUpTo is upTo for directAhead.
type aheadUpTo[T element, B any] struct {
	rows, columns int
	compute       func(rows, k int, a *T, b *B, bstride int, c *T, cstride int, d *T, dstride, blocks int,
		ahead uintptr)
}

// aheadOf is directOf for directAhead.
func aheadOf[T element, B any](whole int, kernels ...aheadUpTo[T, B]) directAhead[T, B] {
	widths, of := []int{0}, []aheadUpTo[T, B]{{}}
	for _, kernel := range kernels {
		for len(widths) <= kernel.rows {
			widths, of = append(widths, kernel.columns), append(of, kernel)
		}
	}
	return directAhead[T, B]{widths: widths, whole: whole, compute: func(rows, k int, a *T, b *B, bstride int, c *T,
		cstride int, d *T, dstride, blocks int, ahead uintptr) {
		of[rows].compute(rows, k, a, b, bstride, c, cstride, d, dstride, blocks, ahead)
	}}
}

// with returns s with kernels for crowded columns.
func (s directAhead[T, B]) with(whole int, kernels ...aheadUpTo[T, B]) directAhead[T, B] {
	crowded := aheadOf(whole, kernels...)
	s.crowded = &crowded
	return s
}

// lanesOf is lanesAVX2 for a B of float32, 0, bfloat16, 1, or float16, 2.
func lanesOf[B any](of int) func(rows, k int, a *float32, b *B, bstride int, c *float32, cstride int, d *float32,
	dstride, blocks int, ahead uintptr) {
	return func(rows, k int, a *float32, b *B, bstride int, c *float32, cstride int, d *float32, dstride, blocks int,
		ahead uintptr) {
		lanesAVX2(rows, k, a, (*uint16)(unsafe.Pointer(b)), bstride, c, cstride, d, dstride, blocks, ahead, of)
	}
}

var (
	microAVX2   = ofRows(microAVX2x1, microAVX2x2, microAVX2x3, microAVX2x4, microAVX2x5, microAVX2x6)
	microAVX512 = ofRows(microAVX512x1, microAVX512x2, microAVX512x3, microAVX512x4, microAVX512x5, microAVX512x6,
		microAVX512x7, microAVX512x8, microAVX512x9, microAVX512x10, microAVX512x11, microAVX512x12)

	streamAVX2 = directOf(1, upTo[float32, float32]{1, 64, streamAVX2x1},
		upTo[float32, float32]{2, 48, streamAVX2x2}, upTo[float32, float32]{3, 32, streamAVX2x3},
		upTo[float32, float32]{4, 24, streamAVX2x4})
	streamAVX512 = directOf(1, upTo[float32, float32]{1, 256, streamAVX512x1},
		upTo[float32, float32]{2, 192, streamAVX512x2}, upTo[float32, float32]{3, 128, streamAVX512x3},
		upTo[float32, float32]{4, 96, streamAVX512x4}, upTo[float32, float32]{6, 64, streamAVX512x6},
		upTo[float32, float32]{8, 48, streamAVX512x8})

	dotsAVX2 = aheadOf(8, aheadUpTo[float32, float32]{2, 16, dotsAVX2x2},
		aheadUpTo[float32, float32]{5, 8, dotsAVX2x5}, aheadUpTo[float32, float32]{8, 8, lanesOf[float32](0)})
	dotsAVX512 = aheadOf(16, aheadUpTo[float32, float32]{1, 32, dotsAVX512x1},
		aheadUpTo[float32, float32]{12, 16, dotsAVX512x12}).with(16,
		aheadUpTo[float32, float32]{2, 16, dotsAVX2x2}, aheadUpTo[float32, float32]{5, 8, dotsAVX2x5},
		aheadUpTo[float32, float32]{12, 16, dotsAVX512x12})

	packAVX2 = (&packing[float32, float32]{16, 6, copyRowsAVX2, copyTallAVX2x6, transposeAVX2,
		packGeneric[float32]}).pack
	packAVX512 = (&packing[float32, float32]{32, 12, copyRowsAVX512, copyTallAVX512x12, transposeAVX512,
		packGeneric[float32]}).pack
)

// The tilings for processors whose second-level cache is not large.
var (
	avx2Tiling   = tiling{mr: 6, nr: 16, mb: 2064, tm: 96, ka: kc, nb: 512, kb: 4 * kc, skinny: 96, narrow: 12}
	avx512Tiling = tiling{mr: 12, nr: 32, mb: 2064, tm: 96, ka: kc, nb: 512, kb: 4 * kc, skinny: 144, narrow: 24}
)

var (
	avx2 = engine[float32]{
		tiling: avx2Tiling.on(kernels.LargeL2()),
		micro:  microAVX2,
		rows:   rowsAVX2x6Prefetch,
		tall:   tallAVX2x6Prefetch,
		outer:  outer[float32]{32, outerAVX2, outerAVX2NonTemporal, fence},
		stream: streamAVX2,
		gemvRows: gemvRows[float32]{4, 32, gemvRowsAVX2x1, gemvRowsAVX2x4, gemvRowsAVX2x4Prefetch, addBlocksAVX2,
			limits},
		splitKLimits: splitKLimits32,
		dots:         dotsAVX2,
		pack:         packAVX2,
		copyA:        copyPanelsAAVX2,
		copyB:        copyPanelsBAVX2,

		transpose: transposeAVX2,
		strided:   stridedAVX2,
	}
	avx512 = engine[float32]{
		tiling:  avx512Tiling.on(kernels.LargeL2()),
		micro:   microAVX512,
		rows:    rowsAVX512x12Prefetch,
		tall:    tallAVX512x12Prefetch,
		keeping: rowsAVX512x12Keeping,
		outer:   outer[float32]{64, outerAVX512, outerAVX512NonTemporal, fence},
		stream:  streamAVX512,
		gemvRows: gemvRows[float32]{4, 64, gemvRowsAVX512x1, gemvRowsAVX512x4, gemvRowsAVX512x4Prefetch,
			addBlocksAVX512, limits},
		splitKLimits: splitKLimits32,
		dots:         dotsAVX512,
		gemvHalves:   gemvHalves[float32]{16, gemvHalvesAVX512},
		gemvColumns:  gemvColumns[float32]{8, 16, gemvColumnsAVX512, gemvColumnsCrowdedAVX512},
		pack:         packAVX512,
		copyA:        copyPanelsAAVX512,
		copyB:        copyPanelsBAVX512,

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

// packing is how a variant packs elements of S.
type packing[T element, S any] struct {
	wide, tall         int // lanes of a whole panel of B, and of A
	copyWide, copyTall func(k int, src *S, stride int, dst *T)
	transpose          func(dst []T, width, lanes, k int, src []S, stride int)
	generic            func(dst []T, width, lanes, k int, src []S, laneStride, kStride int)
}

// pack is generic with vector instructions for whole panels of contiguous rows, and for lanes that are contiguous along
// k.
func (p *packing[T, S]) pack(dst []T, width, lanes, k int, src []S, laneStride, kStride int) {
	switch {
	case k > 0 && laneStride == 1 && width == lanes && (lanes == p.wide || lanes == p.tall):
		_, _ = dst[k*width-1], src[(k-1)*kStride+lanes-1]
		if lanes == p.wide {
			p.copyWide(k, &src[0], kStride, &dst[0])
		} else {
			p.copyTall(k, &src[0], kStride, &dst[0])
		}
	case kStride == 1 && laneStride != 1 && lanes >= 4 && k >= 4:
		p.transpose(dst, width, lanes, k, src, laneStride)
		for i := 0; lanes < width && i < k; i++ {
			clear(dst[i*width+lanes : (i+1)*width])
		}
	default:
		p.generic(dst, width, lanes, k, src, laneStride, kStride)
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
			transposeAVX512x16(&src[lane*stride+p], stride, &dst[p*width+lane], width)
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
		transposeAVX2x8(blocks, &src[lane*stride], stride, &dst[lane], width)
	}
	for lane < lanes {
		lane = min(lane, lanes-4) // the last group may overlap the one before: it writes the same values
		transposeAVX2x4(blocks, &src[lane*stride], stride, &dst[lane], width)
		lane += 4
	}
	for p := 4 * blocks; p < k; p++ {
		for i := range lanes {
			dst[p*width+i] = src[i*stride+p]
		}
	}
}
