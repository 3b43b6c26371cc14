// SPDX-License-Identifier: Apache-2.0

package blockwise

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/internal/kernels/kernelstest"
)

// quotients are numbers of [-1, 1] around every border that a code or a kernel's lines have, denormal ones among them.
func quotients(m *Map) (x []float32) {
	near := func(v float64) {
		at := math.Float32bits(float32(v))
		for d := range uint32(7) {
			if q := math.Float32frombits(at + d - 3); q <= 1 {
				x = append(x, q, -q)
			}
		}
	}
	for i, v := range m.values {
		near(math.Abs(float64(v)))
		near(math.Abs(float64(m.middles[max(i, 1)])))
	}
	for e := range decades + 1 {
		near(math.Pow10(-e))
	}
	near(0x1p-140)
	near(0x1p-126)
	for bits := uint32(0); bits <= math.Float32bits(1); bits += 0x7ff3 {
		x = append(x, math.Float32frombits(bits), -math.Float32frombits(bits))
	}
	return append(x, 0, float32(math.Copysign(0, -1)), 1, -1)
}

// All kernels give the code that a search from the smallest number on finds, in blocks of any length and of any scale.
func TestVariantsGiveTheCodesOfTheSearch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, m := range []*Map{Signed(), Unsigned()} {
			for _, scale := range []float32{1, 3, 1e-30, 0x1p-127, 0x1.8p-149, 1e38} {
				list := quotients(m)
				r.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
				x := make([]float32, len(list)/(Block-1)*Block+77)
				for i := range x {
					if x[i] = scale; i%Block > 0 {
						x[i] *= list[(i-i/Block-1)%len(list)]
					}
				}
				codes, scales := make([]uint8, len(x)), make([]float32, Blocks(len(x)))
				m.Quantize(codes, scales, x)
				for i, v := range x {
					if scales[i/Block] != scale || codes[i] != m.search(v/scale) {
						require.FailNow(t, "another code", "%v of %v (%v): %d, want %d", v, scale, scales[i/Block],
							codes[i], m.search(v/scale))
					}
				}
			}
		}
	})
}

// A block that is not finite reads back as such; a block of zeros beside it stays what it is.
func TestBlocksThatAreNotFinite(t *testing.T) {
	inf := float32(math.Inf(1))
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, bad := range []float32{inf, -inf, float32(math.NaN())} {
			for _, at := range []int{0, 100, 255, 3 * Block, 3*Block + 9} {
				x := make([]float32, 3*Block+10)
				x[at] = bad
				codes, scales, back := make([]uint8, len(x)), make([]float32, 4), make([]float32, len(x))
				Signed().Quantize(codes, scales, x)
				Signed().Dequantize(back, codes, scales)
				for i, v := range back {
					if i/Block != at/Block {
						require.Zero(t, v)
					} else {
						require.False(t, v-v == 0, "%d is %v", i, v)
					}
				}
			}
		}
	})
}

// All kernels read each code back as its number times the scale.
func TestVariantsReadNumbersTimesScales(t *testing.T) {
	codes := make([]uint8, 2*Block+31)
	for i := range codes {
		codes[i] = uint8(7 * i)
	}
	kernelstest.Each(t, func(t *testing.T, _ kernels.Variant) {
		for _, m := range []*Map{Signed(), Unsigned()} {
			scales := []float32{3, 1e-40, 0}
			x := make([]float32, len(codes))
			m.Dequantize(x, codes, scales)
			for i, v := range x {
				require.Equal(t, m.values[codes[i]]*scales[i/Block], v)
			}
		}
	})
}
