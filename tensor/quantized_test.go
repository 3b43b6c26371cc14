// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// A quantized weight computes what its elements do, with few rows and many, in float32 and under Autocast, and gives
// gradients to inputs; it takes the memory of the blocks until another op reads it.
func TestQuantize(t *testing.T) {
	const n, k = 70, 96
	c := newCtx(t)
	w := tensor.Normal(c, tensor.Float32, 1, 0, 1, n, k)
	before := inUse(c)
	require.True(t, tensor.Quantize(c, w))
	require.EqualValues(t, n*k/32*34-4*n*k, inUse(c)-before)
	again := tensor.FromSlice(c, tensor.ToSlice[float32](c, tensor.Affine(c, w, 1, 0)), n, k)
	require.EqualValues(t, 4*n*k, w.Bytes())
	held := inUse(c)
	require.True(t, tensor.Quantize(c, w)) // elements were made, and are the same ones in blocks again
	require.Less(t, inUse(c), held)
	bias := tensor.Normal(c, tensor.Float32, 2, 0, 1, n)
	c.Device().Collect() // the first blocks, and what was between
	held = inUse(c)
	for rows := range 10 {
		for _, add := range []*tensor.Tensor{nil, bias} {
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				x := tensor.Normal(c, tensor.Float32, 3, 0, 1, 1, rows+1, k)
				want := tensor.ToSlice[float32](c, tensor.Linear(c, x, again, add))
				require.InDeltaSlice(t, want, tensor.ToSlice[float32](c, tensor.Linear(c, x, w, add)), 1e-4)
				low := c.Autocast(tensor.BFloat16)
				want = tensor.ToSlice[float32](c, tensor.Cast(c, tensor.Linear(low, x, again, add), tensor.Float32))
				got := tensor.ToSlice[float32](c, tensor.Cast(c, tensor.Linear(low, x, w, add), tensor.Float32))
				require.Equal(t, want, got)
				return nil
			})
		}
	}
	require.Equal(t, held, inUse(c))
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		x := tensor.Normal(c, tensor.Float32, 4, 0, 1, 3, k).SetRequiresGrad(true)
		backward(c, total(c, tensor.Linear(c, x, again, nil)))
		want := tensor.ToSlice[float32](c, x.Grad())
		x.ZeroGrad()
		held := inUse(c)
		y := tensor.Linear(c, x, w, nil)
		require.EqualValues(t, 4*y.Numel(), inUse(c)-held) // nothing else is kept for the gradient
		backward(c, total(c, y))
		require.Equal(t, want, tensor.ToSlice[float32](c, x.Grad()))
		targets := tensor.FromSlice(c, []int64{3, 0, 69}, 3)
		loss := tensor.Item(c, tensor.LinearCrossEntropy(c, x, again, nil, targets, tensor.IgnoreIndex))
		require.Equal(t, loss, tensor.Item(c, tensor.LinearCrossEntropy(c, x, w, nil, targets, tensor.IgnoreIndex)))
		ids := tensor.FromSlice(c, []int64{3, 0, 69}, 3, 1)
		require.Equal(t, tensor.ToSlice[float32](c, tensor.Embedding(c, again, ids)),
			tensor.ToSlice[float32](c, tensor.Embedding(c, w, ids)))
		misuse(t, func() { tensor.Embedding(c, w, tensor.FromSlice(c, []int32{70}, 1)) })
		misuse(t, func() { tensor.Linear(c, tensor.Zeros(c, tensor.Float32, 2, k-1), w, nil) })
		misuse(t, func() { tensor.Linear(c, tensor.Zeros(c, tensor.Float64, 2, k), w, nil) })
		return nil
	})
	require.True(t, w.Unloaded())
}

func TestWhatIsNotQuantized(t *testing.T) {
	c := newCtx(t)
	require.False(t, tensor.Quantize(c, tensor.Zeros(c, tensor.Float32, 4, 31)))
	require.False(t, tensor.Quantize(c, tensor.Full(c, tensor.Float32, 3e38, 4, 32)))
	misuse(t, func() { tensor.Quantize(c, tensor.Zeros(c, tensor.Float32, 4, 32).SetRequiresGrad(true)) })
	misuse(t, func() { tensor.Quantize(c, tensor.Zeros(c, tensor.BFloat16, 4, 32)) })
}
