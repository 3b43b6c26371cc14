// SPDX-License-Identifier: Apache-2.0

package vecmath

import "github.com/lockstep-ml/lockstep/internal/dtype"

// WidenBF16 converts bfloat16 to float32, exactly.
func WidenBF16(dst []float32, src []dtype.BF16) {
	checkLengths(len(dst), len(src))
	done := widenBF16Vector(len(dst), first(dst), (*uint16)(first(src)))
	for i := done; i < len(dst); i++ {
		dst[i] = src[i].Float32()
	}
}

// RoundBF16 converts float32 to the nearest bfloat16, ties to even; a NaN stays a NaN.
func RoundBF16(dst []dtype.BF16, src []float32) {
	checkLengths(len(dst), len(src))
	done := roundBF16Vector(len(dst), (*uint16)(first(dst)), first(src))
	for i := done; i < len(dst); i++ {
		dst[i] = dtype.ToBF16(src[i])
	}
}

// WidenF16 converts float16 to float32, exactly; a NaN becomes a quiet one.
func WidenF16(dst []float32, src []dtype.F16) {
	checkLengths(len(dst), len(src))
	done := widenF16Vector(len(dst), first(dst), (*uint16)(first(src)))
	for i := done; i < len(dst); i++ {
		dst[i] = src[i].Float32()
	}
}

// RoundF16 converts float32 to the nearest float16, ties to even; a NaN stays a NaN.
func RoundF16(dst []dtype.F16, src []float32) {
	checkLengths(len(dst), len(src))
	done := roundF16Vector(len(dst), (*uint16)(first(dst)), first(src))
	for i := done; i < len(dst); i++ {
		dst[i] = dtype.ToF16(src[i])
	}
}
