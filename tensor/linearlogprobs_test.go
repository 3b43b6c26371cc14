// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

func (h head) logProbs(c *tensor.Ctx) *tensor.Tensor {
	return tensor.LinearLogProbs(c, h.x, h.weight, h.bias, h.ids, -100)
}

// logProbsApart is the slow twin: the logits of all rows.
func (h head) logProbsApart(c *tensor.Ctx) *tensor.Tensor {
	z := tensor.AddMM(c, h.bias, h.x, tensor.Transpose(c, h.weight, 0, 1))
	return tensor.Neg(c, tensor.CrossEntropy(c, z, h.ids, -100))
}

// bent makes each row's gradient another one.
func bent(c *tensor.Ctx, logs *tensor.Tensor) *tensor.Tensor {
	weights := tensor.Arange(c, tensor.Float32, -1, 0.01, logs.Numel())
	return tensor.Sum(c, tensor.Mul(c, logs, weights), nil, false)
}

// In several chunks, the last a small one, log-probabilities have the bits of the separate ops, and the gradients of
// losses that weight the rows differently are close.
func TestLinearLogProbsInChunks(t *testing.T) {
	dev := tensor.NewCPU(2)
	defer dev.Close()
	h := newHead(dev, 300, 3, 70_000) // logits of 256 rows fit
	var apart, logs []float32
	var want [][]float32
	h.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		rows := h.logProbsApart(c)
		apart, want = tensor.ToSlice[float32](c, rows), h.grads(c, bent(c, rows))
		return nil
	})
	h.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		rows := h.logProbs(c)
		logs = tensor.ToSlice[float32](c, rows)
		loss := bent(c, rows)
		got := h.grads(c, loss, tensor.RetainGraph())
		for i := range want {
			require.InDeltaSlice(t, want[i], got[i], 1e-6)
		}
		require.Equal(t, got, h.grads(c, loss), "a retained graph keeps what it needs")
		return nil
	})
	for i := range apart {
		require.Equal(t, apart[i], logs[i])
	}
}

// Where weight and bias are frozen the gradient of x is that of trained ones, and no more memory is needed than for
// some rows.
func TestLinearLogProbsOfFrozenWeight(t *testing.T) {
	dev := tensor.NewCPU(2)
	defer dev.Close()
	h := newHead(dev, 300, 8, 5000)
	run := func(trained bool) (dx []float32, peak int64) {
		h.weight.SetRequiresGrad(trained)
		h.bias.SetRequiresGrad(trained)
		h.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			dx = h.grads(c, bent(c, h.logProbs(c)))[0]
			return nil
		})
		return dx, dev.MemStats().Peak
	}
	frozen, peak := run(false)
	trained, more := run(true)
	require.InDeltaSlice(t, trained, frozen, 1e-6)
	require.Less(t, peak, more-4*190*5000)
}

// Nothing is left behind, whether backward runs or not.
func TestLinearLogProbsMemory(t *testing.T) {
	dev := tensor.NewCPU(1)
	defer dev.Close()
	h := newHead(dev, 20, 4, 50)
	before := dev.MemStats().InUse
	for _, frozen := range []bool{false, true} {
		h.weight.SetRequiresGrad(!frozen)
		h.bias.SetRequiresGrad(!frozen)
		for _, body := range []func(c *tensor.Ctx){
			func(c *tensor.Ctx) { h.grads(c, bent(c, h.logProbs(c))) },
			func(c *tensor.Ctx) { h.logProbs(c) },
			func(c *tensor.Ctx) { h.logProbs(c.NoGrad()) },
		} {
			h.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { body(c); return nil })
			for _, leaf := range []*tensor.Tensor{h.x, h.weight, h.bias} {
				leaf.ZeroGrad()
			}
			require.Equal(t, before, dev.MemStats().InUse)
		}
	}
}
