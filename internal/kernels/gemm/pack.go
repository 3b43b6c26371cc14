// SPDX-License-Identifier: Apache-2.0

package gemm

// together is the number of neighbouring panels that are packed at once where whole cache lines are read so.
const together = 4

// copyPanels sets dst[pitch·j + width·p + i] = src[p·stride + width·j + i] for i < width, the engine's mr or nr, j <
// together and p < k. A src of a half type is widened.
type copyPanels[T element, S element | uint16] func(k int, src *S, stride int, dst *T, pitch int)

// packGeneric copies lanes ≤ width strided vectors of length k side by side: dst[p·width + i] = src[i·laneStride +
// p·kStride] for i < lanes, and 0 for lanes ≤ i < width. A panel of A has its rows as lanes, a panel of B its columns.
// The zeros only ever reach elements beyond C's edge.
func packGeneric[T any](dst []T, width, lanes, k int, src []T, laneStride, kStride int) {
	if laneStride == 1 {
		for p := range k {
			row := dst[p*width : (p+1)*width]
			copy(row, src[p*kStride:p*kStride+lanes])
			clear(row[lanes:])
		}
		return
	}
	dst = dst[:k*width]
	for i := range lanes {
		lane := src[i*laneStride:]
		at := 0
		for to := i; to < len(dst); to += width {
			dst[to] = lane[at]
			at += kStride
		}
	}
	for i := lanes; i < width; i++ {
		for to := i; to < len(dst); to += width {
			dst[to] = *new(T)
		}
	}
}
