// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// State in 8 bits is stored for parameters of every dtype, with the same bits on any number of workers and on a device
// whose memory the host cannot read; parameters are near those of the plain optimizer, and an embedding's are equal.
func TestEightBitStateOfEveryDType(t *testing.T) {
	train := func(dev *tensor.Device, dt tensor.DType, cfg optim.Config, embedding bool) ([]byte, *optim.Optimizer) {
		c := tensor.NewCtx(dev).NoGrad()
		random := func(dt tensor.DType, seed int) *tensor.Tensor {
			return tensor.Cast(c, tensor.Normal(c, tensor.Float32, uint64(seed), 0, 1, 70, 71), dt)
		}
		p := tensor.Named{Name: "p", Tensor: random(dt, 0).SetRequiresGrad(true)}
		group := &optim.Group{Params: []tensor.Named{p}, LR: 0.01, WeightDecay: 0.1}
		if embedding {
			group.Embeddings = []string{"p"}
		}
		opt := cfg.New(c, []*optim.Group{group})
		for step := range 5 {
			p.SwapGrad(random(p.GradDType(), step+1), true)
			opt.Step(c)
		}
		return tensor.ReadBytes(c, p.Tensor), opt
	}
	workers := tensor.NewCPU(3)
	defer workers.Close()
	for _, dt := range []tensor.DType{tensor.Float32, tensor.Float64, tensor.BFloat16} {
		one, opt := train(tensor.CPU(), dt, optim.DefaultAdamW8bit(), false)
		codes := opt.State().Tensors["p.exp_avg_sq_8bit"]
		require.Equal(t, tensor.Uint8, codes.DType())
		require.Equal(t, []int{70, 71}, codes.Shape())
		require.Equal(t, []int{20}, opt.State().Tensors["p.exp_avg_sq_absmax"].Shape())
		for _, dev := range []*tensor.Device{workers, joint.Device[*tensor.Device](deferred.New(1))} {
			other, _ := train(dev, dt, optim.DefaultAdamW8bit(), false)
			require.Equal(t, one, other, dt)
		}
		plain, _ := train(tensor.CPU(), dt, optim.DefaultAdamW(), false)
		require.NotEqual(t, plain, one, dt)
		table, _ := train(tensor.CPU(), dt, optim.DefaultAdamW8bit(), true)
		require.Equal(t, plain, table, dt)

		c := tensor.NewCtx(tensor.CPU()).NoGrad()
		values := func(raw []byte) []float64 {
			return tensor.ToSlice[float64](c, tensor.Cast(c, tensor.FromBytes(c, raw, dt, 70, 71), tensor.Float64))
		}
		require.InDeltaSlice(t, values(plain), values(one), 0.03, "%v: of a movement of about 0.05", dt)
	}
}
