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

// ties are numbers whose quotients by a scale lie on the middle between two codes, or so near that a quotient of
// float32 would.
func ties(scale float32) (x []float32) {
	for q := float32(0.5); q < 127; q++ {
		at := math.Float32bits(q * scale)
		for d := range uint32(3) {
			v := math.Float32frombits(at + d)
			x = append(x, v, -v)
		}
	}
	return x
}

// All kernels write the same blocks and read the same numbers, for any length.
func TestInt8BlocksHaveTheSameBits(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var blocks [][]float32
	for n := range 70 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		blocks = append(blocks, x)
	}
	for _, top := range []float32{1, 3, 0.1, 127, 1e-30, 0x1p-149, 190 * 0x1p-149, 1e-37, 0.7, 5e-3, math.MaxFloat32} {
		blocks = append(blocks, append([]float32{top, -top, 0, float32(math.Copysign(0, -1))}, ties(top/127)...))
	}
	for _, v := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		for _, at := range []int{0, 9, 16} {
			x := make([]float32, 17)
			x[at] = v
			blocks = append(blocks, x)
		}
	}
	for _, x := range blocks {
		var most float32
		for _, v := range x {
			most = max(most, v, -v)
		}
		scale := most / 127
		if math.IsInf(float64(scale), 0) || scale != scale {
			scale = float32(math.NaN())
		}
		codes := make([]byte, len(x)+3)
		if scale > 0 {
			quantizeInt8Generic(codes, x, scale)
		}
		kernelstest.Each(t, func(t *testing.T, v kernels.Variant) {
			block := make([]byte, Int8Bytes(len(x)+3))
			for i := range block {
				block[i] = 0xa5
			}
			QuantizeInt8(block, x)
			got, written := openInt8(block)
			require.Equal(t, math.Float32bits(scale), math.Float32bits(got), "%v: %v", v, x)
			require.Equal(t, codes, written, "%v: scale %v of %v", v, scale, x)
			y, sum := make([]float32, len(x)), make([]float32, len(x))
			for i := range sum {
				sum[i] = float32(i) / 3
			}
			DequantizeInt8(y, block)
			AddInt8(sum, block)
			for i, q := range codes[:len(x)] {
				want := float32(scale * float32(int8(q)))
				require.Equal(t, math.Float32bits(want), math.Float32bits(y[i]), "%v: number %d", v, i)
				total := float32(i)/3 + want
				require.Equal(t, math.Float32bits(total), math.Float32bits(sum[i]), "%v: sum %d", v, i)
			}
		})
	}
}

func BenchmarkInt8(b *testing.B) {
	const size = 256
	x, block := make([]float32, size), make([]byte, Int8Bytes(size))
	for i := range x {
		x[i] = float32(math.Sin(float64(i)))
	}
	for name, f := range map[string]func(){
		"quantize":   func() { QuantizeInt8(block, x) },
		"dequantize": func() { DequantizeInt8(x, block) },
		"add":        func() { AddInt8(x, block) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(4 * size)
			for b.Loop() {
				f()
			}
		})
	}
}
