// Package vecmath applies exponential functions to float32 slices: what softmax, GELU, SiLU and the losses spend their time on.
//
// Each element's result depends on that element (and the variant of the kernels) alone, wherever it stands in the slice. AVX2 and AVX-512 give the
// same bits; the generic version differs from them only by not fusing multiplication and addition.
//
// It is NOT a mathematics library: float64 code calls package math, and reductions belong to the operations that need them.
package vecmath

import "fmt"

// Exp sets dst[i] = e^(src[i]-shift), with an error below 2 units in the last place of the result for shift 0 (a shift adds the rounding of the
// difference). Results below the smallest subnormal are 0, those beyond the largest float32 are +Inf, and NaN stays NaN. dst may be src; else
// they must not overlap. It panics if the lengths differ.
func Exp(dst, src []float32, shift float32) {
	checkLengths(dst, src)
	expActive(dst, src, shift)
}

// Tanh sets dst[i] = tanh(src[i]), with an error below 3 units in the last place; the sign of zero and NaN are kept. dst may be src; else they
// must not overlap. It panics if the lengths differ.
func Tanh(dst, src []float32) {
	checkLengths(dst, src)
	tanhActive(dst, src)
}

func checkLengths(dst, src []float32) {
	if len(dst) != len(src) {
		panic(fmt.Sprintf("vecmath: dst has %d elements, want %d as src has", len(dst), len(src)))
	}
}
