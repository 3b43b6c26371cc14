// SPDX-License-Identifier: Apache-2.0

package gemm

import "fmt"

// Transpose sets dst[p·width + i] = src[i·stride + p] for i < lanes and p < k: it moves bits as they are. It panics if
// lanes is more than width or a slice too short.
func Transpose(dst []float32, width, lanes, k int, src []float32, stride int) {
	if lanes == 0 || k == 0 {
		return
	}
	if lanes < 0 || k < 0 || lanes > width || len(dst) < (k-1)*width+lanes || len(src) < (lanes-1)*stride+k {
		panic(fmt.Sprintf("gemm: transposing %d lanes of %d elements, %d apart, of %d to rows of %d, of %d", lanes, k,
			stride, len(src), width, len(dst)))
	}
	engine32().transpose(dst, width, lanes, k, src, stride)
}

// transposeGeneric is Transpose in portable Go.
func transposeGeneric[T element](dst []T, width, lanes, k int, src []T, stride int) {
	for i := range lanes {
		lane := src[i*stride : i*stride+k]
		for p, v := range lane {
			dst[p*width+i] = v
		}
	}
}
