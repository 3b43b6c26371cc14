// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// TestZeroGradFrees: a gradient's memory is there from its first contribution to ZeroGrad, unless the caller gave it.
func TestZeroGradFrees(t *testing.T) {
	c := newCtx(t)
	w := leaf(c, 1, 2)
	w.ZeroGrad() // nothing is there
	before := inUse(c)
	run := func(c *tensor.Ctx) []*tensor.Tensor { backward(c, total(c, tensor.Mul(c, w, w))); return nil }
	c.Scope(run)
	require.Equal(t, before+16, inUse(c))
	gone := w.Grad()
	w.ZeroGrad()
	require.Equal(t, before, inUse(c))
	require.Contains(t, misuse(t, func() { values(c, gone) }).Msg, "used after it was freed")
	w.ZeroGrad()

	c.Scope(run)
	w.Grad().Free() // by the user
	c.Scope(run)
	require.Equal(t, []float64{2, 4}, gradOf(c, w))
	kept := w.SwapGrad(nil, false)
	w.ZeroGrad()
	require.Equal(t, []float64{2, 4}, values(c, kept), "what was taken away stays")
	w.SwapGrad(kept, true)
	w.ZeroGrad()
	require.Equal(t, before, inUse(c), "what was given back goes")

	given := vec(c, 7, 7)
	w.SwapGrad(given, false)
	for range 2 {
		c.Scope(run)
		require.Same(t, given, w.Grad())
		require.Equal(t, []float64{2, 4}, gradOf(c, w))
		w.ZeroGrad()
		require.Nil(t, w.Grad())
	}
	require.Equal(t, []float64{2, 4}, values(c, given))
}

// TestGradientsTakeThePlaceOfActivations: at no time are all activations and all gradients alive.
func TestGradientsTakeThePlaceOfActivations(t *testing.T) {
	const layers, n = 8, 128
	const matrix = 4 * n * n // a weight, and a layer's activations
	c := newCtx(t)
	x := tensor.Full(c, tensor.Float32, 1, n, n)
	var ws []*tensor.Tensor
	for range layers {
		ws = append(ws, tensor.Full(c, tensor.Float32, 1, n, n).SetRequiresGrad(true))
	}
	before := inUse(c)
	for range 3 {
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			loss := c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				h := x
				for _, w := range ws {
					h = tensor.AddMM(c, nil, h, w)
				}
				return one(total(c, h))
			})
			backward(c, loss[0])
			return nil
		})
		require.Equal(t, before+layers*matrix, inUse(c))
		require.Less(t, c.Device().MemStats().Peak, before+(layers+4)*matrix, "of twice as many")
		for _, w := range ws {
			w.ZeroGrad()
		}
		require.Equal(t, before, inUse(c))
	}
}

// TestGradientsMoveIntoLeaves: what a gradient function made for a leaf alone becomes its gradient; what others have is
// copied.
func TestGradientsMoveIntoLeaves(t *testing.T) {
	const bytes = 8 * 1000
	c := newCtx(t)
	w := tensor.Full(c, tensor.Float64, 0.5, 1000).SetRequiresGrad(true)
	before := inUse(c)
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		tensor.Backward(c, one(tensor.Exp(c, w)), one(tensor.Ones(c, tensor.Float64, 1000)), nil)
		return nil
	})
	require.Equal(t, before+bytes, inUse(c))
	require.Equal(t, before+3*bytes, c.Device().MemStats().Peak, "the result, the gradient that is given, and w's")

	v, seed := leaf(c, 1, 2), vec(c, 3, 4)
	u := leaf(c, 5, 6)
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		tensor.Backward(c, one(tensor.Add(c, u, v)), one(seed), nil)
		return nil
	})
	require.False(t, u.Grad().SharesMemory(v.Grad()) || u.Grad().SharesMemory(seed) || v.Grad().SharesMemory(seed))
	require.Equal(t, []float64{3, 4}, gradOf(c, u))
	tensor.Backward(c, one(v), one(seed), nil)
	require.Equal(t, []float64{6, 8}, gradOf(c, v))
	require.Equal(t, []float64{3, 4}, values(c, seed))

	part := leaf(c, 1, 2) // its gradient is a part of something larger
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		both := tensor.Concat(c, 0, part, tensor.Detach(u))
		backward(c, total(c, tensor.Mul(c, both, both)))
		return nil
	})
	before = inUse(c)
	part.ZeroGrad()
	require.Equal(t, before-16, inUse(c))
}

// TestTiedTableHasOneGradient: the rows that an embedding adds go into what is there of the table's gradient.
func TestTiedTableHasOneGradient(t *testing.T) {
	const rows, width = 2000, 8
	const table = 4 * rows * width
	c := newCtx(t)
	w := tensor.Normal(c, tensor.Float32, 1, 0, 1, rows, width).SetRequiresGrad(true)
	ids := tensor.FromSlice(c, []int32{5, 7, 5}, 3)
	loss := func(c *tensor.Ctx, table *tensor.Tensor) *tensor.Tensor {
		return tensor.LinearCrossEntropy(c, tensor.Embedding(c, table, ids), w, nil, ids, -100)
	}
	before := inUse(c)
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { backward(c, loss(c, w)); return nil })
	require.Less(t, c.Device().MemStats().Peak, before+table+table/2, "one gradient, and logits of three rows")
	require.Equal(t, before+table, inUse(c))
	got := tensor.ToSlice[float32](c, w.Grad())
	w.ZeroGrad()

	apart := tensor.Clone(c.NoGrad(), w).SetRequiresGrad(true)
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { backward(c, loss(c, apart)); return nil })
	require.Equal(t, tensor.ToSlice[float32](c, tensor.Add(c.NoGrad(), w.Grad(), apart.Grad())), got)
}
