// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || noasm

package main

import "github.com/lockstep-ml/lockstep/internal/kernels"

// fmaVectors is empty.
var fmaVectors map[kernels.Variant]struct{ sums, factors, width int }

// fmaTurns does nothing: portable Go has no fused multiply-add on vectors.
func fmaTurns(kernels.Variant, int, []float32) float64 { return 0 }

func fmaOperands(kernels.Variant) []float32 { return nil }

// triadTurn stores b + 3c in a.
func triadTurn(a, b, c []float32) {
	for i := range a {
		a[i] = b[i] + 3*c[i]
	}
}

// copyTurn copies src to dst.
func copyTurn(dst, src []byte, _ int, _ bool) { copy(dst, src) }
