// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Under Autocast a weight's gradient is the unrounded product of what was rounded: it has the bits of a float32 product
// of rounded operands.
func TestAutocastGradientsAreNotRounded(t *testing.T) {
	root := tensor.NewCtx(tensor.CPU()).WithRandom(1, 0)
	x := tensor.Normal(root.NoGrad(), tensor.Float32, 1, 0, 1, 6, 5)
	w := tensor.Normal(root.NoGrad(), tensor.Float32, 2, 0, 1, 3, 5).SetRequiresGrad(true)
	b := tensor.Normal(root.NoGrad(), tensor.Float32, 3, 0, 1, 3).SetRequiresGrad(true)
	for _, dt := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		w.ZeroGrad()
		b.ZeroGrad()
		c := root.Autocast(dt)
		y := tensor.Linear(c, x, w, b)
		require.Equal(t, dt, y.DType())
		dy := tensor.Normal(root.NoGrad(), dt, 4, 0, 1, 6, 3)
		tensor.Backward(c, []*tensor.Tensor{y}, []*tensor.Tensor{dy}, nil)

		n := root.NoGrad()
		rounded := func(t *tensor.Tensor) *tensor.Tensor {
			return tensor.Cast(n, tensor.Cast(n, t, dt), tensor.Float32)
		}
		require.Equal(t, tensor.ReadBytes(n, tensor.Cast(n, tensor.Linear(n, rounded(x), rounded(w), rounded(b)), dt)),
			tensor.ReadBytes(n, y))
		require.Equal(t, tensor.Float32, w.Grad().DType())
		require.Equal(t, tensor.ReadBytes(n, tensor.MatMul(n, tensor.Transpose(n, rounded(dy), 0, 1), rounded(x))),
			tensor.ReadBytes(n, w.Grad()))
		require.Equal(t, tensor.Float32, b.Grad().DType())
		require.Equal(t, tensor.ReadBytes(n, tensor.Sum(n, rounded(dy), []int{0}, false)),
			tensor.ReadBytes(n, b.Grad()))
	}
}

// The lower copy of a parameter is made once, and again when the parameter has changed.
func TestAutocastCopiesAParameterOnce(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	root := tensor.NewCtx(dev)
	w := tensor.Full(root, tensor.Float32, 1, 4, 4).SetRequiresGrad(true)
	x := tensor.Full(root, tensor.BFloat16, 1, 2, 4)
	first := func() float64 {
		out := 0.0
		root.Autocast(tensor.BFloat16).NoGrad().Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			out = tensor.Item(c, tensor.Select(c, tensor.Flatten(c, tensor.Linear(c, x, w, nil), 0, -1), 0, 0))
			return nil
		})
		return out
	}
	require.Equal(t, 4.0, first())
	before := dev.MemStats()
	require.Equal(t, 4.0, first())
	require.Equal(t, before.InUse, dev.MemStats().InUse)
	tensor.FillInto(root.NoGrad(), w, 2)
	require.Equal(t, 8.0, first())
	require.Equal(t, before.InUse, dev.MemStats().InUse, "in the same memory")

	y := tensor.Linear(root.Autocast(tensor.BFloat16), x, w, nil)
	tensor.FillInto(root.NoGrad(), w, 3)
	err := tensor.Try(func() {
		tensor.Backward(root, []*tensor.Tensor{tensor.Sum(root, y, nil, false)}, nil, nil)
	})
	require.ErrorContains(t, err, "changed in place since")
}

// A copy that the caller lends takes the place of a parameter whose memory is away, in products and where they are
// computed again; what needs float32 brings the parameter back. Results and gradients keep their bits.
func TestLentCopiesStandForParameters(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	root := tensor.NewCtx(dev)
	w := ramp(root, 4, 4).SetRequiresGrad(true)
	bias := ramp(root, 4).SetRequiresGrad(true)
	x := tensor.Cast(root, ramp(root, 2, 3, 4), tensor.BFloat16)
	targets := tensor.FromSlice(root, []int64{0, 1, 2, 3, 0, 1}, 6)
	pass := func(norm bool) (bits []string) {
		w.ZeroGrad()
		bias.ZeroGrad()
		root.Autocast(tensor.BFloat16).Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			y := tensor.Checkpoint(c, "again", func(c *tensor.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
				return []*tensor.Tensor{tensor.Add(c, tensor.Linear(c, in[0], w, bias), tensor.MatMul(c, in[0], w))}
			}, []*tensor.Tensor{x}, []*tensor.Tensor{w, bias})[0]
			rows := tensor.Reshape(c, tensor.LinearActivated(c, y, w, bias, tensor.ActivationGELU), 6, 4)
			loss := tensor.LinearCrossEntropy(c, rows, w, bias, targets, -100)
			if norm {
				loss = tensor.Add(c, loss, tensor.Sum(c, tensor.Mul(c, w, w), nil, false))
			}
			tensor.Backward(c, []*tensor.Tensor{loss}, nil, nil, tensor.DroppingLowered())
			bits = []string{string(tensor.ReadBytes(c, loss)), string(tensor.ReadBytes(c, w.Grad())),
				string(tensor.ReadBytes(c, bias.Grad()))}
			return nil
		})
		return bits
	}
	want, wantNorm := pass(false), pass(true)
	var brought int
	for _, p := range []*tensor.Tensor{w, bias} {
		elements := tensor.Clone(root.NoGrad(), tensor.Detach(p))
		p.LendLowered(tensor.Cast(root.NoGrad(), elements, tensor.BFloat16))
		p.Unload()
		p.OnMissing(func() {
			brought++
			p.Reload(tensor.Clone(root.NoGrad(), elements))
		})
	}
	require.Equal(t, want, pass(false))
	require.Zero(t, brought, "the parameters stayed away")
	require.True(t, w.Unloaded())
	require.Equal(t, wantNorm, pass(true))
	require.Equal(t, 1, brought, "w alone was needed")
	w.LendLowered(nil)
	require.Equal(t, wantNorm, pass(true), "its own copy again")

	require.ErrorContains(t, tensor.Try(func() { w.LendLowered(elementsOf(root, 4)) }), "a half type")
	require.ErrorContains(t, tensor.Try(func() { tensor.Zeros(root, tensor.BFloat16, 1).LendLowered(nil) }),
		"want a float32 parameter")
}

func elementsOf(c *tensor.Ctx, n int) *tensor.Tensor { return tensor.Zeros(c, tensor.Float32, n) }

// ramp are small numbers that bfloat16 rounds.
func ramp(c *tensor.Ctx, shape ...int) *tensor.Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i%7)*0.137 - 0.31 + float32(i)*0.011
	}
	return tensor.FromSlice(c, values, shape...)
}

// Recomputation runs in the precision of the first run, and gives its bits.
func TestAutocastAndCheckpoint(t *testing.T) {
	root := tensor.NewCtx(tensor.CPU()).WithRandom(1, 0)
	w := tensor.Normal(root.NoGrad(), tensor.Float32, 2, 0, 1, 8, 8).SetRequiresGrad(true)
	x := tensor.Normal(root.NoGrad(), tensor.Float32, 1, 0, 1, 6, 8).SetRequiresGrad(true)
	grads := func(checkpoint bool) [][]byte {
		w.ZeroGrad()
		x.ZeroGrad()
		c := root.Autocast(tensor.BFloat16)
		f := func(c *tensor.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
			return []*tensor.Tensor{tensor.Add(c, in[0], tensor.Tanh(c, tensor.Linear(c, in[0], w, nil)))}
		}
		var y *tensor.Tensor
		if checkpoint {
			y = tensor.Checkpoint(c, "block", f, []*tensor.Tensor{x}, []*tensor.Tensor{w})[0]
		} else {
			y = f(c, []*tensor.Tensor{x})[0]
		}
		require.Equal(t, tensor.Float32, y.DType(), "the widest")
		tensor.Backward(c, []*tensor.Tensor{tensor.Sum(c, tensor.Mul(c, y, y), nil, false)}, nil, nil)
		return [][]byte{tensor.ReadBytes(root, w.Grad()), tensor.ReadBytes(root, x.Grad())}
	}
	require.Equal(t, grads(false), grads(true))
}

func TestAutocastWantsALowerDType(t *testing.T) {
	require.EqualError(t, tensor.Try(func() { tensor.NewCtx(tensor.CPU()).Autocast(tensor.Float64) }),
		"tensor.Autocast: float64 is not a lower dtype: want bfloat16, float16 or float32")
}

// A bias of attention is lowered with the other operands, and its gradient is float32.
func TestAutocastAttentionBias(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	x := tensor.Normal(c, tensor.Float32, 1, 0, 1, 1, 2, 4, 8)
	bias := tensor.Normal(c, tensor.Float32, 2, 0, 1, 2, 4, 4).SetRequiresGrad(true)
	run := func(c *tensor.Ctx) (dt tensor.DType, grad []float32) {
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			y, _ := tensor.Attention(c, x, x, x,
				tensor.AttentionOptions{Bias: bias, Mask: tensor.Ones(c, tensor.Bool, 4)})
			dt = y.DType()
			tensor.Backward(c, []*tensor.Tensor{tensor.Sum(c, tensor.Mul(c, y, x), nil, false)}, nil, nil)
			return nil
		})
		grad = tensor.ToSlice[float32](c, bias.Grad())
		bias.ZeroGrad()
		return dt, grad
	}
	_, want := run(c)
	dt, got := run(c.Autocast(tensor.BFloat16))
	require.Equal(t, tensor.BFloat16, dt)
	require.NotEqual(t, want, got)
	require.InDeltaSlice(t, want, got, 0.05)
}
