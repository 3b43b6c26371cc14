// SPDX-License-Identifier: Apache-2.0

package gemm

import "fmt"

// UnfoldSlack is the number of elements that [Unfold] may read and write beyond the last window.
const UnfoldSlack = 16

// Unfold copies what windows see, one after the other: dst[j·pitch + (p·rows + a)·run + e] = src[j·step + p·planeStride
// + a·rowStride + e] for j < places, p < planes, a < rows and e < run. It may write anything to up to [UnfoldSlack]
// elements behind each window, in dst before the next window, and reads as many behind runs. It panics if a number is
// negative or a slice shorter than that.
func Unfold(dst []float32, pitch, places int, src []float32, step, planes, planeStride, rows, rowStride, run int) {
	if places == 0 || planes == 0 || rows == 0 || run == 0 {
		return
	}
	window := planes * rows * run
	needed := (places-1)*step + (planes-1)*planeStride + (rows-1)*rowStride + run + UnfoldSlack
	if min(places, planes, rows, run, step, planeStride, rowStride) < 0 || pitch < window ||
		len(dst) < (places-1)*pitch+window+UnfoldSlack || len(src) < needed {
		panic(
			fmt.Sprintf("gemm: unfolding %d windows of %d×%d runs of %d elements, %d, %d and %d apart, of %d "+
				"elements: want %d, to %d, %d apart",
				places, planes, rows, run, step, planeStride, rowStride, len(src), needed, len(dst), pitch))
	}
	unfold32(dst, pitch, places, src, step, planes, planeStride, rows, rowStride, run)
}

// unfoldGeneric is Unfold in portable Go.
func unfoldGeneric(dst []float32, pitch, places int, src []float32, step, planes, planeStride, rows, rowStride,
	run int) {
	for j := range places {
		to := dst[j*pitch:]
		for p := range planes {
			for a := range rows {
				from := src[j*step+p*planeStride+a*rowStride:]
				copy(to[(p*rows+a)*run:][:run], from)
			}
		}
	}
}
