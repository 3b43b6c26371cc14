// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"bytes"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// What is written in pieces is what CopyInto writes, for every pair of floating-point dtypes, and what is special is
// counted.
func TestWriteFrom(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	const n = 600_000 // more than a piece of any dtype
	values := make([]float64, n)
	for i := range values {
		values[i] = float64(i%2001) - 1000
	}
	values[0], values[1], values[2], values[n-1] = math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1)
	wide := tensor.FromSlice(c, values, n)
	for _, from := range []tensor.DType{tensor.Float64, tensor.Float32, tensor.Float16, tensor.BFloat16} {
		src := tensor.Cast(c, wide, from)
		raw := tensor.ReadBytes(c, src)
		for _, to := range []tensor.DType{tensor.Float64, tensor.Float32, tensor.Float16, tensor.BFloat16} {
			got, want := tensor.Zeros(c, to, n/2, 2), tensor.Zeros(c, to, n)
			census, err := tensor.WriteFrom(c, got, from,
				io.MultiReader(bytes.NewReader(raw), bytes.NewReader([]byte{1})))
			require.NoError(t, err)
			tensor.CopyInto(c, want, src)
			require.True(t, bytes.Equal(tensor.ReadBytes(c, want), tensor.ReadBytes(c, got)), "%v to %v", from, to)
			below := 0
			for i, v := range values {
				if v < 0 && i < n {
					below++
				}
			}
			require.Equal(t, tensor.Census{NonFinite: 3, Negative: below}, census, "%v to %v", from, to)
		}
	}
	ids := tensor.Zeros(c, tensor.Int64, 3)
	census, err := tensor.WriteFrom(c, ids, tensor.Int64, bytes.NewReader(bytes.Repeat([]byte{0xff}, 24)))
	require.NoError(t, err)
	require.Zero(t, census)
	require.Equal(t, []int64{-1, -1, -1}, tensor.ToSlice[int64](c, ids))
	_, err = tensor.WriteFrom(c, ids, tensor.Int64, bytes.NewReader(make([]byte, 23)))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, tensor.Try(func() { _, _ = tensor.WriteFrom(c, ids, tensor.Int32, bytes.NewReader(nil)) }),
		"want a contiguous tensor of the same dtype")
	empty, err := tensor.WriteFrom(c, tensor.Zeros(c, tensor.Float32, 0, 3), tensor.Float32, bytes.NewReader(nil))
	require.NoError(t, err)
	require.Zero(t, empty)
}

// Numbers that the tensor's dtype cannot hold are counted.
func TestWriteFromCountsWhatOverflows(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	raw := tensor.ReadBytes(c, tensor.FromSlice(c, []float32{1, 1e6, float32(math.Inf(1)), -1e5, 65504}, 5))
	census, err := tensor.WriteFrom(c, tensor.Zeros(c, tensor.Float16, 5), tensor.Float32, bytes.NewReader(raw))
	require.NoError(t, err)
	require.Equal(t, tensor.Census{NonFinite: 3, Negative: 1, Overflowed: 2}, census)
}
