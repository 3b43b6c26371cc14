// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// square is x², as users would write it.
var square = tensor.CustomOp{
	Name: "square",
	Forward: func(c *tensor.Ctx, in []*tensor.Tensor) (out, saved []*tensor.Tensor) {
		return one(tensor.Mul(c, in[0], in[0])), in
	},
	Backward: func(c *tensor.Ctx, saved, grads []*tensor.Tensor, need []bool) []*tensor.Tensor {
		return one(tensor.Mul(c, grads[0], tensor.Affine(c, saved[0], 2, 0)))
	},
}

func TestCustom(t *testing.T) {
	c := newCtx(t)
	x := leaf(c, 2, 3)
	y := tensor.Custom(c, square, x)[0]
	require.Equal(t, []float64{4, 9}, values(c, y))
	backward(c, total(c, y))
	require.Equal(t, []float64{4, 6}, gradOf(c, x))
	require.False(t, tensor.Custom(c, square, vec(c, 1))[0].RequiresGrad())
	require.False(t, tensor.Custom(c.NoGrad(), square, x)[0].RequiresGrad())

	y = tensor.Custom(c, square, x)[0]
	tensor.ScaleInto(c.NoGrad(), x, 2)
	require.Contains(t, misuse(t, func() { backward(c, total(c, y)) }).Msg, "square saved for its gradient was changed")
}

func TestCustomSeveralInputsAndOutputs(t *testing.T) {
	c := newCtx(t)
	var needed [][]bool
	swap := tensor.CustomOp{
		Name: "swap",
		Forward: func(_ *tensor.Ctx, in []*tensor.Tensor) (out, saved []*tensor.Tensor) {
			return []*tensor.Tensor{in[1], in[0]}, nil
		},
		Backward: func(_ *tensor.Ctx, _, grads []*tensor.Tensor, need []bool) []*tensor.Tensor {
			needed = append(needed, need)
			return []*tensor.Tensor{grads[1], grads[0]}
		},
	}
	x, y := leaf(c, 2), vec(c, 3)
	out := tensor.Custom(c, swap, x, y)
	require.Equal(t, []float64{3}, values(c, out[0]))
	require.False(t, y.RequiresGrad(), "an input that is passed through is not changed")
	require.True(t, x.IsLeaf())
	backward(c, tensor.Affine(c, out[1], 5, 0)) // no gradient flows to out[0]
	require.Equal(t, []float64{5}, gradOf(c, x))
	require.Equal(t, [][]bool{{true, false}}, needed)
}

func TestCustomMisuse(t *testing.T) {
	c := newCtx(t)
	x := leaf(c, 2, 3)
	for want, grads := range map[string][]*tensor.Tensor{
		"Backward returned 2 gradients: want 1":              {nil, nil},
		"gradient of input 0 does not have its shape":        one(vec(c, 1)),
		"gradient of input 0 does not have its shape and dt": one(tensor.Ones(c, tensor.Float32, 2)),
	} {
		op := square
		op.Backward = func(*tensor.Ctx, []*tensor.Tensor, []*tensor.Tensor, []bool) []*tensor.Tensor { return grads }
		e := misuse(t, func() { backward(c, total(c, tensor.Custom(c, op, x)[0])) })
		require.Equal(t, "square", e.Op)
		require.Contains(t, e.Msg, want)
	}
}

// block is a small network with dropout; w is used twice.
func block(c *tensor.Ctx, x, w *tensor.Tensor) *tensor.Tensor {
	h := tensor.Dropout(c, tensor.Tanh(c, tensor.MatMul(c, x, w)), 0.3)
	return tensor.Add(c, x, tensor.Dropout(c.Sub("proj"), tensor.MatMul(c, h, w), 0.2))
}

// network runs three blocks as wrap says and returns the bits of the loss and of the
// gradients of input and weights.
func network(t *testing.T, wrap func(c *tensor.Ctx, i int, x, w *tensor.Tensor) *tensor.Tensor) (bits [][]byte,
	hooks []int) {
	c := newCtx(t).WithRandom(11, 5)
	x := tensor.Normal(c, tensor.Float32, 1, 0, 1, 6, 8).SetRequiresGrad(true)
	ws := make([]*tensor.Tensor, 3)
	hooks = make([]int, 3)
	for i := range ws {
		ws[i] = tensor.Normal(c, tensor.Float32, uint64(2+i), 0, 0.5, 8, 8).SetRequiresGrad(true)
		ws[i].OnGrad(func(*tensor.Ctx, *tensor.Tensor) { hooks[i]++ })
	}
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		h := x
		for i, w := range ws {
			h = wrap(c.Sub("block"), i, h, w)
		}
		loss := total(c, tensor.Mul(c, h, h))
		backward(c, loss)
		bits = append(bits, tensor.ReadBytes(c, loss))
		return nil
	})
	for _, p := range append(ws, x) {
		bits = append(bits, tensor.ReadBytes(c, p.Grad()))
	}
	return bits, hooks
}

func plain(c *tensor.Ctx, _ int, x, w *tensor.Tensor) *tensor.Tensor { return block(c, x, w) }

func checkpointed(c *tensor.Ctx, _ int, x, w *tensor.Tensor) *tensor.Tensor {
	return tensor.Checkpoint(c, "block", func(c *tensor.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		return one(block(c, in[0], w))
	}, one(x), []*tensor.Tensor{w, w})[0]
}

func nested(c *tensor.Ctx, i int, x, w *tensor.Tensor) *tensor.Tensor {
	return tensor.Checkpoint(c, "outer", func(c *tensor.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		return one(checkpointed(c, i, in[0], w))
	}, one(x), one(w))[0]
}

func TestCheckpointGivesTheSameBits(t *testing.T) {
	want, hooks := network(t, plain)
	require.Equal(t, []int{1, 1, 1}, hooks)
	for name, wrap := range map[string]func(c *tensor.Ctx, i int, x,
		w *tensor.Tensor) *tensor.Tensor{"checkpointed": checkpointed, "nested": nested} {
		got, hooks := network(t, wrap)
		require.Equal(t, want, got, name)
		require.Equal(t, []int{1, 1, 1}, hooks, name)
	}
}

func TestCheckpointSavesMemory(t *testing.T) {
	peak := func(wrap func(c *tensor.Ctx, i int, x, w *tensor.Tensor) *tensor.Tensor) int64 {
		c := newCtx(t)
		x := tensor.Ones(c, tensor.Float32, 4096, 8).SetRequiresGrad(true)
		w := tensor.Ones(c, tensor.Float32, 8, 8).SetRequiresGrad(true)
		var held int64
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			h := x
			for range 6 {
				h = wrap(c, 0, h, w)
			}
			held = inUse(c)
			backward(c, total(c, h))
			return nil
		})
		return held
	}
	require.Less(t, peak(checkpointed), peak(plain)/2)
}

func TestCheckpointPassesOnWhatNeedsNoGradient(t *testing.T) {
	c := newCtx(t)
	x, ids := leaf(c, 1, 2, 3), tensor.FromSlice(c, []int64{2, 0}, 2)
	f := func(c *tensor.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		return []*tensor.Tensor{tensor.Gather(c, in[0], 0, in[1]), in[1], in[0]}
	}
	out := tensor.Checkpoint(c, "gather", f, []*tensor.Tensor{x, ids, nil}, nil)
	require.NotSame(t, x, out[2])
	tensor.Backward(c, []*tensor.Tensor{out[0], out[2]}, []*tensor.Tensor{vec(c, 10, 20), vec(c, 1, 1, 1)}, nil)
	require.Equal(t, []float64{21, 1, 11}, gradOf(c, x))

	out = tensor.Checkpoint(c.NoGrad(), "gather", f, []*tensor.Tensor{x, ids, nil}, nil)
	require.False(t, out[0].RequiresGrad())
}

func TestCheckpointedParametersMustNotChange(t *testing.T) {
	c := newCtx(t)
	x, w := leaf(c, 2), leaf(c, 3)
	y := tensor.Checkpoint(c, "mul", func(c *tensor.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		return one(tensor.Mul(c, in[0], w))
	}, one(x), one(w))[0]
	tensor.ScaleInto(c.NoGrad(), w, 2)
	require.Contains(t, misuse(t, func() { backward(c, y) }).Msg, "changed in place")
}
