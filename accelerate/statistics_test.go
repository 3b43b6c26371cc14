// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// normed is a layer whose outputs are normalised, twice by the same module.
type normed struct {
	In   *nn.Linear    `nn:"in"`
	Norm *nn.BatchNorm `nn:"norm"`
}

func newNormed(dev *tensor.Device, seed uint64) *normed {
	in := nn.NewInit(dev, seed)
	return &normed{
		In:   nn.NewLinear(in.Sub("in"), nn.LinearConfig{In: 4, Out: 3}),
		Norm: nn.NewBatchNorm(in.Sub("norm"), nn.BatchNormConfig{Channels: 3}),
	}
}

func (m *normed) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return m.Norm.Forward(c, tensor.Affine(c.Ctx, m.Norm.Forward(c, m.In.Forward(c, x)), 0.5, 0.25))
	}, x)
}

// normBatch makes the micro-batch at a place of the stream.
func normBatch(c *tensor.Ctx, place int) *tensor.Tensor {
	r := rand.New(rand.NewPCG(uint64(place), 5))
	x := make([]float32, 4*(2+place%3))
	for i := range x {
		x[i] = float32(r.NormFloat64() * []float64{1e-3, 1, 10}[r.IntN(3)])
	}
	return tensor.FromSlice(c.NoGrad(), x, len(x)/4, 4)
}

// buffers are a module's buffers, as bytes.
func buffers(m nn.Module) map[string][]byte {
	out := map[string][]byte{}
	for _, b := range nn.Walk(m).Buffers() {
		out[b.Name] = tensor.ReadBytes(tensor.NewCtx(b.Device()), b.Tensor)
	}
	return out
}

// normRun is a run of windows of eight micro-batches, the last of three, whose second step is left out.
type normRun struct {
	world     int
	lr        float64
	keep      bool // ddp_broadcast_buffers
	recompute bool
}

const normLeaves = 8

func (k normRun) train(t *testing.T) (ranks []map[string][]byte) {
	a := args.Default("")
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas, a.DDPBroadcastBuffers = 1, normLeaves, k.world,
		k.keep
	a.GradientCheckpointing = k.recompute
	ranks = make([]map[string][]byte, k.world)
	err := accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
		m := newNormed(acc.Device(), 1+uint64(acc.Rank()))
		if acc.Rank() == 1 {
			tensor.FillInto(acc.Ctx(), m.Norm.RunningMean.Tensor, 100)
		}
		if err := acc.Prepare(t.Context(), m, sgd(k.lr), m); err != nil {
			return err
		}
		own := normLeaves / acc.WorldSize()
		for window, microBatches := range []int{8, 8, 8, 3} {
			if err := acc.BeginWindow(t.Context()); err != nil {
				return err
			}
			first := acc.Rank() * own
			for microBatch := first; microBatch < min(first+own, microBatches); microBatch++ {
				acc.TrainCtx(0).Scope(func(c *nn.Ctx) []*tensor.Tensor {
					y := m.Forward(c, normBatch(c.Ctx, window*normLeaves+microBatch))
					acc.Backward(c, tensor.Sum(c.Ctx, tensor.Exp(c.Ctx, y), nil, false), 20, microBatch,
						microBatch == min(first+own, microBatches)-1)
					return nil
				})
			}
			acc.TrainCtx(0).Scope(func(c *nn.Ctx) []*tensor.Tensor { // leads nowhere
				m.Forward(c, normBatch(c.Ctx, 1000+acc.Rank()))
				return nil
			})
			if err := acc.Reduce(t.Context()); err != nil {
				return err
			}
			if window != 1 {
				require.NoError(t, acc.Step(t.Context()))
			}
			acc.ZeroGrad()
		}
		ranks[acc.Rank()] = buffers(m)
		return nil
	}, accelerate.WithLogger(quiet))
	require.NoError(t, err)
	return ranks
}

// Running statistics have the bits of one rank on any number of them, recomputed or not.
func TestBuffersSameBits(t *testing.T) {
	one := normRun{world: 1, lr: 0.1, keep: true}.train(t)[0]
	for _, world := range []int{1, 2, 4, 8} {
		for _, recompute := range []bool{false, true} {
			for rank, got := range (normRun{world: world, lr: 0.1, keep: true, recompute: recompute}).train(t) {
				require.Equal(t, one, got, "rank %d of %d", rank, world)
			}
		}
	}
	require.NotEqual(t, one, normRun{world: 1, keep: true}.train(t)[0], "they depend on the weights")
}

// Without changing weights they are those of forward passes one after the other, except for
// the step that was left out and the passes without a backward pass.
func TestBuffersMoveInOrder(t *testing.T) {
	m := newNormed(tensor.CPU(), 1)
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).NoGrad(), nil, true)
	for window, microBatches := range []int{8, 0, 8, 3} {
		for microBatch := range microBatches {
			m.Forward(c, normBatch(c.Ctx, window*normLeaves+microBatch))
		}
	}
	require.Equal(t, int64(38), tensor.ToSlice[int64](c.Ctx, m.Norm.NumBatchesTracked.Tensor)[0])
	require.Equal(t, buffers(m), normRun{world: 4, keep: true}.train(t)[3])
}

// With ddp_broadcast_buffers off each rank's statistics are those of its own micro-batches.
func TestBuffersApart(t *testing.T) {
	one := normRun{world: 1, keep: true}.train(t)[0]
	require.Equal(t, one, normRun{world: 1}.train(t)[0])
	apart := normRun{world: 2}.train(t)
	for rank, want := range []int64{2 * (4 + 4 + 3), 2 * (4 + 4)} {
		require.Equal(t, fmt.Sprint([]byte{byte(want), 0, 0, 0, 0, 0, 0, 0}),
			fmt.Sprint(apart[rank]["norm.num_batches_tracked"]))
	}
	require.NotEqual(t, apart[0], apart[1])
}

// A module outside the prepared model cannot track anything.
func TestForeignTracker(t *testing.T) {
	a := args.Default("")
	acc, err := accelerate.New(a)
	require.NoError(t, err)
	m := newNormed(acc.Device(), 1)
	require.NoError(t, acc.Prepare(t.Context(), m, adamW))
	err = tensor.Try(func() { newNormed(acc.Device(), 1).Forward(acc.TrainCtx(0), normBatch(acc.Ctx(), 1)) })
	require.ErrorContains(t, err, "a *nn.BatchNorm that is not part of the prepared model reports statistics")
}
