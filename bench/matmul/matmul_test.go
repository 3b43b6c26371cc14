// SPDX-License-Identifier: Apache-2.0

// Package matmul times the engine's single-precision matrix product under each kernel variant; bench/kernels compares
// it with others.
//
// It is NOT a test of correctness: that is internal/kernels/gemm's own.
package matmul

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

func matrix(n int) []float32 {
	x := make([]float32, n*n)
	for i := range x {
		x[i] = rand.Float32() - 0.5
	}
	return x
}

// square times C = A·B for n×n matrices, contiguous and not transposed, and reports GFLOP/s.
func square(b *testing.B, p *parallel.Pool, n int) {
	x, y, z := matrix(n), matrix(n), make([]float32, n*n)
	for b.Loop() {
		gemm.Float32(p, n, n, n, gemm.Strided(x, n, 1), gemm.Strided(y, n, 1), gemm.InRows(z, n), false)
	}
	b.ReportMetric(2*float64(n)*float64(n)*float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}

// BenchmarkFloat32 runs each size under each kernel variant on the caller alone, then on all cores with the preferred
// variant.
func BenchmarkFloat32(b *testing.B) {
	sizes := []int{256, 512, 1024, 2048}
	for _, v := range kernels.Available() {
		restore, err := kernels.Force(v)
		if err != nil {
			b.Fatal(err)
		}
		for _, n := range sizes {
			b.Run(fmt.Sprintf("%s/1/%d", v, n), func(b *testing.B) { square(b, nil, n) })
		}
		restore()
	}
	p := parallel.New(0)
	defer p.Close()
	for _, n := range sizes {
		b.Run(fmt.Sprintf("%s/%d/%d", kernels.Active(), p.Workers(), n), func(b *testing.B) { square(b, p, n) })
	}
}
