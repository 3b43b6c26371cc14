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

// triadAVX2 stores b + 3c in a, each of n elements, a positive multiple of 32.
//
//go:noescape
func triadAVX2(a, b, c *float32, n int)

// triadTurn stores b + 3c in a.
func triadTurn(a, b, c []float32) {
	n := 0
	if kernels.Active() != kernels.Generic {
		if n = len(a) &^ 31; n > 0 {
			triadAVX2(&a[0], &b[0], &c[0], n)
		}
	}
	for i := n; i < len(a); i++ {
		a[i] = b[i] + 3*c[i]
	}
}
