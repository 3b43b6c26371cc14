// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package gemm

import "github.com/lockstep-ml/lockstep/internal/kernels"

var (
	microAVX2F64 = ofRows(microAVX2F64x1, microAVX2F64x2, microAVX2F64x3, microAVX2F64x4, microAVX2F64x5,
		microAVX2F64x6)
	microAVX512F64 = ofRows(microAVX512F64x1, microAVX512F64x2, microAVX512F64x3, microAVX512F64x4, microAVX512F64x5,
		microAVX512F64x6, microAVX512F64x7, microAVX512F64x8, microAVX512F64x9, microAVX512F64x10, microAVX512F64x11,
		microAVX512F64x12)

	packAVX2F64 = (&packing[float64, float64]{8, 6, copyRowsAVX2F64, copyTallAVX2F64x6, transposeF64,
		packGeneric[float64]}).pack
	packAVX512F64 = (&packing[float64, float64]{16, 12, copyRowsAVX512F64, copyTallAVX512F64x12, transposeF64,
		packGeneric[float64]}).pack
)

// The tilings for float64 and processors whose second-level cache is not large.
var (
	avx2F64Tiling   = tiling{mr: 6, nr: 8, mb: 1056, tm: 96, ka: kc, nb: 256, kb: 4 * kc, skinny: 96, narrow: 6}
	avx512F64Tiling = tiling{mr: 12, nr: 16, mb: 1056, tm: 96, ka: kc, nb: 256, kb: 4 * kc, skinny: 144, narrow: 12}
)

// The engines for float64: as many bytes are packed at once as for float32, except for A.
var (
	avx2F64 = engine[float64]{
		tiling:  avx2F64Tiling.on(kernels.LargeL2()),
		micro:   microAVX2F64,
		rows:    rowsAVX2F64x6Prefetch,
		tall:    tallAVX2F64x6Prefetch,
		strided: stridedAVX2F64,
		pack:    packAVX2F64,
		copyA:   copyPanelsAAVX2F64,
		copyB:   copyPanelsBAVX2F64,

		transpose: transposeF64,
	}
	avx512F64 = engine[float64]{
		tiling:  avx512F64Tiling.on(kernels.LargeL2()),
		micro:   microAVX512F64,
		rows:    rowsAVX512F64x12Prefetch,
		tall:    tallAVX512F64x12Prefetch,
		strided: stridedAVX512F64,
		broad:   broadAVX512F64x6,
		pack:    packAVX512F64,
		copyA:   copyPanelsAAVX512F64,
		copyB:   copyPanelsBAVX512F64,

		transpose: transposeF64,
	}
)

// engine64 returns the engine of the active variant for double precision.
func engine64() *engine[float64] {
	switch kernels.Vectors() {
	case kernels.AVX512:
		return &avx512F64
	case kernels.AVX2:
		return &avx2F64
	default:
		return &generic64
	}
}

// transposeF64 is transposeGeneric for four lanes at a time.
func transposeF64(dst []float64, width, lanes, k int, src []float64, stride int) {
	blocks := k / 4
	if lanes < 4 || blocks == 0 {
		transposeGeneric(dst, width, lanes, k, src, stride)
		return
	}
	_, _ = dst[(k-1)*width+lanes-1], src[(lanes-1)*stride+k-1]
	for lane := 0; lane < lanes; lane += 4 {
		lane = min(lane, lanes-4) // the last group may overlap the one before: it writes the same values
		transposeAVX2F64x4(blocks, &src[lane*stride], stride, &dst[lane], width)
	}
	if deep := 4 * blocks; deep < k {
		transposeGeneric(dst[deep*width:], width, lanes, k-deep, src[deep:], stride)
	}
}
