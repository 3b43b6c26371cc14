package gemm

import "fmt"

// Transpose sets dst[p·width + i] = src[i·stride + p] for i < lanes and p < k, by the engine's packing: bits are moved as they are. It is the
// piece of a transposing copy that fits into the first-level cache. It panics if lanes is more than width or a slice too short.
func Transpose(dst []float32, width, lanes, k int, src []float32, stride int) {
	if lanes == 0 || k == 0 {
		return
	}
	if lanes < 0 || k < 0 || lanes > width || len(dst) < k*width || len(src) < (lanes-1)*stride+k {
		panic(fmt.Sprintf("gemm: transposing %d lanes of %d elements, %d apart, of %d to rows of %d, of %d", lanes, k, stride, len(src), width, len(dst)))
	}
	engine32().pack(dst, width, lanes, k, src, stride, 1)
}
