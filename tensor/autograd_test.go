// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

func TestGradientsAccumulate(t *testing.T) {
	c := newCtx(t)
	w := leaf(c, 1, 2, 3)
	require.Nil(t, w.Grad())
	backward(c, total(c, tensor.Mul(c, w, w)))
	require.Equal(t, []float64{2, 4, 6}, gradOf(c, w))
	backward(c, total(c, w))
	require.Equal(t, []float64{3, 5, 7}, gradOf(c, w))
	w.ZeroGrad()
	require.Nil(t, w.Grad())
	backward(c, total(c, w))
	require.Equal(t, []float64{1, 1, 1}, gradOf(c, w), "the first contribution after ZeroGrad is all there is")
}

// A stage of a pipeline gets the gradients of its inputs and accumulates those of its weights in one walk: with the
// stage before, all gradients have the bits of one Backward over both.
func TestBackwardOfStages(t *testing.T) {
	for _, dt := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		testBackwardOfStages(t, dt)
	}

	c := newCtx(t)
	// The gradient of a tensor inside is returned, too.
	w := leaf(c, 2)
	y := tensor.Mul(c, w, w)
	inner := tensor.Backward(c, []*tensor.Tensor{total(c, tensor.Mul(c, y, w))}, nil, []*tensor.Tensor{y},
		tensor.Accumulating())
	require.Equal(t, []float64{2}, values(c, inner[0]))
	require.Equal(t, []float64{12}, gradOf(c, w), "of w³")
}

// testBackwardOfStages compares one walk with those of two stages whose weights and activations have a dtype.
func testBackwardOfStages(t *testing.T, dt tensor.DType) {
	c := newCtx(t)
	const rows, width = 5, 7
	draw := func(seed uint64, shape ...int) *tensor.Tensor {
		return tensor.Cast(c.NoGrad(), tensor.Normal(c, tensor.Float32, seed, 0, 1, shape...), dt)
	}
	x := draw(9, rows, width)
	first := func(c *tensor.Ctx, ws []*tensor.Tensor) (y, z *tensor.Tensor) {
		y = tensor.LinearActivated(c, x, ws[0], nil, tensor.ActivationGELU)
		return y, tensor.RMSNorm(c, y, ws[2], 1e-5)
	}
	second := func(c *tensor.Ctx, ws []*tensor.Tensor, y, z *tensor.Tensor) *tensor.Tensor {
		h := tensor.LinearActivated(c, z, ws[1], nil, tensor.ActivationSiLU)
		return total(c, tensor.Mul(c, tensor.Add(c, tensor.Linear(c, h, ws[3], nil), z), y))
	}
	run := func(step func(c *tensor.Ctx, ws []*tensor.Tensor)) (grads [][]byte, hooks int) {
		ws := []*tensor.Tensor{draw(1, width, width), draw(2, width, width), draw(4, width), draw(3, width, width)}
		for _, w := range ws {
			w.SetRequiresGrad(true).OnGrad(func(*tensor.Ctx, *tensor.Tensor) { hooks++ })
		}
		for range 2 { // micro-batches
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				step(c, ws)
				return nil
			})
		}
		for _, w := range ws {
			grads = append(grads, tensor.ReadBytes(c, w.Grad()))
		}
		return grads, hooks
	}
	want, calls := run(func(c *tensor.Ctx, ws []*tensor.Tensor) {
		y, z := first(c, ws)
		backward(c, second(c, ws, y, z))
	})
	got, hooks := run(func(c *tensor.Ctx, ws []*tensor.Tensor) {
		y, z := first(c, ws)
		in := []*tensor.Tensor{y.Boundary(), z.Boundary()}
		loss := second(c, ws, in[0], in[1])
		received := tensor.Backward(c, []*tensor.Tensor{loss}, nil, in, tensor.Accumulating())
		require.Equal(t, dt, received[0].DType())
		require.Nil(t, in[0].Grad(), "what wrt names is returned")
		require.Nil(t, tensor.Backward(c, []*tensor.Tensor{y, z}, received, nil))
	})
	require.Equal(t, want, got, "%v", dt)
	require.Equal(t, calls, hooks, "of leaves whose gradients are complete")
}

func TestGradientIsContiguousForStridedLeaves(t *testing.T) {
	c := newCtx(t)
	m := tensor.FromSlice(c, []float64{1, 2, 3, 4, 5, 6}, 2, 3)
	w := tensor.Detach(tensor.Transpose(c, m, 0, 1)).SetRequiresGrad(true)
	backward(c, total(c, tensor.Mul(c, w, w)))
	require.True(t, w.Grad().IsContiguous())
	require.Equal(t, []float64{2, 8, 4, 10, 6, 12}, gradOf(c, w))
}

func TestSharedSubexpressionsAndDiamonds(t *testing.T) {
	c := newCtx(t)
	x := leaf(c, 3)
	y := tensor.Mul(c, x, x)                                  // x²
	z := tensor.Add(c, tensor.Mul(c, y, x), y)                // x³ + x²
	u := tensor.Mul(c, tensor.Sub(c, z, y), tensor.Neg(c, z)) // −x³(x³+x²)
	backward(c, u)
	require.Equal(t, []float64{-(6*243 + 5*81)}, gradOf(c, x))
}

// TestOneBackwardForManyUses: the order of additions is the graph's, youngest op first,
// and does not depend on maps or schedules.
func TestOrderIsDeterministic(t *testing.T) {
	var want []float64
	for range 20 {
		c := newCtx(t)
		x := tensor.Full(c, tensor.Float32, 0.1, 64).SetRequiresGrad(true)
		sum := tensor.Scalar(c, tensor.Float32, 0)
		for i := range 20 {
			sum = tensor.Add(c, sum, total(c, tensor.Affine(c, x, 1/float64(3*i+1), 0)))
		}
		backward(c, sum)
		if want == nil {
			want = gradOf(c, x)
		}
		require.Equal(t, want, gradOf(c, x))
	}
}

func TestHooksFireOnceWhenComplete(t *testing.T) {
	c := newCtx(t)
	tied, other := leaf(c, 2), leaf(c, 5)
	var order []string
	var seen []float64
	hook := func(name string) func(*tensor.Ctx, *tensor.Tensor) {
		return func(c *tensor.Ctx, p *tensor.Tensor) {
			order = append(order, name)
			seen = append(seen, gradOf(c, p)...)
		}
	}
	behind := tied.AfterGrad(hook("behind"))
	remove := tied.OnGrad(hook("tied"))
	other.OnGrad(hook("other"))
	loss := func() *tensor.Tensor {
		y := tensor.Mul(c, tied, tied)                      // the oldest use: complete last
		return tensor.Mul(c, tensor.Mul(c, y, other), tied) // tied³·other
	}
	backward(c, loss())
	require.Equal(t, []string{"other", "tied", "behind"}, order)
	require.Equal(t, []float64{8, 60, 60}, seen)
	behind()

	order, seen = nil, nil
	backward(c, loss())
	require.Equal(t, []string{"other", "tied"}, order, "once for each Backward")
	require.Equal(t, []float64{16, 120}, seen, "with what was accumulated")

	remove()
	order = nil
	backward(c, loss())
	require.Equal(t, []string{"other"}, order)
}

func TestHooksOfUnusedLeavesDoNotFire(t *testing.T) {
	c := newCtx(t)
	x, unused := leaf(c, 1), leaf(c, 1)
	fired := 0
	unused.OnGrad(func(*tensor.Ctx, *tensor.Tensor) { fired++ })
	backward(c, x)
	require.Zero(t, fired)
	require.Nil(t, unused.Grad())
}

func TestReaching(t *testing.T) {
	c := newCtx(t)
	x, y, root := leaf(c, 1), leaf(c, 2), leaf(c, 3)
	calls := 0
	option := tensor.Reaching(func(reached func(*tensor.Tensor) bool) {
		calls++
		require.Nil(t, x.Grad(), "before the first gradient")
		require.True(t, reached(x))
		require.False(t, reached(y))
		require.True(t, reached(root))
	})
	tensor.Backward(c, []*tensor.Tensor{tensor.Neg(c, x), root}, nil, nil, option)
	require.Equal(t, 1, calls)
	require.Nil(t, y.Grad())
}

// Gradients of wrt are given away as soon as each is complete, with the values that Backward returns otherwise, and do
// not belong to its scope.
func TestCompleting(t *testing.T) {
	c := newCtx(t)
	x, y, z := leaf(c, 1, 2), leaf(c, 3, 4), leaf(c, 5, 6)
	loss := func(c *tensor.Ctx) []*tensor.Tensor {
		return []*tensor.Tensor{total(c, tensor.Mul(c, tensor.Exp(c, tensor.Mul(c, x, y)), x))}
	}
	wrt := []*tensor.Tensor{z, x, y}
	want := tensor.Backward(c, loss(c), nil, wrt)
	var order []int
	got := make([]*tensor.Tensor, 3)
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		rest := tensor.Backward(c, loss(c), nil, wrt, tensor.Completing(func(i int, g *tensor.Tensor) {
			order, got[i] = append(order, i), g
		}))
		require.Equal(t, make([]*tensor.Tensor, 3), rest)
		return nil
	})
	require.ElementsMatch(t, []int{1, 2}, order)
	require.Nil(t, got[0])
	for _, i := range order {
		require.Equal(t, values(c, want[i]), values(c, got[i]))
		require.Nil(t, wrt[i].Grad())
		got[i].Free()
	}
}

func TestRootsThatAreLeaves(t *testing.T) {
	c := newCtx(t)
	x := leaf(c, 1, 2)
	fired := 0
	x.OnGrad(func(*tensor.Ctx, *tensor.Tensor) { fired++ })
	tensor.Backward(c, []*tensor.Tensor{x}, []*tensor.Tensor{vec(c, 5, 7)}, nil)
	require.Equal(t, []float64{5, 7}, gradOf(c, x))
	require.Equal(t, 1, fired)

	tensor.Backward(c, []*tensor.Tensor{x, total(c, x), x}, []*tensor.Tensor{vec(c, 1, 1), nil, vec(c, 2, 2)}, nil)
	require.Equal(t, []float64{9, 11}, gradOf(c, x), "as a root twice, and below another root")
	require.Equal(t, 2, fired)

	g := tensor.Backward(c, []*tensor.Tensor{x}, []*tensor.Tensor{vec(c, 3, 4)}, []*tensor.Tensor{x})
	require.Equal(t, []float64{3, 4}, values(c, g[0]))
}

func TestSeveralRoots(t *testing.T) {
	c := newCtx(t)
	x := leaf(c, 2)
	y := tensor.Mul(c, x, x)
	z := tensor.Mul(c, y, x)
	tensor.Backward(c, []*tensor.Tensor{z, y, z}, []*tensor.Tensor{vec(c, 1), vec(c, 10), vec(c, 100)}, nil)
	require.Equal(t, []float64{101*12 + 10*4}, gradOf(c, x))
}

func TestWrt(t *testing.T) {
	c := newCtx(t)
	x, w := leaf(c, 2), leaf(c, 3)
	w.OnGrad(func(*tensor.Ctx, *tensor.Tensor) { t.Error("a hook ran") })
	h := tensor.Mul(c, x, w) // 6
	y := tensor.Mul(c, h, h) // 36
	unrelated := leaf(c, 1)
	g := tensor.Backward(c, one(y), nil, []*tensor.Tensor{h, x, w, y, unrelated, h}, tensor.RetainGraph())
	require.Equal(t, []float64{12}, values(c, g[0]))
	require.Equal(t, []float64{36}, values(c, g[1]))
	require.Equal(t, []float64{24}, values(c, g[2]))
	require.Equal(t, []float64{1}, values(c, g[3]), "the root itself")
	require.Nil(t, g[4])
	require.Equal(t, []float64{12}, values(c, g[5]), "named twice, computed once")
	require.Nil(t, x.Grad(), "nothing is accumulated")
	require.Nil(t, w.Grad())

	backward(c, tensor.Mul(c, tensor.Detach(y), x))
	require.Equal(t, []float64{36}, gradOf(c, x))
}

// spy is the identity; its gradient notes that it was computed.
func spy(c *tensor.Ctx, name string, log *[]string, x *tensor.Tensor) *tensor.Tensor {
	return tensor.Custom(c, tensor.CustomOp{
		Name:    name,
		Forward: func(_ *tensor.Ctx, in []*tensor.Tensor) (out, saved []*tensor.Tensor) { return in, nil },
		Backward: func(_ *tensor.Ctx, _, grads []*tensor.Tensor, _ []bool) []*tensor.Tensor {
			*log = append(*log, name)
			return grads
		},
	}, x)[0]
}

func TestOnlyWhatLeadsToWrtIsComputed(t *testing.T) {
	c := newCtx(t)
	x, w := leaf(c, 2), leaf(c, 3)
	var log []string
	y := tensor.Mul(c, spy(c, "x", &log, x), spy(c, "w", &log, w))
	inputs := tensor.Backward(c, one(y), nil, one(x), tensor.RetainGraph())
	require.Equal(t, []string{"x"}, log)
	require.Equal(t, []float64{3}, values(c, inputs[0]))
	weights := tensor.Backward(c, one(y), nil, one(w))
	require.Equal(t, []string{"x", "w"}, log)
	require.Equal(t, []float64{2}, values(c, weights[0]))
}

func TestSecondBackward(t *testing.T) {
	c := newCtx(t)
	x := leaf(c, 2)
	y := tensor.Mul(c, x, x)
	backward(c, y, tensor.RetainGraph())
	backward(c, y)
	require.Equal(t, []float64{8}, gradOf(c, x))
	e := misuse(t, func() { backward(c, y) })
	require.Equal(t, "Backward", e.Op)
	require.Contains(t, e.Msg, "the graph of Mul is gone")
	require.Contains(t, e.Msg, "RetainGraph")
}

func TestChangedInPlaceIsDetected(t *testing.T) {
	c := newCtx(t)
	x := leaf(c, 2)
	h := tensor.Affine(c, x, 1, 0)
	y := tensor.Mul(c, h, h)
	tensor.ScaleInto(c.NoGrad(), h, 2)
	e := misuse(t, func() { backward(c, y) })
	require.Contains(t, e.Msg, "a tensor that Mul saved for its gradient was changed in place since")

	h = tensor.Affine(c, x, 1, 0)
	y = tensor.Affine(c, h, 3, 0) // its gradient reads nothing
	tensor.ScaleInto(c.NoGrad(), h, 2)
	backward(c, y)
	require.Equal(t, []float64{3}, gradOf(c, x))

	y = tensor.Mul(c, h, x)
	h.Free()
	e = misuse(t, func() { backward(c, y) })
	require.Contains(t, e.Msg, "used after it was freed")
}

func TestWritesInPlaceToGraphAreRefused(t *testing.T) {
	c := newCtx(t)
	x := leaf(c, 2)
	e := misuse(t, func() { tensor.ScaleInto(c, x, 2) })
	require.Contains(t, e.Msg, "takes part in autograd")
	tensor.ScaleInto(c.NoGrad(), x, 2)
	tensor.ScaleInto(c, tensor.Detach(x), 2)
	require.Equal(t, []float64{8}, values(c, x))
}

func TestDetachAndNoGrad(t *testing.T) {
	c := newCtx(t)
	x := leaf(c, 3)
	d := tensor.Detach(x)
	require.False(t, d.RequiresGrad())
	require.True(t, d.SharesMemory(x))
	backward(c, tensor.Mul(c, x, d))
	require.Equal(t, []float64{3}, gradOf(c, x))

	y := tensor.Mul(c.NoGrad(), x, x)
	require.False(t, y.RequiresGrad())
	e := misuse(t, func() { backward(c, y) })
	require.Contains(t, e.Msg, "does not require grad")
	require.False(t, c.NoGrad().Grad())
	require.True(t, tensor.Mul(c.NoGrad().EnableGrad(), x, x).RequiresGrad())
}

func TestLeaves(t *testing.T) {
	c := newCtx(t)
	x := leaf(c, 1)
	require.True(t, x.IsLeaf())
	y := tensor.Neg(c, x)
	require.True(t, y.RequiresGrad())
	require.False(t, y.IsLeaf())
	require.Contains(t, misuse(t, func() { y.SetRequiresGrad(true) }).Msg, "result of Neg")
	require.Contains(t, misuse(t, func() { tensor.Zeros(c, tensor.Int32, 1).SetRequiresGrad(true) }).Msg,
		"floating-point")
	require.Contains(t, misuse(t, func() { vec(c, 1).OnGrad(nil) }).Msg, "not a leaf")
	x.SetRequiresGrad(false)
	backward(c, y)
	require.Nil(t, x.Grad(), "no longer a leaf")
}

func TestBackwardMisuse(t *testing.T) {
	c := newCtx(t)
	x := leaf(c, 1, 2)
	y := tensor.Neg(c, x)
	require.Contains(t, misuse(t, func() { backward(c, y) }).Msg, "a root of 2 elements needs a gradient")
	for _, g := range []*tensor.Tensor{vec(c, 1), tensor.Ones(c, tensor.Float32, 2)} {
		require.Contains(t, misuse(t, func() { tensor.Backward(c, one(y), one(g), nil) }).Msg,
			"differ in shape or dtype")
	}
	require.Contains(t, misuse(t, func() { tensor.Backward(c, []*tensor.Tensor{y, y}, one(vec(c, 1, 1)), nil) }).Msg,
		"1 gradients for 2 roots")
	tensor.Backward(c, one(y), one(vec(c, 1, 2)), nil)
	require.Equal(t, []float64{-1, -2}, gradOf(c, x), "the graph is unharmed")
}

func TestDeepChain(t *testing.T) {
	c := newCtx(t)
	x := leaf(c, 1)
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		y := x
		for range 10_000 {
			y = tensor.Affine(c, y, 1, 1)
		}
		backward(c, y)
		return nil
	})
	require.Equal(t, []float64{1}, gradOf(c, x))
}

func TestSwapGrad(t *testing.T) {
	c := newCtx(t)
	x := leaf(c, 3)
	backward(c, x)
	first := x.SwapGrad(nil, false)
	require.Equal(t, []float64{1}, values(c, first))
	require.Nil(t, x.Grad())
	backward(c, tensor.Affine(c, x, 5, 0))
	require.Equal(t, []float64{5}, gradOf(c, x))
	require.Equal(t, []float64{1}, values(c, first), "the buffer that was taken away")

	x.SwapGrad(first, true)
	backward(c, tensor.Affine(c, x, 7, 0))
	require.Equal(t, []float64{8}, gradOf(c, x), "added to what the buffer held")
	require.Same(t, first, x.Grad())
	x.SwapGrad(first, false)
	backward(c, tensor.Affine(c, x, 7, 0))
	require.Equal(t, []float64{7}, gradOf(c, x), "overwritten")

	require.Contains(t, misuse(t, func() { x.SwapGrad(vec(c, 1, 2), true) }).Msg, "want a contiguous buffer")
	require.Contains(t, misuse(t, func() { vec(c, 1).SwapGrad(nil, false) }).Msg, "not a leaf")
}

// TestTies: equal extremes share the gradient, so that permuting operands changes nothing.
func TestTies(t *testing.T) {
	c := newCtx(t)
	x, y := leaf(c, 1, 2, 3), leaf(c, 1, 5, 0)
	backward(c, total(c, tensor.Maximum(c, x, y)))
	require.Equal(t, []float64{0.5, 0, 1}, gradOf(c, x))
	require.Equal(t, []float64{0.5, 1, 0}, gradOf(c, y))
	z := leaf(c, 7, 1, 7, 7)
	backward(c, tensor.Affine(c, tensor.Max(c, z, 0, false), 3, 0))
	require.Equal(t, []float64{1, 0, 1, 1}, gradOf(c, z))
	zero := leaf(c, 0, -0.5)
	backward(c, total(c, tensor.Add(c, tensor.ReLU(c, zero), tensor.Abs(c, zero))))
	require.Equal(t, []float64{0, -1}, gradOf(c, zero))
}
