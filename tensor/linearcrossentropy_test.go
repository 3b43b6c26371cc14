// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// head is a linear layer with targets, of which one in seven does not count.
type head struct {
	c                    *tensor.Ctx
	x, weight, bias, ids *tensor.Tensor
}

func newHead(dev *tensor.Device, rows, width, vocabulary int) head {
	c := tensor.NewCtx(dev)
	free := c.NoGrad()
	list := make([]int64, rows)
	for i := range list {
		list[i] = int64(i * 7919 % vocabulary)
		if i%7 == 3 {
			list[i] = -100
		}
	}
	return head{
		c: c, ids: tensor.FromSlice(c, list, rows),
		x:      tensor.Normal(free, tensor.Float32, 1, 0, 1, rows, width).SetRequiresGrad(true),
		weight: tensor.Normal(free, tensor.Float32, 2, 0, 1, vocabulary, width).SetRequiresGrad(true),
		bias:   tensor.Normal(free, tensor.Float32, 3, 0, 1, vocabulary).SetRequiresGrad(true),
	}
}

func (h head) fused(c *tensor.Ctx) *tensor.Tensor {
	return tensor.LinearCrossEntropy(c, h.x, h.weight, h.bias, h.ids, -100)
}

func (h head) apart(c *tensor.Ctx) *tensor.Tensor {
	z := tensor.AddMM(c, h.bias, h.x, tensor.Transpose(c, h.weight, 0, 1))
	return tensor.Sum(c, tensor.CrossEntropy(c, z, h.ids, -100), nil, false)
}

// grads runs backward with a seed and gives the leaves' gradients, which are forgotten.
func (h head) grads(c *tensor.Ctx, loss *tensor.Tensor, opts ...tensor.BackwardOption) (out [][]float32) {
	tensor.Backward(c, []*tensor.Tensor{loss}, []*tensor.Tensor{tensor.Full(c.NoGrad(), tensor.Float32, 1.0/263)}, nil,
		opts...)
	for _, t := range []*tensor.Tensor{h.x, h.weight, h.bias} {
		if t.Grad() == nil {
			out = append(out, nil)
			continue
		}
		out = append(out, tensor.ToSlice[float32](c, t.Grad()))
		t.ZeroGrad()
	}
	return out
}

// In several chunks, the last a small one, the loss has the bits of the separate ops and the gradients are close.
func TestLinearCrossEntropyInChunks(t *testing.T) {
	dev := tensor.NewCPU(2)
	defer dev.Close()
	h := newHead(dev, 300, 3, 70_000) // logits of 256 rows fit
	var want, got [][]float32
	var apart, fused float64
	h.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		loss := h.apart(c)
		apart, want = tensor.Item(c, loss), h.grads(c, loss)
		return nil
	})
	h.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		loss := h.fused(c)
		fused = tensor.Item(c, loss)
		for range 2 { // a retained graph keeps what it needs
			got = h.grads(c, loss, tensor.RetainGraph())
		}
		again := h.grads(c, loss)
		require.Equal(t, got, again)
		return nil
	})
	require.Equal(t, apart, fused)
	for i := range want {
		require.InDeltaSlice(t, want[i], got[i], 1e-6)
	}
}

// With a frozen weight fewer rows are computed at a time: the loss keeps its bits, and the gradient of x is close.
func TestLinearCrossEntropyOfFrozenWeight(t *testing.T) {
	dev := tensor.NewCPU(2)
	defer dev.Close()
	c := tensor.NewCtx(dev)
	const rows, vocabulary = 300, 5000
	x := tensor.Normal(c.NoGrad(), tensor.Float32, 1, 0, 1, rows, 8).SetRequiresGrad(true)
	w := tensor.Normal(c.NoGrad(), tensor.Float32, 2, 0, 1, vocabulary, 8)
	list := make([]int32, rows)
	for i := range list {
		list[i] = int32(i * 31 % vocabulary)
	}
	ids := tensor.FromSlice(c, list, rows)
	run := func(trained bool) (loss float64, grad []float32, peak int64) {
		w.SetRequiresGrad(trained)
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			sum := tensor.LinearCrossEntropy(c, x, w, nil, ids, -100)
			loss = tensor.Item(c, sum)
			tensor.Backward(c, []*tensor.Tensor{sum}, nil, nil)
			grad = tensor.ToSlice[float32](c, x.Grad())
			return nil
		})
		x.ZeroGrad()
		w.ZeroGrad()
		return loss, grad, dev.MemStats().Peak
	}
	frozen, grad, peak := run(false)
	trained, want, more := run(true)
	require.Equal(t, trained, frozen)
	require.InDeltaSlice(t, want, grad, 1e-5)
	require.Less(t, peak, more-4*200*vocabulary)
}

// A linear layer with a frozen weight keeps no input: a gradient passes through it all the same.
func TestFrozenLinearKeepsNoInput(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	c := tensor.NewCtx(dev)
	x := tensor.Ones(c.NoGrad(), tensor.Float32, 64, 64).SetRequiresGrad(true)
	w := tensor.Ones(c.NoGrad(), tensor.Float32, 1, 64)
	held := func(trained bool) (bytes int64) {
		w.SetRequiresGrad(trained)
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			before := dev.MemStats().InUse
			y := c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				in := tensor.Add(c, x, x) // its sum is not computed again
				return []*tensor.Tensor{tensor.Linear(c, in, w, nil)}
			})[0]
			bytes = dev.MemStats().InUse - before
			tensor.Backward(c, []*tensor.Tensor{tensor.Sum(c, y, nil, false)}, nil, nil)
			require.Equal(t, float32(2), tensor.ToSlice[float32](c, x.Grad())[5])
			return nil
		})
		x.ZeroGrad()
		w.ZeroGrad()
		return bytes
	}
	require.Less(t, held(false), int64(64*64*4))
	require.GreaterOrEqual(t, held(true), int64(64*64*4))
}

// Gradients add up in the leaves, go only where they are wanted, and leave no memory behind, whether backward runs or
// not.
func TestLinearCrossEntropyMemory(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	h := newHead(dev, 20, 4, 50)
	grads := func(body func(c *tensor.Ctx)) {
		h.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { body(c); return nil })
	}
	var once [][]float32
	grads(func(c *tensor.Ctx) { once = h.grads(c, h.fused(c)) })
	before := dev.MemStats().InUse
	grads(func(c *tensor.Ctx) { // two losses of one weight, as tied embeddings are
		twice := h.grads(c, tensor.Add(c, h.fused(c), h.fused(c)))
		for i, g := range twice {
			for k := range g {
				require.InDelta(t, 2*once[i][k], g[k], 1e-6)
			}
		}
	})
	require.Equal(t, before, dev.MemStats().InUse)
	grads(func(c *tensor.Ctx) { h.fused(c) })
	require.Equal(t, before, dev.MemStats().InUse, "without a backward pass")
	grads(func(c *tensor.Ctx) { h.fused(c.NoGrad()) })
	require.Equal(t, before, dev.MemStats().InUse, "without a graph")

	h.weight.SetRequiresGrad(false)
	grads(func(c *tensor.Ctx) {
		frozen := h.grads(c, h.fused(c))
		require.Nil(t, frozen[1])
		require.Equal(t, once[0], frozen[0])
		require.Equal(t, once[2], frozen[2])
	})
	grads(func(c *tensor.Ctx) {
		only := tensor.Backward(c, []*tensor.Tensor{h.fused(c)}, nil, []*tensor.Tensor{h.bias})
		require.Equal(t, []int{50}, only[0].Shape())
	})
}

// Outside of every scope the garbage collector frees what a graph that nobody ran has saved.
func TestLinearCrossEntropyWithoutScope(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	h := newHead(dev, 20, 4, 50)
	h.grads(h.c, h.fused(h.c))
	dev.Collect()
	before := dev.MemStats().InUse
	for range 50 {
		h.fused(h.c)
	}
	dev.Collect()
	require.LessOrEqual(t, dev.MemStats().InUse, before)
	runtime.KeepAlive(h)
}

// Scores of a vocabulary in parts have the loss and the gradients of the whole one, with a soft cap too.
func TestLinearCrossEntropyInParts(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	h := newHead(dev, 9, 3, 8)
	for _, softCap := range []float64{0, 0.7} {
		loss := func(c *tensor.Ctx) *tensor.Tensor {
			if softCap > 0 {
				return tensor.LinearCrossEntropyCapped(c, h.x, h.weight, h.bias, h.ids, -100, softCap)
			}
			return h.fused(c)
		}
		parts := h.c.WithPartedSum(&tensor.PartedSum{Parts: 2,
			Vocabulary: &tensor.PartedVocabulary{Size: 8, Length: 4}})
		want, got := loss(h.c), loss(parts)
		require.InDelta(t, tensor.Item(h.c, want), tensor.Item(h.c, got), 1e-5)
		whole := h.grads(h.c, want)
		for i, g := range h.grads(h.c, got) {
			require.InDeltaSlice(t, whole[i], g, 1e-6, "soft cap %g, gradient %d", softCap, i)
		}
	}
}
