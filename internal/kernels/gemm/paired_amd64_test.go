// SPDX-License-Identifier: Apache-2.0

//go:build !noasm

package gemm

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
	"github.com/lockstep-ml/lockstep/internal/lacking"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// TestPairsWidened takes the kernels for tiny magnitudes for all, and panels of pairs on processors that lack the
// instruction.
func TestPairsWidened(t *testing.T) {
	kernelstest.Want(t, kernels.AVX512)
	restore, err := kernels.Force(kernels.AVX512)
	require.NoError(t, err)
	defer restore()
	of := avx512BF16
	of.pairing = &pairing[float32]{packPairsAVX512, microWidenedAVX512, microWidenedAVX512}
	rapid.Check(t, func(t *rapid.T) {
		h := drawPaired(t, -20)
		got := h.run(t, func(p *parallel.Pool, m, n, k int, a, b Matrix[float32], c Rows[float32], accumulate bool) {
			q := newProblem(m, n, k, a, b, c, accumulate)
			q.halfA, q.halfB = half[float32]{asBits(h.a16), &of}, half[float32]{asBits(h.b16), &of}
			multiply(p, engine32(), q)
		}, nil)
		requireSameBits(t, h.run(t, Float32, nil), got, h.String())
	})
}

// TestPairsByInstruction takes VDPBF16PS on processors that have it and are faster without: the tests of products take
// what is faster.
func TestPairsByInstruction(t *testing.T) {
	kernelstest.Want(t, kernels.AVX512)
	if !kernels.Has(kernels.FeatureAVX512BF16) {
		lacking.Skip(t, lacking.Variants, "avx512_bf16", "the processor lacks AVX512_BF16")
	}
	restore, err := kernels.Force(kernels.AVX512)
	require.NoError(t, err)
	defer restore()
	faster := formatAVX512
	defer func() { formatAVX512 = faster }()
	of := avx512BF16
	of.pairing = &pairingAVX512
	formatAVX512 = func() *format[float32] { return &of }
	require.True(t, dotsAsWidened())
	pool := parallel.New(2)
	defer pool.Close()
	requireTinyMagnitudes(t, pool)
	requireDenormalSums(t)
	requirePairedNonFinite(t)
}

// TestPairsKnowTheirLeast compares the least magnitude of a panel with that of its elements.
func TestPairsKnowTheirLeast(t *testing.T) {
	kernelstest.Want(t, kernels.AVX512)
	rapid.Check(t, func(t *rapid.T) {
		lanes, k := rapid.IntRange(1, 32).Draw(t, "lanes"), rapid.IntRange(1, 70).Draw(t, "k")
		src := rapid.SliceOfN(rapid.Uint16(), lanes*k, lanes*k).Draw(t, "src")
		want := uint32(1 << 16)
		for _, x := range src {
			if x &= 0x7fff; x != 0 {
				want = min(want, uint32(x))
			}
		}
		dst := make([]float32, (k+1)/2*32)
		require.Equal(t, want, packPairsAVX512(dst, 32, lanes, k, src, k, 1, padA))
		require.Equal(t, want, packPairsAVX512(dst, 32, lanes, k, src, 1, lanes, padB))
		require.Equal(t, want, packPairsAVX512(dst, lanes, lanes, k, src, 1, lanes, padB))
	})
}
