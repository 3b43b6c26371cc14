// SPDX-License-Identifier: Apache-2.0

package rng

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The package's own logarithm, sine and cosine agree with package math to a few units in the last place.
func TestElementaryFunctions(t *testing.T) {
	require.Equal(t, 0.0, logUnit(1))
	for i := range uint64(20000) {
		u := (float64(Uint64At(1, 0, i)>>11) + 0.5) * 0x1p-53
		if i < 64 {
			u = math.Ldexp(0.5, -int(i))
		}
		require.InEpsilon(t, math.Log(u), logUnit(u), 4e-15)
		angle := Uint32At(2, 0, i)
		if i < 256 {
			angle = uint32(i) << 24 // octant borders among them
		}
		sin, cos := sincosTurn(float64(angle) * 0x1p-32)
		wantSin, wantCos := math.Sincos(2 * math.Pi * float64(angle) * 0x1p-32)
		require.InDelta(t, wantSin, sin, 1e-15)
		require.InDelta(t, wantCos, cos, 1e-15)
	}
}
