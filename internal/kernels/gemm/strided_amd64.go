// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package gemm

import "unsafe"

// stridedKernel is engine.strided for a fixed number of rows.
type stridedKernel[T element] struct {
	rows int
	run  func(k int, a *T, ars, acs int, b *T, brs int, c *T, crs, add, count, astep, bstep, cstep int, next,
		step uintptr)
}

// byRows is engine.strided of kernels, the largest first: it computes numbers of rows that none is for as sums. A row's
// bits do not depend on the kernel.
func byRows[T element](kernels ...stridedKernel[T]) func(rows, k int, a *T, ars, acs int, b *T, brs int, c *T, crs, add,
	count, astep, bstep, cstep int, next, step uintptr) {
	return func(rows, k int, a *T, ars, acs int, b *T, brs int, c *T, crs, add, count, astep, bstep, cstep int, next,
		step uintptr) {
		for _, kernel := range kernels {
			for rows >= kernel.rows {
				kernel.run(k, a, ars, acs, b, brs, c, crs, add, count, astep, bstep, cstep, next, step)
				if rows -= kernel.rows; rows == 0 {
					return
				}
				a = (*T)(unsafe.Add(unsafe.Pointer(a), kernel.rows*ars*int(unsafe.Sizeof(*a))))
				c = (*T)(unsafe.Add(unsafe.Pointer(c), kernel.rows*crs*int(unsafe.Sizeof(*c))))
			}
		}
	}
}

var (
	stridedAVX2 = byRows(stridedKernel[float32]{6, stridedAVX2x6}, stridedKernel[float32]{4, stridedAVX2x4},
		stridedKernel[float32]{2, stridedAVX2x2}, stridedKernel[float32]{1, stridedAVX2x1})
	stridedAVX512 = byRows(stridedKernel[float32]{12, stridedAVX512x12}, stridedKernel[float32]{8, stridedAVX512x8},
		stridedKernel[float32]{4, stridedAVX512x4}, stridedKernel[float32]{2, stridedAVX512x2},
		stridedKernel[float32]{1, stridedAVX512x1})
	stridedAVX2F64 = byRows(stridedKernel[float64]{6, stridedAVX2F64x6}, stridedKernel[float64]{4, stridedAVX2F64x4},
		stridedKernel[float64]{2, stridedAVX2F64x2}, stridedKernel[float64]{1, stridedAVX2F64x1})
	stridedAVX512F64 = byRows(stridedKernel[float64]{12, stridedAVX512F64x12},
		stridedKernel[float64]{8, stridedAVX512F64x8}, stridedKernel[float64]{4, stridedAVX512F64x4},
		stridedKernel[float64]{2, stridedAVX512F64x2}, stridedKernel[float64]{1, stridedAVX512F64x1})
)
