// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package winograd

import "github.com/lockstep-ml/lockstep/internal/kernels"

//go:generate sh -c "cd ../_asm && go run ./winograd"

// vectors are the vector versions of a transform.
type vectors struct {
	avx512, avx2 func(blocks int, dst *float32, drow, dcol int, src *float32, srow, scol int)
}

var (
	inputVectors      = vectors{inputAVX512, inputAVX2}
	outputVectors     = vectors{outputAVX512, outputAVX2}
	outputGradVectors = vectors{outputGradAVX512, outputGradAVX2}
	kernelVectors     = vectors{kernelAVX512, kernelAVX2}
	kernelGradVectors = vectors{kernelGradAVX512, kernelGradAVX2}
)

// apply does as many of n elements as fill vectors and returns their number.
func (v *vectors) apply(n int, dst []float32, to Square, src []float32, from Square) int {
	lanes, run := 0, v.avx512
	switch kernels.Vectors() {
	case kernels.AVX512:
		lanes = 16
	case kernels.AVX2:
		lanes, run = 8, v.avx2
	default:
		return 0
	}
	blocks := n / lanes
	if blocks > 0 {
		run(blocks, &dst[0], to.Row, to.Col, &src[0], from.Row, from.Col)
	}
	return blocks * lanes
}
