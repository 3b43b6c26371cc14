// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/tensor"
)

// halfLeaf is a leaf of bfloat16.
func halfLeaf(c *tensor.Ctx, key uint64, shape ...int) *tensor.Tensor {
	return tensor.Normal(c.NoGrad(), tensor.BFloat16, key, 0, 1, shape...).SetRequiresGrad(true)
}

// TestGradientsOfHalfLeavesAddInFloat32: what is added to a gradient is not rounded to the leaf's dtype.
func TestGradientsOfHalfLeavesAddInFloat32(t *testing.T) {
	c := newCtx(t)
	for name, f := range map[string]func(w *tensor.Tensor) *tensor.Tensor{
		"product": func(w *tensor.Tensor) *tensor.Tensor {
			return tensor.MatMul(c, tensor.Full(c, w.DType(), 1, 1, 1), w)
		},
		"embedding": func(w *tensor.Tensor) *tensor.Tensor {
			return tensor.Embedding(c, w, tensor.Zeros(c, tensor.Int32, 1))
		},
		"sum":  func(w *tensor.Tensor) *tensor.Tensor { return tensor.Affine(c, w, 1, 0) },
		"cast": func(w *tensor.Tensor) *tensor.Tensor { return tensor.Cast(c, w, tensor.Float32) },
		"bias": func(w *tensor.Tensor) *tensor.Tensor {
			x := tensor.Full(c, w.DType(), 1, 1, 1)
			return tensor.Linear(c, x, x, tensor.Reshape(c, w, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := halfLeaf(c, 1, 1, 1)
			require.Equal(t, tensor.Float32, w.GradDType())
			for _, seed := range []float64{256, 1, 1} { // in bfloat16 256 + 1 is 256
				y := f(w)
				tensor.Backward(c, []*tensor.Tensor{y}, []*tensor.Tensor{tensor.Full(c, y.DType(), seed, y.Shape()...)},
					nil)
			}
			require.Equal(t, tensor.Float32, w.Grad().DType())
			require.Equal(t, []float32{258}, tensor.ToSlice[float32](c, w.Grad()))
			w.ZeroGrad()
			y, z := f(w), f(w) // several uses in one pass
			grads := []*tensor.Tensor{tensor.Full(c, y.DType(), 1, y.Shape()...),
				tensor.Full(c, y.DType(), 256, y.Shape()...)}
			tensor.Backward(c, []*tensor.Tensor{y, z}, grads, nil)
			require.Equal(t, []float32{257}, tensor.ToSlice[float32](c, w.Grad()))
		})
	}
}

// TestAHalfLeafsProductIsNotRounded: its elements are those of the product of float32 copies.
func TestAHalfLeafsProductIsNotRounded(t *testing.T) {
	c := newCtx(t)
	x, w := tensor.Normal(c, tensor.BFloat16, 2, 0, 1, 50, 20), halfLeaf(c, 3, 30, 20)
	y := tensor.Linear(c, x, w, nil)
	g := tensor.Normal(c, tensor.BFloat16, 4, 0, 1, y.Shape()...)
	tensor.Backward(c, []*tensor.Tensor{y}, []*tensor.Tensor{g}, nil)
	want := tensor.MatMul(c, tensor.Transpose(c, tensor.Cast(c, g, tensor.Float32), 0, 1),
		tensor.Cast(c, x, tensor.Float32))
	require.Equal(t, tensor.ToSlice[float32](c, want), tensor.ToSlice[float32](c, w.Grad()))
	rounded := tensor.Cast(c, tensor.Cast(c, want, tensor.BFloat16), tensor.Float32)
	require.NotEqual(t, tensor.ToSlice[float32](c, rounded), tensor.ToSlice[float32](c, w.Grad()))
}

// TestCheckpointOfHalfLeaves: recomputation has the bits of a run without it, with inputs of a half type that go to
// several places.
func TestCheckpointOfHalfLeaves(t *testing.T) {
	c := newCtx(t)
	run := func(checkpoint bool) (grads [][]float32, dx []dtype.BF16) {
		x, w, v := halfLeaf(c, 5, 40, 16), halfLeaf(c, 6, 16, 16), halfLeaf(c, 7, 16, 16)
		block := func(c *tensor.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
			h := tensor.Linear(c, in[0], w, nil)
			return []*tensor.Tensor{tensor.Add(c,
				tensor.Add(c, tensor.Mul(c, h, in[0]), tensor.Linear(c, in[0], v, nil)), tensor.Tanh(c, in[0]))}
		}
		before := tensor.Affine(c, x, 2, 0)
		in := tensor.Tanh(c, before)
		for range 2 {
			if checkpoint {
				in = tensor.Checkpoint(c, "block", block, []*tensor.Tensor{in}, []*tensor.Tensor{w, v})[0]
			} else {
				in = block(c, []*tensor.Tensor{in})[0]
			}
		}
		dx = tensor.ToSlice[dtype.BF16](c, tensor.Backward(c, []*tensor.Tensor{total(c, in)}, nil,
			[]*tensor.Tensor{before}, tensor.RetainGraph())[0])
		backward(c, total(c, in))
		for _, l := range []*tensor.Tensor{x, w, v} {
			grads = append(grads, tensor.ToSlice[float32](c, l.Grad()))
		}
		return grads, dx
	}
	want, dx := run(false)
	got, again := run(true)
	require.Equal(t, want, got)
	require.Equal(t, dx, again)
}

// TestGradientBufferOfAHalfLeaf: SwapGrad takes float32 alone.
func TestGradientBufferOfAHalfLeaf(t *testing.T) {
	c := newCtx(t)
	w := halfLeaf(c, 8, 3)
	require.Contains(t, misuse(t, func() { w.SwapGrad(tensor.Zeros(c, tensor.BFloat16, 3), true) }).Msg, "of float32")
	w.SwapGrad(tensor.Zeros(c, tensor.Float32, 3), true)
	require.Equal(t, tensor.BFloat16, tensor.Affine(c, w, 1, 0).GradDType(), "the result of an op")
}
