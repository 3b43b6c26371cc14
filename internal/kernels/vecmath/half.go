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
