// SPDX-License-Identifier: Apache-2.0

package tensor_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/tensor"
)

// A tracer sees the kernels of forward and backward with module paths, shapes and costs, and changes nothing.
func TestTrace(t *testing.T) {
	for _, workers := range []int{1, 3} {
		dev := tensor.NewCPU(workers)
		defer dev.Close()
		c := tensor.NewCtx(dev)
		x := tensor.Normal(c.NoGrad(), tensor.Float32, 1, 0, 1, 64, 96).SetRequiresGrad(true)
		w := tensor.Normal(c.NoGrad(), tensor.Float32, 2, 0, 1, 96, 80).SetRequiresGrad(true)
		step := func() []byte {
			x.ZeroGrad()
			w.ZeroGrad()
			c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
				y := tensor.MatMul(c.Sub("layer.0"), x, w)
				tensor.Backward(c, []*tensor.Tensor{tensor.Sum(c, tensor.Tanh(c, y), nil, false)}, nil, nil)
				return nil
			})
			return append(tensor.ReadBytes(c, x.Grad()), tensor.ReadBytes(c, w.Grad())...)
		}
		want := step()
		var spans []tensor.KernelSpan
		stop := c.Trace(context.Background(), func(s tensor.KernelSpan) { spans = append(spans, s) })
		also := 0
		stopAlso := c.Trace(context.Background(), func(tensor.KernelSpan) { also++ })
		require.Equal(t, want, step())
		seen := len(spans)
		require.Equal(t, seen, also, "both trace")
		stop()
		step()
		require.Len(t, spans, seen, "it was stopped")
		require.Equal(t, 2*seen, also)
		stopAlso()
		step()
		require.Equal(t, 2*seen, also, "it was stopped")

		count := map[string]int{}
		for i, s := range spans {
			count[s.Name]++
			require.False(t, s.End.Before(s.Start))
			if i > 0 {
				require.False(t, s.Start.Before(spans[i-1].End))
			}
			if s.Name == "matmul" {
				require.Equal(t, "layer.0", s.Path)
				require.Equal(t, 2.0*64*96*80, s.FLOPs)
				require.Equal(t, 4.0*(64*96+96*80+64*80), s.Bytes)
				require.Equal(t, 2, s.Dims)
			}
		}
		require.Equal(t, 3, count["matmul"], "forward, and the gradients of both operands")
		require.Equal(t, 1, count["tanh"])
		require.Equal(t, 1, count["tanh_grad"])
		require.Zero(t, count["copy"], "both products write to the gradients of the leaves")
	}
}
