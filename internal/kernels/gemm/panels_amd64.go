// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package gemm

import "github.com/lockstep-ml/lockstep/internal/kernels"

var (
	avx2Panels = panelKernels[float32]{16, []int{6, 4, 2}, []placedKernel[float32]{rowsAVX2x6, rowsAVX2x4, rowsAVX2x2},
		[]placedKernel[float32]{tallAVX2x6, tallAVX2x4, tallAVX2x2}, packAVX2}
	avx512Panels = panelKernels[float32]{32, []int{12, 8, 4},
		[]placedKernel[float32]{rowsAVX512x12, rowsAVX512x8, rowsAVX512x4},
		[]placedKernel[float32]{tallAVX512x12, tallAVX512x8, tallAVX512x4}, packAVX512}
)

// panels32 returns the kernels of the active variant for single precision.
func panels32() *panelKernels[float32] {
	switch kernels.Vectors() {
	case kernels.AVX512:
		return &avx512Panels
	case kernels.AVX2:
		return &avx2Panels
	default:
		return &genericPanels32
	}
}

// unfold32 is Unfold by the active variant, with short vectors for short runs.
func unfold32(dst []float32, pitch, places int, src []float32, step, planes, planeStride, rows, rowStride, run int) {
	switch v := kernels.Vectors(); {
	case v == kernels.AVX512 && run > 8:
		unfoldAVX512(places, &dst[0], pitch, &src[0], step, planes, planeStride, rows, rowStride, run, ceilDiv(run, 16))
	case v == kernels.AVX512 || v == kernels.AVX2:
		unfoldAVX2(places, &dst[0], pitch, &src[0], step, planes, planeStride, rows, rowStride, run, ceilDiv(run, 8))
	default:
		unfoldGeneric(dst, pitch, places, src, step, planes, planeStride, rows, rowStride, run)
	}
}
