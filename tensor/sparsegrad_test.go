// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// A tied table in two Backwards: what the head adds to the gradient, and then the rows of two lookups, have the bits of
// one Backward.
func TestSparseGrads(t *testing.T) {
	const vocabulary, width = 7, 5
	c := tensor.NewCtx(tensor.CPU())
	values := make([]float32, vocabulary*width)
	for i := range values {
		values[i] = float32(i*37%11)/3 - 1.7
	}
	table := tensor.FromSlice(c.NoGrad(), values, vocabulary, width).SetRequiresGrad(true)
	ids := tensor.FromSlice(c.NoGrad(), []int32{3, 1, 3, 3, 6, 1}, 2, 3)
	again := false
	lookUp := func(c *tensor.Ctx) *tensor.Tensor {
		body := func(c *tensor.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
			return one(tensor.Mul(c, tensor.Embedding(c, table, ids), tensor.Embedding(c, table, in[0])))
		}
		if again {
			return tensor.Checkpoint(c, "lookup", body, one(ids), one(table))[0]
		}
		return body(c, one(ids))[0]
	}
	head := func(c *tensor.Ctx, h *tensor.Tensor) *tensor.Tensor {
		flat := tensor.Reshape(c, h, 6, width)
		return tensor.LinearCrossEntropy(c, flat, table, nil, tensor.Reshape(c, ids, 6), -100)
	}
	backward := func(roots, grads, wrt []*tensor.Tensor, opts ...tensor.BackwardOption) []*tensor.Tensor {
		return tensor.Backward(c, roots, grads, wrt, opts...)
	}
	whole := func() []byte {
		table.ZeroGrad()
		backward(one(head(c, lookUp(c))), nil, nil)
		return tensor.ReadBytes(c.NoGrad(), table.Grad())
	}
	for _, delayed := range []bool{false, true} {
		want := whole()
		table.ZeroGrad()
		h := lookUp(c)
		end := h.Boundary()
		g := backward(one(head(c, end)), nil, one(end), tensor.Accumulating())
		var rows, values []*tensor.Tensor
		var store tensor.WeightGradStore
		opts := []tensor.BackwardOption{tensor.Accumulating(),
			tensor.SparseGrads(table, func(r, v *tensor.Tensor) {
				rows, values = append(rows, tensor.Clone(c.NoGrad(), r)), append(values, tensor.Clone(c.NoGrad(), v))
			})}
		if delayed {
			opts[0] = tensor.DelayWeightGrads(&store)
		}
		backward(one(h), g, []*tensor.Tensor{}, opts...)
		require.Len(t, rows, 2)
		require.Equal(t, []int{6}, rows[0].Shape())
		require.Equal(t, []int{6, width}, values[0].Shape())
		require.NotEqual(t, want, tensor.ReadBytes(c.NoGrad(), table.Grad()), "the rows are missing")
		for i := range rows {
			tensor.AddRowsInto(c.NoGrad(), table.Grad(), rows[i], values[i])
		}
		if delayed {
			store.Pop(c)
		}
		require.Equal(t, want, tensor.ReadBytes(c.NoGrad(), table.Grad()), "delayed %v", delayed)
	}

	for _, again = range []bool{false, true} {
		h := lookUp(c)
		if !again {
			h = head(c, h)
		}
		err := tensor.Try(func() {
			seed := tensor.Full(c.NoGrad(), h.DType(), 1, h.Shape()...)
			backward(one(h), one(seed), nil, tensor.SparseGrads(table, func(_, _ *tensor.Tensor) {}))
		})
		require.ErrorContains(t, err, "a gradient from another op than Embedding, or from a Checkpoint")
	}
	err := tensor.Try(func() { tensor.AddRowsInto(c.NoGrad(), table, ids, table) })
	require.ErrorContains(t, err, "want a table [V C], rows [n] and values [n C]")
}
