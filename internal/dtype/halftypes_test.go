// SPDX-License-Identifier: Apache-2.0

package dtype

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHalfRoundTripIsExactForEveryPattern(t *testing.T) {
	for i := range 1 << 16 {
		if f := F16(i).Float32(); f == f {
			require.Equal(t, F16(i), ToF16(f), "binary16 %#04x = %g", i, f)
		} else {
			require.True(t, ToF16(f)&0x7c00 == 0x7c00 && ToF16(f)&0x3ff != 0, "NaN %#04x", i)
		}
		if f := BF16(i).Float32(); f == f {
			require.Equal(t, BF16(i), ToBF16(f), "bfloat16 %#04x = %g", i, f)
		} else {
			require.True(t, ToBF16(f).Float32() != ToBF16(f).Float32(), "NaN %#04x", i)
		}
	}
}

// Halfway points between neighbours go to the even one, everything else to the nearer.
func TestHalfRoundsToNearestEven(t *testing.T) {
	for i := range 0x7bff {
		lo, hi := F16(i).Float32(), F16(i+1).Float32()
		mid := (lo + hi) / 2 // exact in float32
		even := F16(i + i&1)
		require.Equal(t, even, ToF16(mid), "between %g and %g", lo, hi)
		require.Equal(t, F16(i), ToF16(math.Nextafter32(mid, lo)))
		require.Equal(t, F16(i+1), ToF16(math.Nextafter32(mid, hi)))
	}
	require.Equal(t, F16(0x7c00), ToF16(65520))
	require.Equal(t, F16(0x7bff), ToF16(65519))
	require.Equal(t, BF16(0x3f80), ToBF16(1+1.0/256))
	require.Equal(t, BF16(0x3f82), ToBF16(1+3.0/256))
}

func TestParse(t *testing.T) {
	for _, d := range All() {
		got, err := Parse(d.String())
		require.NoError(t, err)
		require.Equal(t, d, got)
	}
	_, err := Parse("float8")
	require.ErrorContains(t, err, `"float8"`)
}
