//go:build !noasm

package main

import "github.com/lockstep-ml/lockstep/internal/kernels"

// fmaAVX2 runs turns of 12 fused multiply-adds on vectors of 8.
//
//go:noescape
func fmaAVX2(turns int)

// fmaAVX512 runs turns of 16 fused multiply-adds on vectors of 16.
//
//go:noescape
func fmaAVX512(turns int)

// fmaTurns runs turns of a variant's fused multiply-adds and returns the number of operations.
func fmaTurns(v kernels.Variant, turns int) float64 {
	switch v {
	case kernels.AVX512:
		fmaAVX512(turns)
		return float64(turns) * 2 * 16 * 16
	case kernels.AVX2:
		fmaAVX2(turns)
		return float64(turns) * 2 * 12 * 8
	}
	return 0
}
