package gemm

// packGeneric copies lanes ≤ width strided vectors of length k side by side: dst[p·width + i] = src[i·laneStride + p·kStride] for i < lanes, and
// 0 for lanes ≤ i < width. A panel of A has its rows as lanes, a panel of B its columns. The zeros only ever reach elements beyond C's edge.
func packGeneric[T element](dst []T, width, lanes, k int, src []T, laneStride, kStride int) {
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
			dst[to] = 0
		}
	}
}
