// SPDX-License-Identifier: Apache-2.0

package cp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Small gradients of one dtype travel together and large ones alone; each ends as the sum of the ranks'.
func TestSumOfGradients(t *testing.T) {
	require.NoError(t, local.Run(2, comm.Options{}, func(g *comm.Group) error {
		c := tensor.NewCtx(tensor.CPU())
		full := func(dt tensor.DType, x float64, shape ...int) *tensor.Tensor {
			return tensor.Full(c, dt, x+float64(g.Rank()), shape...)
		}
		ts := []*tensor.Tensor{full(tensor.Float32, 1, 2, 3), full(tensor.Float32, 2, 5), nil,
			full(tensor.Float64, 3, 4), full(tensor.Float32, 4, bucketBytes), full(tensor.Float32, 5, 7)}
		of := &Gradients{Passes: &Passes{cfg: Config{Group: g}}, c: c.NoGrad()}
		if err := of.sum(ts); err != nil {
			return err
		}
		for i, want := range []float64{3, 5, 0, 7, 9, 11} {
			if ts[i] != nil {
				require.Equal(t, want*float64(ts[i].Numel()), tensor.Item(c, tensor.Sum(c, ts[i], nil, false)), i)
			}
		}
		return nil
	}))
}
