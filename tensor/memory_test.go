// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/tensor"
)

func TestScopeFreesAllButWhatIsReturnedOrKept(t *testing.T) {
	c := newCtx(t)
	outside := vec(c, 1, 2)
	before := inUse(c)
	var lost, kept *tensor.Tensor
	out := c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		lost = tensor.Add(c, outside, outside)
		kept = c.Keep(tensor.Neg(c, lost))
		return []*tensor.Tensor{tensor.Mul(c, lost, lost), nil, outside}
	})
	require.Equal(t, before+16+16, inUse(c))
	require.Equal(t, []float64{4, 16}, values(c, out[0]))
	require.Equal(t, []float64{-2, -4}, values(c, kept))
	require.Equal(t, []float64{1, 2}, values(c, outside))
	out[0].Free()
	kept.Free()
	kept.Free() // twice is harmless
	require.Equal(t, before, inUse(c))
	e := misuse(t, func() { tensor.Neg(c, lost) })
	require.Equal(t, "Neg", e.Op)
	require.Contains(t, e.Msg, "used after it was freed; it was made by Add")
}

func TestNestedScopes(t *testing.T) {
	c := newCtx(t)
	before := inUse(c)
	var view *tensor.Tensor
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		inner := c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			x := tensor.Ones(c, tensor.Float64, 4)
			view = tensor.Slice(c, x, 0, 1, 3)
			return []*tensor.Tensor{view, view} // a view keeps its storage, once
		})
		require.Equal(t, before+32, inUse(c))
		require.Equal(t, []float64{1, 1}, values(c, inner[0]))
		return nil
	})
	require.Equal(t, before, inUse(c))
	misuse(t, func() { tensor.Neg(c, view) })
}

// Scopes that are opened side by side hold the graphs of several micro-batches: forward and backward passes take turns,
// with the gradients of one after the other, and each scope frees its own memory.
func TestOpenScopes(t *testing.T) {
	c := newCtx(t)
	w := leaf(c, 2, 3)
	loss := func(c *tensor.Ctx, x float64) *tensor.Tensor {
		return total(c, tensor.Exp(c, tensor.Mul(c, w, vec(c, x, -x))))
	}
	for _, x := range []float64{1, 0.5, 0.25} {
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			backward(c, loss(c, x))
			return nil
		})
	}
	want := gradOf(c, w)
	w.ZeroGrad()
	before := inUse(c)
	type microBatch struct {
		c     *tensor.Ctx
		close func(...*tensor.Tensor)
		loss  *tensor.Tensor
	}
	var open []microBatch
	forward := func(x float64) {
		in, end := c.OpenScope()
		open = append(open, microBatch{in, end, loss(in, x)})
	}
	var each int64
	backwardAndClose := func() {
		m := open[0]
		open = open[1:]
		backward(m.c, m.loss)
		m.close()
	}
	forward(1)
	each = inUse(c) - before
	forward(0.5)
	require.Equal(t, before+2*each, inUse(c))
	backwardAndClose()
	require.Equal(t, before+each+16, inUse(c), "the second graph and the gradient of two elements")
	forward(0.25)
	backwardAndClose()
	backwardAndClose()
	require.Equal(t, want, gradOf(c, w))
	require.Equal(t, before+16, inUse(c))
}

func TestClosedScopes(t *testing.T) {
	c := newCtx(t)
	before := inUse(c)
	var out *tensor.Tensor
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		in, end := c.OpenScope()
		inner, endInner := in.OpenScope()
		lost := tensor.Ones(inner, tensor.Float64, 2)
		require.Contains(t, misuse(t, func() { end() }).Msg, "still open: want them closed first")
		endInner()
		misuse(t, func() { tensor.Neg(c, lost) })
		out = tensor.Neg(in, vec(in, 1, 2))
		end(out)
		end() // does nothing
		require.Equal(t, []float64{-1, -2}, values(c, out), "it moved to the enclosing scope")
		require.Equal(t, before+16, inUse(c))
		for name, use := range map[string]func(){
			"Ones":  func() { tensor.Ones(in, tensor.Float64, 2) },
			"Neg":   func() { tensor.Neg(in, out) },
			"Scope": func() { in.Scope(func(*tensor.Ctx) []*tensor.Tensor { return nil }) },
		} {
			require.Equal(t, "the context's scope was closed", misuse(t, use).Msg, name)
		}
		return nil
	})
	require.Equal(t, before, inUse(c))
}

func TestUseAfterFreeNamesOpAndStep(t *testing.T) {
	c := newCtx(t)
	c.SetStep(41)
	x := tensor.Ones(c.Sub("model.h.3"), tensor.Float32, 2, 3)
	y := tensor.Transpose(c, x, 0, 1)
	x.Free()
	c.SetStep(42)
	e := misuse(t, func() { tensor.MatMul(c.Sub("model.lm_head"), x, y) })
	require.EqualError(t, e, "tensor.MatMul(float32[2 3]): used after it was freed; it was made by Ones in step 41. "+
		"Return it from its Scope or Keep it (in model.lm_head)")
	misuse(t, func() { tensor.ToSlice[float32](c, y) })
}

func TestPanicInScopeFrees(t *testing.T) {
	c := newCtx(t)
	before := inUse(c)
	for range 3 {
		require.Panics(t, func() {
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				x := tensor.Ones(c, tensor.Float32, 100).SetRequiresGrad(true)
				c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
					tensor.Mul(c, x, x)
					panic("stop")
				})
				return nil
			})
		})
		require.Equal(t, before, inUse(c))
	}
}

func TestPanicInBackwardFrees(t *testing.T) {
	c := newCtx(t)
	x := tensor.Ones(c, tensor.Float32, 100).SetRequiresGrad(true)
	before := inUse(c)
	op := square
	op.Backward = func(c *tensor.Ctx, saved, _ []*tensor.Tensor, _ []bool) []*tensor.Tensor {
		tensor.Neg(c, saved[0])
		panic("stop")
	}
	require.Panics(t, func() {
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			y := tensor.Custom(c, op, x)[0]
			backward(c, total(c, tensor.Add(c, tensor.Neg(c, y), tensor.Exp(c, x))))
			return nil
		})
	})
	require.Equal(t, before, inUse(c))
}

func TestBackwardReleasesWhatWasSaved(t *testing.T) {
	c := newCtx(t)
	const layers, bytes = 20, 8 * 1024
	x := tensor.Ones(c, tensor.Float64, 1024).SetRequiresGrad(true)
	before := inUse(c)
	var during []int64
	watch := tensor.CustomOp{
		Name:    "watch",
		Forward: func(_ *tensor.Ctx, in []*tensor.Tensor) (out, saved []*tensor.Tensor) { return in, nil },
		Backward: func(c *tensor.Ctx, _, grads []*tensor.Tensor, _ []bool) []*tensor.Tensor {
			during = append(during, inUse(c))
			return grads
		},
	}
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		out := c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { // a Unit: what was saved outlives it
			h := x
			for range layers {
				h = tensor.Custom(c, watch, tensor.Tanh(c, h))[0]
			}
			return one(total(c, h))
		})
		require.Equal(t, before+layers*bytes+8, inUse(c))
		backward(c, out[0])
		require.Len(t, during, layers)
		for i := 2; i < layers; i++ {
			require.Equal(t, during[i-1]-bytes, during[i], "after layer %d", layers-i)
		}
		return nil
	})
	require.Equal(t, before+bytes, inUse(c), "the leaf's gradient is left")
}

// TestGradientsWrtBelongToTheCaller: they go with the scope that Backward is called in.
func TestGradientsWrtBelongToTheCaller(t *testing.T) {
	c := newCtx(t)
	x := tensor.Ones(c, tensor.Float64, 4).SetRequiresGrad(true)
	before := inUse(c)
	var kept, gone *tensor.Tensor
	out := c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		y := tensor.Mul(c, x, x)
		g := tensor.Backward(c, one(y), one(tensor.Expand(c, vec(c, 3), 4)), []*tensor.Tensor{x, y})
		gone = g[1]
		return one(g[0])
	})
	require.Equal(t, []float64{6, 6, 6, 6}, values(c, out[0]))
	require.Equal(t, before+32, inUse(c))
	misuse(t, func() { values(c, gone) })
	out[0].Free()

	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		kept = c.Keep(tensor.Backward(c, one(total(c, tensor.Exp(c, x))), nil, one(x))[0])
		return nil
	})
	require.Equal(t, before+32, inUse(c))
	kept.Free()
	require.Equal(t, before, inUse(c))
}

// step is a small forward and backward pass, with everything in one scope.
func step(c *tensor.Ctx, x *tensor.Tensor, ws []*tensor.Tensor, learn bool) {
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		h := x
		for _, w := range ws {
			h = c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				return one(tensor.GELU(c, tensor.AddMM(c, nil, tensor.RMSNorm(c, h, nil, 1e-5), w)))
			})[0]
		}
		loss := total(c, tensor.Mul(c, h, h))
		if learn {
			backward(c, loss)
		}
		return nil
	})
}

func stepOperands(c *tensor.Ctx) (x *tensor.Tensor, ws []*tensor.Tensor) {
	for i := range 4 {
		ws = append(ws, tensor.Normal(c, tensor.Float32, uint64(i), 0, 0.1, 16, 16).SetRequiresGrad(true))
	}
	return tensor.Normal(c, tensor.Float32, 9, 0, 1, 8, 16), ws
}

func TestMicroBatchesAreFlat(t *testing.T) {
	c := newCtx(t)
	x, ws := stepOperands(c)
	step(c, x, ws, true) // makes the leaves' gradients
	step(c, x, ws, true)
	want, peak := inUse(c), c.Device().MemStats().Peak
	for i := range 50 {
		step(c, x, ws, i%7 != 3) // now and then a graph that Backward never sees
		require.Equal(t, want, inUse(c), "after step %d", i)
	}
	require.Equal(t, peak, c.Device().MemStats().Peak)
}

// TestAllocationsAreBounded: a step makes Go objects for tensors, storages and graph
// nodes, about 22 for each of its 14 ops with its gradient, and none that depend on the
// data. The bounds are what was measured and a tenth.
func TestAllocationsAreBounded(t *testing.T) {
	c := newCtx(t)
	x, ws := stepOperands(c)
	step(c, x, ws, true)
	require.LessOrEqual(t, testing.AllocsPerRun(50, func() { step(c, x, ws, true) }), 335.0)
	require.LessOrEqual(t, testing.AllocsPerRun(50, func() { step(c.NoGrad(), x, ws, false) }), 101.0)
}

func TestWithoutScopeTheCollectorFrees(t *testing.T) {
	c := newCtx(t)
	before := inUse(c)
	for range 100 {
		x := tensor.Ones(c, tensor.Float32, 1000).SetRequiresGrad(true)
		y := tensor.Mul(c, x, x)
		backward(c, total(c, y))
		tensor.Exp(c, x) // a graph that is never used
	}
	require.Positive(t, inUse(c)-before)
	c.Device().Collect()
	require.Equal(t, before, inUse(c))
}

func TestTensorsMayOutliveTheirDevice(t *testing.T) {
	for _, dev := range []*tensor.Device{tensor.NewCPU(1), joint.Device[*tensor.Device](deferred.New(1))} {
		func() {
			c := tensor.NewCtx(dev)
			tensor.Ones(c, tensor.Float32, 100)
			tensor.Ones(c, tensor.Float32, 1<<20)
		}()
		require.NoError(t, dev.Close())
		runtime.GC()
	}
}

func TestDevicesAreKeptApart(t *testing.T) {
	a, b := newCtx(t), newCtx(t)
	e := misuse(t, func() { tensor.Add(a, vec(a, 1), vec(b, 1)) })
	require.Contains(t, e.Msg, "lives on cpu, the context runs on cpu")
}
