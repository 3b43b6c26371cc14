// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// ownStrategy is data parallelism that counts optimizer steps.
type ownStrategy struct {
	*ddp.Strategy
	steps *atomic.Int64
}

func (c ownStrategy) Stepped(context.Context, bool) error {
	c.steps.Add(1)
	return nil
}

func (c ownStrategy) Local() bool { return false }

// startWindow starts a window of one micro-batch a rank, whose loss counts so many terms for each of the collator's.
func startWindow(t *testing.T, acc *accelerate.Accelerator, m *net, terms float64) (*accelerate.PendingStep, error) {
	batches := []*data.Batch{batch(acc.Ctx(), acc.Rank(), true)}
	return acc.StartWindow(t.Context(), batches, accelerate.WindowOptions{
		Loss: func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) {
			return accelerate.Output{Loss: m.loss(c, b), Count: b.Count * terms}, nil
		}})
}

// Ranks train by the program's strategy, with a job that has the model and the ranks; one rank needs none.
func TestWithStrategy(t *testing.T) {
	var steps atomic.Int64
	own := accelerate.WithStrategy(strategy.Factory{New: func(j strategy.Job) (strategy.Strategy, error) {
		if j.Peers.Data.Size() != 2 || j.Peers.Replicas.Size() != 2 || j.Peers.Shards != nil || len(j.Params) != 6 ||
			j.BucketBytes != 3<<20 || j.RequireUsed || !j.StaticGraph || j.DeterministicRanks != 4 {
			t.Errorf("the job is %+v", j)
		}
		s, err := ddp.NewStrategy(j, nil)
		return ownStrategy{s, &steps}, err
	}})
	for n, want := range map[int]int64{1: 0, 2: 2} {
		steps.Store(0)
		a := rankArgs(n)
		a.DDPBucketCapMB, a.DDPFindUnusedParameters, a.DDPStaticGraph, a.DeterministicRanks = 3, true, true, 4
		require.NoError(t, accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
			m := newNet(acc.Device(), 1)
			if err := acc.Prepare(t.Context(), m, adamW); err != nil {
				return err
			}
			u, err := startWindow(t, acc, m, 1)
			if err != nil {
				return err
			}
			defer u.Free()
			if err := u.Clip(t.Context(), 1); err != nil {
				return err
			}
			return u.Step(t.Context())
		}, own))
		require.Equal(t, want, steps.Load(), "%d ranks", n)
	}
	a := rankArgs(2)
	a.LocalSGDSteps = 3
	err := accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
		return acc.Prepare(t.Context(), newNet(acc.Device(), 1), nil)
	}, own)
	require.ErrorContains(t, err, `accelerate: WithStrategy with sharding "", local_sgd_steps 3 and ddp_comm_hook no: `+
		"want none of them beside the program's strategy")
}

// ownOptimizers is data parallelism in which each rank's optimizer updates every other parameter, and sends it to the
// others.
type ownOptimizers struct {
	*ddp.Strategy
	job strategy.Job
}

func (o ownOptimizers) Trained() []tensor.Named {
	var own []tensor.Named
	for i := o.job.Peers.Data.Rank(); i < len(o.job.Params); i += o.job.Peers.Data.Size() {
		own = append(own, o.job.Params[i])
	}
	return own
}

func (o ownOptimizers) Local() bool { return false }

// A loss function that counts in its own way rescales all gradients, whoever updates the parameters.
func TestWithStrategyOfOwnCounts(t *testing.T) {
	norm := func(opts ...accelerate.Option) (norm float64) {
		require.NoError(t, accelerate.Run(t.Context(), rankArgs(2), func(acc *accelerate.Accelerator) error {
			m := newNet(acc.Device(), 1)
			if err := acc.Prepare(t.Context(), m, adamW); err != nil {
				return err
			}
			u, err := startWindow(t, acc, m, 0.5)
			if err != nil {
				return err
			}
			defer u.Free()
			if err := u.Clip(t.Context(), 1); err != nil {
				return err
			}
			n, err := u.Read(t.Context())
			if acc.Rank() == 0 {
				norm = n.GradNorm
			}
			return err
		}, opts...))
		return norm
	}
	want := norm()
	require.NotZero(t, want)
	require.Equal(t, want, norm(accelerate.WithStrategy(strategy.Factory{
		New: func(j strategy.Job) (strategy.Strategy, error) {
			s, err := ddp.NewStrategy(j, nil)
			return ownOptimizers{s, j}, err
		}})))
}

func TestWithStrategyThatIsNone(t *testing.T) {
	for _, f := range []strategy.Factory{{}, {New: func(strategy.Job) (strategy.Strategy, error) { return nil, nil }}} {
		err := accelerate.Run(t.Context(), rankArgs(2), func(acc *accelerate.Accelerator) error {
			return acc.Prepare(t.Context(), newNet(acc.Device(), 1), adamW)
		}, accelerate.WithStrategy(f))
		require.ErrorContains(t, err, "the factory of WithStrategy made no strategy: want one, or an error")
	}
}

// A program's factory of shards has the bits of the built-in one: its ranks take turns too.
func TestWithStrategyThatShards(t *testing.T) {
	run := func(o accelerate.Option) (got map[string]string, layout samplers.WindowLayout) {
		require.NoError(t, accelerate.Run(t.Context(), rankArgs(4), func(acc *accelerate.Accelerator) error {
			w, _, err := train(t, acc, 3, everywhere, nowhere)
			if l, e := acc.Layout(); acc.Rank() == 1 {
				got, layout, err = w, l, errors.Join(err, e)
			}
			return err
		}, o))
		return got, layout
	}
	want, layout := run(accelerate.WithSharding(accelerate.Sharding{Strategy: shard.Full}))
	require.True(t, layout.Interleaved)
	got, same := run(accelerate.WithStrategy(shard.Options{Strategy: shard.Full, Prefetch: true}.Factory()))
	require.Equal(t, layout, same)
	require.Equal(t, want, got)
}

// steppedStrategy is data parallelism that keeps what it is told of steps.
type steppedStrategy struct {
	*ddp.Strategy
	told *[]bool
}

func (s steppedStrategy) Stepped(_ context.Context, changed bool) error {
	*s.told = append(*s.told, changed)
	return nil
}

func (s steppedStrategy) Local() bool { return false }

// A strategy hears of every window that is not given up, also of those whose step is left out.
func TestStrategiesHearOfEveryStep(t *testing.T) {
	for _, fp16 := range []bool{false, true} {
		a := rankArgs(2)
		a.FP16, a.FP16InitialScale = fp16, 1024
		told := make([][]bool, 2)
		require.NoError(t, accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
			m := newNet(acc.Device(), 1)
			if err := acc.Prepare(t.Context(), m, adamW); err != nil {
				return err
			}
			for _, wrong := range []string{"", "gradient", "loss", ""} {
				batches := []*data.Batch{batch(acc.Ctx(), acc.Rank(), true)}
				u, err := acc.StartWindow(t.Context(), batches, accelerate.WindowOptions{
					Loss: func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) {
						loss := m.loss(c, b)
						switch wrong {
						case "gradient":
							loss = tensor.Add(c.Ctx, loss, tensor.Sqrt(c.Ctx, tensor.Affine(c.Ctx, loss, 0, 0)))
						case "loss":
							loss = tensor.Affine(c.Ctx, loss, math.NaN(), 0)
						}
						return accelerate.Output{Loss: loss, Count: b.Count}, nil
					}})
				if err != nil {
					return err
				}
				if err := errors.Join(u.Clip(t.Context(), 1), u.Step(t.Context())); err != nil {
					return err
				}
				u.Free()
			}
			return nil
		}, accelerate.WithStrategy(strategy.Factory{New: func(j strategy.Job) (strategy.Strategy, error) {
			s, err := ddp.NewStrategy(j, nil)
			return steppedStrategy{s, &told[j.Peers.Data.Rank()]}, err
		}})))
		require.Equal(t, [][]bool{{true, false, false, true}, {true, false, false, true}}, told, "fp16 %v", fp16)
	}
}

// A step without Clip does not clip. Without an optimizer the program updates the parameters, and before Prepare there
// is nothing to step.
func TestStepsWithoutClip(t *testing.T) {
	step := func(clip bool, f accelerate.OptimizerFunc) (weights []float32) {
		a := rankArgs(1)
		a.GlobalTrainBatchSize = 1
		require.NoError(t, accelerate.Run(t.Context(), a, func(acc *accelerate.Accelerator) error {
			require.ErrorContains(t, acc.Step(t.Context()), "accelerate: Step before Prepare: want a prepared model")
			m := newNet(acc.Device(), 1)
			if err := acc.Prepare(t.Context(), m, f); err != nil {
				return err
			}
			u, err := startWindow(t, acc, m, 1)
			if err != nil {
				return err
			}
			defer u.Free()
			if clip {
				if err := u.Clip(t.Context(), 0); err != nil {
					return err
				}
			}
			if err := u.Step(t.Context()); err != nil {
				return err
			}
			if _, err := u.Read(t.Context()); err != nil {
				return err
			}
			weights = tensor.ToSlice[float32](acc.Ctx(), m.First.Weight.Tensor)
			return nil
		}))
		return weights
	}
	before := step(true, nil)
	require.NotEqual(t, before, step(true, adamW))
	require.Equal(t, step(true, adamW), step(false, adamW))
	require.Equal(t, before, step(false, nil))
}
