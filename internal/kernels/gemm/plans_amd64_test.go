// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package gemm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlans: which plan computes what on some processors, as testdata/plans.txt says; each plan computes something. It
// runs no kernel, so that it needs none of the processors. Run it with -v to see the table.
func TestPlans(t *testing.T) {
	on := func(e engine[float32], t tiling) engine[float32] {
		e.tiling = t
		return e
	}
	pairs := avx512BF16
	pairs.pairing = &pairingAVX512
	reached := requirePlans(t, "plans.txt", []processor{
		{"AVX2, 8 ways", on(avx2, avx2Tiling.on(false)), &avx2BF16, 8, false},
		{"AVX-512, 8 ways", on(avx512, avx512Tiling.on(false)), &avx512BF16, 8, false},
		{"AVX-512, 12 ways, pairs of bfloat16", on(avx512, avx512Tiling.on(false)), &pairs, 12, false},
		{"AVX-512, 12 ways, large second-level cache, pairs of bfloat16", on(avx512, avx512Tiling.on(true)), &pairs, 12,
			true},
		{"AMX, 12 ways, large second-level cache", on(amx, avx512Tiling.on(true)), &pairs, 12, true},
	})
	for _, p := range plans32 {
		require.Contains(t, reached, p.name)
	}
}
