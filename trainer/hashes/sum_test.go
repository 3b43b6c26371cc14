// SPDX-License-Identifier: Apache-2.0

package hashes_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer/hashes"
)

// The hashes of the parts of a tensor add up to that of the whole, of every width of elements and wherever it is cut.
func TestPartsAddUp(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	r := rand.New(rand.NewPCG(1, 2))
	for _, dt := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float64, tensor.Int64} {
		const rows, columns = 5, 701 // more than a block of factors
		x := tensor.Cast(c, tensor.FromSlice(c, random(r, rows*columns), rows, columns), dt)
		whole := tensor.WholePlacement("x", rows, columns)
		want := hashes.Whole(c, x)
		require.Equal(t, want, hashes.Of(c, x, whole))
		for range 20 {
			cut := r.IntN(rows*columns + 1)
			flat := tensor.Reshape(c, x, rows*columns)
			var sum hashes.Sum
			for _, ends := range [][2]int{{0, cut}, {cut, rows * columns}} {
				part := tensor.Slice(c, flat, 0, ends[0], ends[1])
				sum += hashes.Of(c, part, whole.Slice(ends[0], ends[1]))
			}
			require.Equal(t, want, sum, "%v, cut at %d", dt, cut)
		}
		left, right := tensor.Slice(c, x, 1, 0, 300), tensor.Slice(c, x, 1, 300, columns) // boxes of columns
		require.Equal(t, want, hashes.Of(c, left, whole.Along(1, tensor.Range{Stop: 300}))+
			hashes.Of(c, right, whole.Along(1, tensor.Range{Start: 300, Stop: columns})))
	}
}

func random(r *rand.Rand, n int) []float32 {
	list := make([]float32, n)
	for i := range list {
		list[i] = float32(100 * r.NormFloat64())
	}
	return list
}

// One bit changes the hash, wherever it is, and so does another order.
func TestEveryBitCounts(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	values := random(rand.New(rand.NewPCG(3, 4)), 1500)
	want := hashes.Whole(c, tensor.FromSlice(c, values, len(values)))
	for i := range values {
		for _, bit := range []uint{0, 1, 22, 30, 31} {
			x := tensor.FromSlice(c, values, len(values))
			mem, ok := tensor.HostBytes(c, x)
			require.True(t, ok)
			mem[4*i+int(bit/8)] ^= 1 << (bit % 8)
			require.NotEqual(t, want, hashes.Whole(c, x), "bit %d of element %d", bit, i)
		}
	}
	values[3], values[1400] = values[1400], values[3]
	require.NotEqual(t, want, hashes.Whole(c, tensor.FromSlice(c, values, len(values))))
	text, err := want.MarshalText()
	require.NoError(t, err)
	var back hashes.Sum
	require.NoError(t, back.UnmarshalText(text))
	require.Equal(t, want, back)
}

func BenchmarkSum(b *testing.B) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	x := tensor.Zeros(c, tensor.Float32, 1<<24)
	b.SetBytes(int64(x.Bytes()))
	for b.Loop() {
		hashes.Whole(c, x)
	}
}
