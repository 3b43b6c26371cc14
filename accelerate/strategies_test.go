// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
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
		Loss: func(c *nn.Ctx, b *data.Batch) (*tensor.Tensor, float64, error) {
			return m.loss(c, b), b.Count * terms, nil
		}})
}

// Ranks train by the program's strategy, with a job that has the model and the ranks; one rank needs none.
func TestWithStrategy(t *testing.T) {
	var steps atomic.Int64
	own := accelerate.WithStrategy(func(j strategy.Job) (strategy.Strategy, error) {
		if j.Peers.Data.Size() != 2 || j.Peers.Replicas.Size() != 2 || j.Peers.Shards != nil || len(j.Params) != 6 {
			t.Errorf("the job is %+v", j)
		}
		s, err := ddp.NewStrategy(j, ddp.Options{})
		return ownStrategy{s, &steps}, err
	})
	for n, want := range map[int]int64{1: 0, 2: 2} {
		steps.Store(0)
		a := rankArgs(n)
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
	require.Equal(t, want, norm(accelerate.WithStrategy(func(j strategy.Job) (strategy.Strategy, error) {
		s, err := ddp.NewStrategy(j, ddp.Options{})
		return ownOptimizers{s, j}, err
	})))
}

func TestWithStrategyThatIsNone(t *testing.T) {
	err := accelerate.Run(t.Context(), rankArgs(2), func(acc *accelerate.Accelerator) error {
		return acc.Prepare(t.Context(), newNet(acc.Device(), 1), adamW)
	}, accelerate.WithStrategy(func(strategy.Job) (strategy.Strategy, error) { return nil, nil }))
	require.ErrorContains(t, err, "the function of WithStrategy returned no strategy: want one, or an error")
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
