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
			batches := []*data.Batch{batch(acc.Ctx(), acc.Rank(), true)}
			u, err := acc.StartWindow(t.Context(), batches, accelerate.WindowOptions{
				Loss: func(c *nn.Ctx, b *data.Batch) (*tensor.Tensor, float64, error) {
					return m.loss(c, b), b.Count, nil
				}})
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
