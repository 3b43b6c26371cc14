// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package main

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/kernels"
)

// fmaAVX2 runs turns of 24 fused multiply-adds on vectors of 8; x has 12 sums, which it changes, and 2 × 2 factors.
//
//go:noescape
func fmaAVX2(turns int, x *float32)

// fmaAVX512 runs turns of 32 fused multiply-adds on vectors of 16; x has 16 sums, which it changes, and 4 × 4 factors.
//
//go:noescape
func fmaAVX512(turns int, x *float32)

// fmaVectors are the vectors of floats that a variant's turn works on: sums, then factors.
var fmaVectors = map[kernels.Variant]struct{ sums, factors, width int }{kernels.AVX2: {12, 4, 8},
	kernels.AVX512: {16, 8, 16}}

// fmaTurns runs turns of a variant's fused multiply-adds on what fmaOperands made and returns the number of operations.
func fmaTurns(v kernels.Variant, turns int, x []float32) float64 {
	switch v {
	case kernels.AVX512:
		fmaAVX512(turns, &x[0])
	case kernels.AVX2:
		fmaAVX2(turns, &x[0])
	}
	return float64(turns) * 2 * 2 * float64(fmaVectors[v].sums*fmaVectors[v].width)
}

// fmaOperands are sums of 2 to 4 and factors of ½ to 1, all different: what is added to a sum leaves it between 1 and
// 5.
func fmaOperands(v kernels.Variant) []float32 {
	n := fmaVectors[v]
	x := make([]float32, (n.sums+n.factors)*n.width)
	for i := range x {
		x[i] = 0.5 + float32(i*7919%1009)/2018
	}
	for i := range n.sums * n.width {
		x[i] *= 4
	}
	return x
}

// triadAVX2 stores b + 3c in a, each of n elements, a positive multiple of 32.
//
//go:noescape
func triadAVX2(a, b, c *float32, n int)

// triadTurn stores b + 3c in a.
func triadTurn(a, b, c []float32) {
	n := 0
	if kernels.Vectors() != kernels.Generic {
		if n = len(a) &^ 31; n > 0 {
			triadAVX2(&a[0], &b[0], &c[0], n)
		}
	}
	for i := n; i < len(a); i++ {
		a[i] = b[i] + 3*c[i]
	}
}

// copyAVX2 copies n bytes, a positive multiple of 128. It prefetches both sides so many bytes ahead.
//
//go:noescape
func copyAVX2(dst, src *byte, n, ahead int)

// copyNonTemporalAVX2 copies n bytes, a positive multiple of 128, by non-temporal stores to a dst aligned to 32 bytes.
// It prefetches src so many bytes ahead.
//
//go:noescape
func copyNonTemporalAVX2(dst, src *byte, n, ahead int)

// copyTurn copies src to dst and prefetches so many bytes ahead, by non-temporal stores if dst is aligned for them.
func copyTurn(dst, src []byte, ahead int, nonTemporal bool) {
	n := 0
	if kernels.Vectors() != kernels.Generic {
		if n = len(dst) &^ 127; n > 0 && nonTemporal && uintptr(unsafe.Pointer(&dst[0]))%32 == 0 {
			copyNonTemporalAVX2(&dst[0], &src[0], n, ahead)
		} else if n > 0 {
			copyAVX2(&dst[0], &src[0], n, ahead)
		}
	}
	copy(dst[n:], src[n:])
}
