// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/tensor"
)

func roundTrip[T tensor.Element](t *testing.T, c *tensor.Ctx, dt tensor.DType, data []T) {
	t.Helper()
	x := tensor.FromSlice(c, data, 2, len(data)/2)
	require.Equal(t, dt, x.DType())
	require.Equal(t, data, tensor.ToSlice[T](c, x))
	raw := tensor.ReadBytes(c, x)
	require.Len(t, raw, x.Bytes())
	y := tensor.FromBytes(c, raw, dt, x.Shape()...)
	require.Equal(t, data, tensor.ToSlice[T](c, y))
	column := tensor.ToSlice[T](c, tensor.Select(c, x, 1, 1))
	require.Equal(t, []T{data[1], data[len(data)/2+1]}, column, "strided")
	require.Empty(t, tensor.ToSlice[T](c, tensor.FromSlice(c, []T{}, 0, 3)))
}

func TestHostDataOfEachDType(t *testing.T) {
	c := newCtx(t)
	roundTrip(t, c, tensor.Float32, []float32{1, -2.5, float32(math.Inf(1)), 4})
	roundTrip(t, c, tensor.Float64, []float64{1, -2.5, math.MaxFloat64, 4})
	roundTrip(t, c, tensor.BFloat16, []dtype.BF16{dtype.ToBF16(1), dtype.ToBF16(-3), 0, 7})
	roundTrip(t, c, tensor.Float16, []dtype.F16{dtype.ToF16(1), dtype.ToF16(-3), 0, 7})
	roundTrip(t, c, tensor.Int32, []int32{1, -2, math.MaxInt32, math.MinInt32})
	roundTrip(t, c, tensor.Int64, []int64{1, -2, math.MaxInt64, math.MinInt64})
	roundTrip(t, c, tensor.Uint8, []uint8{0, 1, 254, 255})
	roundTrip(t, c, tensor.Bool, []bool{true, false, false, true})
}

func TestHostDataIsCopied(t *testing.T) {
	c := newCtx(t)
	data := []float64{1, 2}
	x := tensor.FromSlice(c, data, 2)
	data[0] = 9
	out := tensor.ToSlice[float64](c, x)
	out[1] = 9
	require.Equal(t, []float64{1, 2}, values(c, x))
	tensor.WriteBytes(c, tensor.Slice(c, x, 0, 1, 2), tensor.ReadBytes(c, vec(c, 5)))
	require.Equal(t, []float64{1, 5}, values(c, x))
}

func TestItem(t *testing.T) {
	c := newCtx(t)
	for _, dt := range dtype.All() {
		require.Equal(t, 1.0, tensor.Item(c, tensor.Ones(c, dt, 1, 1)))
	}
	require.Equal(t, -2.5, tensor.Item(c, tensor.Select(c, vec(c, 1, -2.5), 0, 1)))
	require.Contains(t, misuse(t, func() { tensor.Item(c, vec(c, 1, 2)) }).Msg, "want one element, have 2")
}

func TestHostDataMisuse(t *testing.T) {
	c := newCtx(t)
	x := tensor.FromSlice(c, []float64{1, 2, 3, 4}, 2, 2)
	require.EqualError(t, misuse(t, func() { tensor.FromSlice(c, []float32{1, 2}, 3) }),
		"tensor.FromSlice: 2 elements do not fill shape [3] of 3")
	require.EqualError(t, misuse(t, func() { tensor.ToSlice[float32](c, x) }),
		"tensor.ToSlice(float64[2 2]): elements are float64, not float32: convert with Cast")
	require.Contains(t, misuse(t, func() { tensor.FromBytes(c, make([]byte, 7), tensor.Float32, 2) }).Msg,
		"7 bytes: want 8")
	require.Contains(t, misuse(t, func() { tensor.WriteBytes(c, tensor.Transpose(c, x, 0, 1), make([]byte, 32)) }).Msg,
		"contiguous")
	require.Contains(t, misuse(t, func() { tensor.FromSlice(c, []float32{}, 0, 1, 1, 1, 1, 1, 1) }).Msg, "at most 6")
}

func TestShapeQueries(t *testing.T) {
	c := newCtx(t)
	x := tensor.Zeros(c, tensor.Int32, 2, 3)
	require.Equal(t, []int{2, 3}, x.Shape())
	require.Equal(t, []int{3, 1}, x.Strides())
	require.Equal(t, 2, x.Dim())
	require.Equal(t, 3, x.Size(-1))
	require.Equal(t, 2, x.Size(0))
	require.Equal(t, 6, x.Numel())
	require.Equal(t, 24, x.Bytes())
	require.Equal(t, "tensor(int32[2 3])", x.String())
	require.True(t, x.IsContiguous())
	y := tensor.Transpose(c, x, 0, 1)
	require.False(t, y.IsContiguous())
	require.True(t, x.SharesMemory(y))
	require.False(t, x.SharesMemory(tensor.Clone(c, x)))
	require.Same(t, x, tensor.Contiguous(c, x))
	require.Contains(t, misuse(t, func() { x.Size(2) }).Msg, "dim 2: want one in [-2, 2)")
	require.Same(t, c.Device(), x.Device())
}

func TestTry(t *testing.T) {
	c := newCtx(t)
	require.NoError(t, tensor.Try(func() {}))
	require.ErrorContains(t, tensor.Try(func() { tensor.Add(c, vec(c, 1, 2), vec(c, 1, 2, 3)) }),
		"tensor.Add(float64[2], float64[3])")
	require.ErrorContains(t, tensor.Try(func() {
		tensor.Embedding(c, tensor.Zeros(c, tensor.Float32, 2, 2), tensor.FromSlice(c, []int64{2}, 1))
	}), "embedding")
	require.PanicsWithValue(t, "mine", func() { _ = tensor.Try(func() { panic("mine") }) })
}

func TestDevices(t *testing.T) {
	cpu, err := tensor.OpenDevice("cpu")
	require.NoError(t, err)
	require.Same(t, tensor.CPU(), cpu)
	_, err = tensor.OpenDevice("tpu")
	require.ErrorContains(t, err, `no device "tpu" is built in: want one of cpu`)
	own := tensor.NewCPU(1)
	tensor.RegisterDevice("test", func() (*tensor.Device, error) { return own, nil })
	got, err := tensor.OpenDevice("test")
	require.NoError(t, err)
	require.Same(t, own, got)
	require.Panics(t, func() { tensor.RegisterDevice("test", nil) })
	require.Panics(t, func() { tensor.RegisterDevice("cpu", nil) })
	require.NoError(t, own.Close())
}

// TestHalfMeanDoesNotOverflow: the sum of these is far beyond float16's largest number.
func TestHalfMeanDoesNotOverflow(t *testing.T) {
	c := newCtx(t)
	x := tensor.Full(c, tensor.Float16, 1000, 5000).SetRequiresGrad(true)
	y := tensor.Mean(c, x, nil, false)
	require.Equal(t, tensor.Float16, y.DType())
	require.Equal(t, 1000.0, tensor.Item(c, y))
	backward(c, y)
	require.InDelta(t, 1.0/5000, gradOf(c, x)[0], 1e-6)
}

func TestViewsShareMemory(t *testing.T) {
	c := newCtx(t)
	x := tensor.FromSlice(c, []float64{1, 2, 3, 4, 5, 6}, 2, 3)
	for name, v := range map[string]*tensor.Tensor{
		"Reshape": tensor.Reshape(c, x, 3, 2), "Permute": tensor.Permute(c, x, 1, 0),
		"Slice": tensor.Slice(c, x, 1, 1, 3), "Select": tensor.Select(c, x, 0, 1),
		"Expand": tensor.Expand(c, x, 4, 2, 3), "Unsqueeze": tensor.Unsqueeze(c, x, 1),
		"Split": tensor.Split(c, x, 0, 1, 1)[1], "Detach": tensor.Detach(x),
	} {
		require.True(t, v.SharesMemory(x), name)
	}
	tensor.FillInto(c, tensor.Slice(c, x, 1, 1, 2), 9)
	require.Equal(t, []float64{1, 9, 3, 4, 9, 6}, values(c, x))
}
