// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// TestStochasticRoundMean: numbers become one of their neighbours, whose mean they are.
func TestStochasticRoundMean(t *testing.T) {
	const n = 40_000
	root := newCtx(t)
	for _, k := range []struct {
		dt                  tensor.DType
		x, nearer0, farther float64
	}{
		{tensor.BFloat16, 1.001953125, 1, 1.0078125},    // a quarter of the way
		{tensor.BFloat16, -1.005859375, -1, -1.0078125}, // three quarters
		{tensor.BFloat16, 0x1.ffp-1, 0x1.fep-1, 1},      // across a power of two
		{tensor.BFloat16, 0x3p-135, 0, 0x1p-133},        // below the smallest of all
		{tensor.Float16, 1.000244140625, 1, 1.0009765625},
		{tensor.Float16, 0x1p-26, 0, 0x1p-24},                 // below the smallest of all
		{tensor.Float16, -0x3.ff8p-16, -0x3.ffp-16, -0x1p-14}, // below the smallest of full precision
	} {
		y := tensor.Zeros(root, k.dt, n)
		tensor.StochasticRoundInto(root.WithRandom(1, 2), y, tensor.Full(root, tensor.Float32, k.x, n), 0)
		sum := 0.0
		for _, v := range values(root, tensor.Cast(root, y, tensor.Float64)) {
			require.True(t, v == k.nearer0 || v == k.farther, "%v of %v became %v", k.x, k.dt, v)
			sum += v
		}
		require.InDelta(t, k.x, sum/n, 0.02*math.Abs(k.farther-k.nearer0), "%v of %v", k.x, k.dt)
	}
}

// TestStochasticRoundInPieces: an element's bits are its own, for another position they are others.
func TestStochasticRoundInPieces(t *testing.T) {
	root := newCtx(t)
	x := tensor.Normal(root, tensor.Float32, 1, 0, 1, 5000)
	round := func(position int64, cuts ...int) []float64 {
		y := tensor.Zeros(root, tensor.BFloat16, 5000)
		from := 0
		for _, to := range append(cuts, 5000) {
			tensor.StochasticRoundInto(root.WithRandom(1, position).Sub("w"), tensor.Slice(root, y, 0, from, to),
				tensor.Slice(root, x, 0, from, to), from)
			from = to
		}
		return values(root, tensor.Cast(root, y, tensor.Float64))
	}
	require.Equal(t, round(3), round(3, 1, 1030, 4999))
	require.NotEqual(t, round(3), round(4))
}

// TestStochasticRoundOfExtremes: finite numbers stay finite up to the next power of two.
func TestStochasticRoundOfExtremes(t *testing.T) {
	root := newCtx(t)
	inf := math.Inf(1)
	for dt, k := range map[tensor.DType]struct{ in, want []float64 }{
		tensor.BFloat16: {[]float64{math.MaxFloat32, -math.MaxFloat32, inf, -inf, 0},
			[]float64{0x1.fep127, -0x1.fep127, inf, -inf, 0}},
		tensor.Float16: {[]float64{65535, -65535, 65536, -70000, inf}, []float64{65504, -65504, inf, -inf, inf}},
	} {
		y := tensor.Zeros(root, dt, 5)
		for step := range int64(20) {
			tensor.StochasticRoundInto(root.WithRandom(1, step), y,
				tensor.Cast(root, vec64(root, k.in), tensor.Float32), 0)
			require.Equal(t, k.want, values(root, tensor.Cast(root, y, tensor.Float64)), dt)
		}
		tensor.StochasticRoundInto(root, y, tensor.Full(root, tensor.Float32, math.NaN(), 5), 0)
		require.True(t, math.IsNaN(values(root, tensor.Cast(root, y, tensor.Float64))[0]), dt)
	}
}

func vec64(c *tensor.Ctx, x []float64) *tensor.Tensor { return tensor.FromSlice(c, x, len(x)) }
