// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package gemm

// stridedKernel is engine.strided for a fixed number of rows.
type stridedKernel[T element] func(k int, a *T, ars, acs int, b *T, brs int, c *T, crs, add, count, astep, bstep,
	cstep int, next, step uintptr)

var (
	stridedsAVX2 = [...]stridedKernel[float32]{nil, stridedAVX2x1, stridedAVX2x2, stridedAVX2x3, stridedAVX2x4,
		stridedAVX2x5, stridedAVX2x6}
	stridedsAVX512 = [...]stridedKernel[float32]{nil, stridedAVX512x1, stridedAVX512x2, stridedAVX512x3,
		stridedAVX512x4, stridedAVX512x5, stridedAVX512x6,
		stridedAVX512x7, stridedAVX512x8, stridedAVX512x9, stridedAVX512x10, stridedAVX512x11, stridedAVX512x12}
	stridedsAVX2F64 = [...]stridedKernel[float64]{nil, stridedAVX2F64x1, stridedAVX2F64x2, stridedAVX2F64x3,
		stridedAVX2F64x4, stridedAVX2F64x5, stridedAVX2F64x6}
	stridedsAVX512F64 = [...]stridedKernel[float64]{nil, stridedAVX512F64x1, stridedAVX512F64x2, stridedAVX512F64x3,
		stridedAVX512F64x4, stridedAVX512F64x5, stridedAVX512F64x6,
		stridedAVX512F64x7, stridedAVX512F64x8, stridedAVX512F64x9, stridedAVX512F64x10, stridedAVX512F64x11,
		stridedAVX512F64x12}
)

func stridedAVX2(rows, k int, a *float32, ars, acs int, b *float32, brs int, c *float32, crs, add, count, astep, bstep,
	cstep int, next, step uintptr) {
	stridedsAVX2[rows](k, a, ars, acs, b, brs, c, crs, add, count, astep, bstep, cstep, next, step)
}

func stridedAVX512(rows, k int, a *float32, ars, acs int, b *float32, brs int, c *float32, crs, add, count, astep,
	bstep, cstep int, next, step uintptr) {
	stridedsAVX512[rows](k, a, ars, acs, b, brs, c, crs, add, count, astep, bstep, cstep, next, step)
}

func stridedAVX2F64(rows, k int, a *float64, ars, acs int, b *float64, brs int, c *float64, crs, add, count, astep,
	bstep, cstep int, next, step uintptr) {
	stridedsAVX2F64[rows](k, a, ars, acs, b, brs, c, crs, add, count, astep, bstep, cstep, next, step)
}

func stridedAVX512F64(rows, k int, a *float64, ars, acs int, b *float64, brs int, c *float64, crs, add, count, astep,
	bstep, cstep int, next, step uintptr) {
	stridedsAVX512F64[rows](k, a, ars, acs, b, brs, c, crs, add, count, astep, bstep, cstep, next, step)
}
