//go:build !amd64 || noasm

package main

import "github.com/lockstep-ml/lockstep/internal/kernels"

// fmaTurns does nothing: portable Go has no fused multiply-add on vectors.
func fmaTurns(kernels.Variant, int) float64 { return 0 }

// triadTurn stores b + 3c in a.
func triadTurn(a, b, c []float32) {
	for i := range a {
		a[i] = b[i] + 3*c[i]
	}
}
