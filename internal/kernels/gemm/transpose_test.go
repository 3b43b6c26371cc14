// SPDX-License-Identifier: Apache-2.0

package gemm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

func TestTranspose(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, k := range [][3]int{{32, 32, 32}, {40, 37, 35}, {16, 16, 19}, {40, 37, 35}, {16, 16, 19}, {32, 7, 5},
			{3, 3, 33}, {9, 4, 1}, {5, 0, 3}, {5, 2, 0}} {
			width, lanes, n := k[0], k[1], k[2]
			src, dst, want := make([]float32, lanes*40), make([]float32, width*n), make([]float32, width*n)
			for i := range src {
				src[i] = float32(i + 1)
			}
			for i := range lanes {
				for p := range n {
					want[p*width+i] = src[i*40+p]
				}
			}
			gemm.Transpose(dst, width, lanes, n, src, 40)
			require.Equal(t, want, dst, "%v", k)
		}
		require.Panics(t, func() { gemm.Transpose(make([]float32, 8), 4, 4, 3, make([]float32, 99), 10) })
		require.Panics(t, func() { gemm.Transpose(make([]float32, 99), 4, 5, 3, make([]float32, 99), 10) })
		require.Panics(t, func() { gemm.Transpose(make([]float32, 99), 4, 4, 3, make([]float32, 32), 10) })
	})
}
