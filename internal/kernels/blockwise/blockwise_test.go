// SPDX-License-Identifier: Apache-2.0

package blockwise_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels/blockwise"
)

func maps() map[string]*blockwise.Map {
	return map[string]*blockwise.Map{"signed": blockwise.Signed(), "unsigned": blockwise.Unsigned()}
}

// The maps have the bits of bitsandbytes'.
func TestMapsGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/maps.json")
	require.NoError(t, err)
	var golden struct{ Maps map[string][]float32 }
	require.NoError(t, json.Unmarshal(text, &golden))
	for name, m := range maps() {
		require.Equal(t, golden.Maps[name], m.Values(), name)
	}
}

// Each code is that of the nearest number of the map, over all magnitudes.
func TestCodesAreTheNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, m := range maps() {
		values := m.Values()
		x := []float32{1, 0, -1, 1e-30, 1e-7, float32(math.Copysign(0, -1))}
		for i := range 255 {
			middle := (values[i] + values[i+1]) / 2
			x = append(x, values[i], middle, math.Nextafter32(middle, -2), math.Nextafter32(middle, 2))
		}
		for range 20_000 {
			x = append(x, float32(math.Exp(-25*r.Float64())*float64(1-2*r.IntN(2))))
		}
		for len(x)%blockwise.Block != 0 {
			x = append(x, 0)
		}
		for lo := 0; lo < len(x); lo += blockwise.Block {
			block := append([]float32{1}, x[lo:lo+blockwise.Block-1]...) // so that the scale is 1
			codes, scales := make([]uint8, len(block)), make([]float32, 1)
			m.Quantize(codes, scales, block)
			require.EqualValues(t, 1, scales[0])
			for i, v := range block {
				distance := func(k int) float64 { return math.Abs(float64(v) - float64(values[k])) }
				best := 0
				for k := range values {
					if distance(k) < distance(best) {
						best = k
					}
				}
				rounding := math.Abs(float64(v)) * 2e-7 // of the middle of two numbers
				require.LessOrEqual(t, distance(int(codes[i])), distance(best)+rounding, "%s: %v", name, v)
			}
		}
	}
}

// What is read back is near in each block by itself; blocks may be short, and zeros stay zeros.
func TestBlocksHaveScalesOfTheirOwn(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	x := make([]float32, 3*blockwise.Block+7)
	for i := range x {
		if i/blockwise.Block != 1 {
			x[i] = float32(r.NormFloat64() * math.Pow(1000, float64(i/blockwise.Block)))
		}
	}
	m := blockwise.Signed()
	codes, scales, back := make([]uint8, len(x)), make([]float32, blockwise.Blocks(len(x))), make([]float32, len(x))
	m.Quantize(codes, scales, x)
	m.Dequantize(back, codes, scales)
	require.Len(t, scales, 4)
	require.Zero(t, scales[1])
	for i, v := range x {
		require.InDelta(t, v, back[i], 0.02*float64(scales[i/blockwise.Block]), "%d", i)
	}
}

func BenchmarkQuantize(b *testing.B) {
	m, n := blockwise.Signed(), 1<<17
	x, codes, scales := make([]float32, n), make([]uint8, n), make([]float32, n/blockwise.Block)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	b.Run("quantize", func(b *testing.B) {
		b.SetBytes(int64(n))
		for b.Loop() {
			m.Quantize(codes, scales, x)
		}
	})
	b.Run("dequantize", func(b *testing.B) {
		b.SetBytes(int64(n))
		for b.Loop() {
			m.Dequantize(x, codes, scales)
		}
	})
}
