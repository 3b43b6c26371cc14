// SPDX-License-Identifier: Apache-2.0

package rng_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
	"github.com/lockstep-ml/lockstep/internal/rng"
)

// TestFillUnderVariants holds the vectorised generator to single elements: odd beginnings and ends, long pieces, and a
// block number beyond 32 bits on the way.
func TestFillUnderVariants(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		const key, position = 0x123456789abcdef0, 0xfedcba9876543210
		for _, n := range []int{0, 3, 64, 67, 130, 1000, 70_001} {
			for _, first := range []uint64{0, 1, 7, 4<<32 - 64, 4<<32 - 20, 4<<32 + 3} {
				bits, uniform, normal := make([]uint32, n), make([]float32, n), make([]float32, n)
				rng.FillUint32(bits, key, position, first)
				rng.FillFloat32(uniform, key, position, first)
				rng.FillNormal32(normal, key, position, first)
				for i := 0; i < n; i += 1 + n/2000 {
					element := first + uint64(i)
					if want := rng.Uint32At(key, position, element); bits[i] != want {
						require.Failf(t, "wrong bits", "element %d of %d from %d on: %#x: want %#x", i, n, first,
							bits[i], want)
					}
					require.True(t, uniform[i] == rng.Float32At(key, position, element), "uniform")
					require.True(t, normal[i] == rng.Normal32At(key, position, element), "normal")
				}
			}
		}
	})
}

func TestFillMakesNoGarbage(t *testing.T) {
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		f := make([]float32, 1001)
		require.Zero(t, testing.AllocsPerRun(3, func() {
			rng.FillFloat32(f, 1, 2, 3)
			rng.FillNormal32(f, 1, 2, 3)
		}))
	})
}
