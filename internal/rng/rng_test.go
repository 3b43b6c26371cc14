// SPDX-License-Identifier: Apache-2.0

package rng_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/internal/rng"
)

// The known answers of Random123's kat_vectors for philox4x32 with 10 rounds.
func TestPhiloxKnownAnswers(t *testing.T) {
	const ones = 0xffffffff
	for _, k := range []struct {
		key            uint64
		c0, c1, c2, c3 uint32
		want           rng.Block
	}{
		{0, 0, 0, 0, 0, rng.Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{math.MaxUint64, ones, ones, ones, ones, rng.Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{0x299f31d0a4093822, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344,
			rng.Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		require.Equal(t, k.want, rng.Philox(k.key, k.c0, k.c1, k.c2, k.c3))
	}
	// The address: block number low, position high.
	require.Equal(t, rng.Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		rng.At(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88))
}

// These values are part of the checkpoint format: a change of any of them breaks resuming.
func TestGolden(t *testing.T) {
	require.Equal(t, []uint64{0xf7cadd881990cf7e, 0x8ad0aa34754c92f3, 0x8d8bbb0f396b8e6a, 0x37c14c0f779ca34,
		0x8692b477373de15f, 0xf75e4aa36a2fa50b}, []uint64{
		rng.Key(0, "", 0), rng.Key(42, "transformer.h.0.attn.dropout", 0),
		rng.Key(42, "transformer.h.0.attn.dropout", 1),
		rng.Key(43, "12345678", 0), rng.Derive(0, "", 0), rng.Derive(rng.Key(42, "init", 0), "weight", 7),
	})
	key := rng.Key(42, "golden", 0)
	require.Equal(t, []uint32{0x6ac25954, 0x9ea78435, 0x1b158e73, 0xa28cc03c, 0x4097133b},
		drawn(5, key, 3, 1, rng.FillUint32))
	require.Equal(t, []float32{0.417028, 0.6197436, 0.10579765, 0.6349602, 0.2523052},
		drawn(5, key, 3, 1, rng.FillFloat32))
	require.Equal(t, []float64{0.10579767534968987, 0.2523052235215344, 0.7729073781554312},
		drawn(3, key, 3, 1, rng.FillFloat64))
	require.Equal(t, []float32{0.81487244, 0.7699246, 0.6034195, -0.013804253, 0.95299286},
		drawn(5, key, 3, 1, rng.FillNormal32))
	require.Equal(t, []float64{0.8158427990750406, 0.23804274106834056, -1.6424271957373808},
		drawn(3, key, 3, 1, rng.FillNormal64))
}

func drawn[T any](n int, key, position, first uint64, fill func([]T, uint64, uint64, uint64)) []T {
	out := make([]T, n)
	fill(out, key, position, first)
	return out
}

func TestKeysDiffer(t *testing.T) {
	seen := map[uint64]string{}
	add := func(k uint64, what string) {
		require.NotContains(t, seen, k, what)
		seen[k] = what
	}
	for _, path := range []string{"", "a", "b", "a\x00", "ab", "abcdefgh", "abcdefgh\x00", "abcdefghi", "h.0", "h.1",
		"h.10"} {
		for seed := range uint64(8) {
			for ordinal := range uint64(8) {
				add(rng.Key(seed, path, ordinal), "key "+path)
				add(rng.Derive(seed, path, ordinal), "derive "+path)
			}
		}
	}
}

// Flipping any input bit flips about half of the key's bits.
func TestKeyAvalanche(t *testing.T) {
	flips := 0
	for bit := range 64 {
		flips += ones(rng.Key(7, "p", 0) ^ rng.Key(7^1<<bit, "p", 0))
		flips += ones(rng.Key(7, "p", 0) ^ rng.Key(7, "p", 1<<bit))
	}
	require.InDelta(t, 32, float64(flips)/128, 2)
}

func ones(x uint64) (n int) {
	for ; x != 0; x &= x - 1 {
		n++
	}
	return n
}

// Element i depends only on key, position and i, however the range is cut.
func TestFillIndependentOfChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key, position := rapid.Uint64().Draw(t, "key"), rapid.Uint64().Draw(t, "position")
		first := rapid.Uint64Range(0, 1<<40).Draw(t, "first")
		n := rapid.IntRange(0, 41).Draw(t, "n")
		cut := rapid.IntRange(0, n).Draw(t, "cut")
		check(t, n, cut, key, position, first, rng.FillUint32, rng.Uint32At)
		check(t, n, cut, key, position, first, rng.FillFloat32, rng.Float32At)
		check(t, n, cut, key, position, first, rng.FillFloat64, rng.Float64At)
		check(t, n, cut, key, position, first, rng.FillNormal32, rng.Normal32At)
		check(t, n, cut, key, position, first, rng.FillNormal64, rng.Normal64At)
		p := rapid.Float64Range(0, 1).Draw(t, "p")
		kept := rng.Uint32At(key, position, first)>>8 >= rng.KeepThreshold(p)
		require.Equal(t, float64(rng.Float32At(key, position, first)) >= p, kept)
	})
}

func check[T any](t *rapid.T, n, cut int, key, position, first uint64, fill func([]T, uint64, uint64, uint64),
	at func(key, position, element uint64) T) {
	whole := make([]T, n)
	fill(whole, key, position, first)
	parts := make([]T, n)
	fill(parts[:cut], key, position, first)
	fill(parts[cut:], key, position, first+uint64(cut))
	require.Equal(t, whole, parts)
	for i := range whole {
		require.Equal(t, at(key, position, first+uint64(i)), whole[i])
	}
}

func TestUnitRange(t *testing.T) {
	require.Equal(t, float32(0), rng.Unit32(0xff))
	require.Less(t, rng.Unit32(math.MaxUint32), float32(1))
	require.Equal(t, 0.0, rng.Unit64(0x7ff))
	require.Less(t, rng.Unit64(math.MaxUint64), 1.0)
}

func TestUniformMoments(t *testing.T) {
	const n = 1 << 17
	u := drawn(n, rng.Key(1, "moments", 0), 0, 0, rng.FillFloat32)
	var sum, square float64
	var bins [64]float64
	for _, x := range u {
		sum += float64(x)
		square += float64(x) * float64(x)
		bins[int(x*64)]++
	}
	require.InDelta(t, 0.5, sum/n, 0.005)
	require.InDelta(t, 1./3, square/n, 0.005)
	require.Less(t, chiSquare(bins[:], n/64.), 120.) // 63 degrees of freedom: exceeded with probability 2e-5
}

func chiSquare(bins []float64, want float64) (x float64) {
	for _, b := range bins {
		x += (b - want) * (b - want) / want
	}
	return x
}

func TestNormalMoments(t *testing.T) {
	const n = 1 << 17
	z32 := drawn(n, rng.Key(1, "normal", 0), 5, 0, rng.FillNormal32)
	z64 := drawn(n, rng.Key(1, "normal", 0), 6, 0, rng.FillNormal64)
	for name, at := range map[string]func(i int) float64{
		"float32": func(i int) float64 { return float64(z32[i]) },
		"float64": func(i int) float64 { return z64[i] },
	} {
		var m [5]float64
		var lag1, within1 float64
		for i := range n {
			x := at(i)
			require.False(t, math.IsNaN(x) || math.IsInf(x, 0))
			for k, p := 1, x; k <= 4; k, p = k+1, p*x {
				m[k] += p / n
			}
			if i > 0 {
				lag1 += x * at(i-1) / n
			}
			if math.Abs(x) < 1 {
				within1++
			}
		}
		require.InDelta(t, 0, m[1], 0.015, name)
		require.InDelta(t, 1, m[2], 0.02, name)
		require.InDelta(t, 0, m[3], 0.04, name)
		require.InDelta(t, 3, m[4], 0.12, name)
		require.InDelta(t, 0, lag1, 0.015, name)
		require.InDelta(t, 0.682689, within1/n, 0.006, name)
	}
}

func TestKeepThreshold(t *testing.T) {
	bits := make([]uint32, 1<<16)
	rng.FillUint32(bits, rng.Key(1, "keep", 0), 0, 0)
	for _, p := range []float64{0, 0.1, 0.5, 1} {
		kept := 0
		for _, x := range bits {
			if x>>8 >= rng.KeepThreshold(p) {
				kept++
			}
		}
		require.InDelta(t, 1-p, float64(kept)/float64(len(bits)), 0.01)
		if p == 0 || p == 1 {
			require.Equal(t, int((1-p)*float64(len(bits))), kept)
		}
	}
	for _, p := range []float64{-0.1, 1.5, math.NaN()} {
		require.Panics(t, func() { rng.KeepThreshold(p) })
	}
}

func BenchmarkFill(b *testing.B) {
	f := make([]float32, 4096)
	b.Run("uniform", func(b *testing.B) {
		b.SetBytes(4 * 4096)
		for b.Loop() {
			rng.FillFloat32(f, 1, 2, 0)
		}
	})
	b.Run("normal", func(b *testing.B) {
		b.SetBytes(4 * 4096)
		for b.Loop() {
			rng.FillNormal32(f, 1, 2, 0)
		}
	})
}
