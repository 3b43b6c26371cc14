//go:build !noasm

package vecmath

import "github.com/lockstep-ml/lockstep/internal/kernels"

// softmaxRowsVector is SoftmaxRows, unless it returns false, which is so under the generic variant.
func softmaxRowsVector(rows, n int, s *float32, stride int, most *float32, sum *float64, factor *float32, scale float32) bool {
	switch kernels.Active() {
	case kernels.AVX512:
		softmaxRowsAVX512(rows, n, s, stride, most, sum, factor, scale)
	case kernels.AVX2:
		softmaxRowsAVX2(rows, n, s, stride, most, sum, factor, scale)
	default:
		return false
	}
	return true
}

// scoreRowsVector is ScoreRows, unless it returns false.
func scoreRowsVector(rows, n int, s, d *float32, stride int, shift, delta *float32, base, scale float32) bool {
	switch kernels.Active() {
	case kernels.AVX512:
		scoreRowsAVX512(rows, n, s, d, stride, shift, delta, base, scale)
	case kernels.AVX2:
		scoreRowsAVX2(rows, n, s, d, stride, shift, delta, base, scale)
	default:
		return false
	}
	return true
}

// scaleRowsVector is ScaleRows, unless it returns false.
func scaleRowsVector(rows, n int, x *float32, stride int, factor *float32) bool {
	switch kernels.Active() {
	case kernels.AVX512:
		scaleRowsAVX512(rows, n, x, stride, factor)
	case kernels.AVX2:
		scaleRowsAVX2(rows, n, x, stride, factor)
	default:
		return false
	}
	return true
}
