// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// oneStep prepares a model and trains it for a step.
func oneStep(t *testing.T, acc *accelerate.Accelerator, m *net) error {
	if err := acc.Prepare(t.Context(), m, adamW); err != nil {
		return err
	}
	var batches []*data.Batch
	for i := range 8 / acc.DataRanks().WorldSize() {
		batches = append(batches, batch(acc.Ctx(), 8*acc.DataRanks().Rank()+i, true))
	}
	if err := acc.BeginWindow(t.Context()); err != nil {
		return err
	}
	_, err := acc.RunWindow(t.Context(), batches, accelerate.WindowOptions{
		Loss: func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) {
			return accelerate.Output{Loss: m.loss(c, b), Count: b.Count}, nil
		}})
	if err != nil {
		return err
	}
	return acc.Step(t.Context())
}

// Ranks of one process that train one model, or models with a tensor in common, get an error on every rank before
// anything is changed. A loop by hand meets it as a Trainer does.
func TestRanksWithOneModel(t *testing.T) {
	const what = "share the parameter or buffer "
	frozen := func(ms []*net) {
		ms[1].Extra = ms[0].Extra
		for _, m := range ms {
			for _, p := range nn.NamedParameters(m.Extra) {
				p.SetRequiresGrad(false)
			}
		}
	}
	for name, c := range map[string]struct {
		set   func(*args.TrainingArguments)
		share func(ms []*net)
		want  string
	}{
		"one model":          {nil, func(ms []*net) { ms[1] = ms[0] }, "rank 0 and rank 1, which"},
		"of ranks 2 and 3":   {nil, func(ms []*net) { ms[3] = ms[2] }, "rank 2 and rank 3, "},
		"a layer":            {nil, func(ms []*net) { ms[1].Second = ms[0].Second }, what + "second."},
		"a frozen layer":     {nil, frozen, what + "extra."},
		"sharded":            {fullShard, func(ms []*net) { ms[1] = ms[0] }, what + "first."},
		"in sharded groups":  {hybridShard, func(ms []*net) { ms[3] = ms[0] }, "rank 0 and rank 3, "},
		"with local updates": {localUpdates, func(ms []*net) { ms[1] = ms[0] }, what + "first."},
	} {
		t.Run(name, func(t *testing.T) {
			a := rankArgs(4)
			if c.set != nil {
				c.set(a)
			}
			ranks, err := accelerate.Replicas(a, 4, accelerate.WithLogger(quiet))
			require.NoError(t, err)
			var models []*net
			for r := range ranks {
				models = append(models, newNet(tensor.CPU(), uint64(r+1)))
			}
			c.share(models)
			accelerate.Connect(ranks)
			for r, err := range job(t, ranks, func(acc *accelerate.Accelerator) error {
				if err := acc.Open(t.Context()); err != nil {
					return err
				}
				return acc.Prepare(t.Context(), models[acc.Rank()], adamW)
			}) {
				require.ErrorContains(t, err, c.want, "rank %d", r)
				require.ErrorContains(t, err, "want a separate model for each rank")
			}
		})
	}
}

func fullShard(a *args.TrainingArguments) { a.FSDP = []string{"full_shard"} }

func hybridShard(a *args.TrainingArguments) {
	a.FSDP, a.DPReplicateSize, a.DPShardSize = []string{"hybrid_shard"}, 2, 2
}

func localUpdates(a *args.TrainingArguments) { a.LocalSGDSteps = 2 }

// A model may be prepared by any accelerator of a rank, one after the other: the same once more, one of another job,
// whether the earlier was closed or not, and that of another rank which has changed models with this one.
func TestModelsThatRanksPrepareAgain(t *testing.T) {
	mine, other := []*net{newNet(tensor.CPU(), 1), newNet(tensor.CPU(), 2)},
		[]*net{newNet(tensor.CPU(), 3), newNet(tensor.CPU(), 4)}
	run := func(body func(acc *accelerate.Accelerator) error) {
		require.NoError(t, accelerate.Run(t.Context(), rankArgs(2), body, accelerate.WithLogger(quiet)))
	}
	run(func(acc *accelerate.Accelerator) error {
		for _, m := range []*net{mine[acc.Rank()], mine[acc.Rank()], other[acc.Rank()], mine[acc.Rank()],
			mine[1-acc.Rank()]} {
			if err := oneStep(t, acc, m); err != nil {
				return err
			}
			if err := acc.Barrier(t.Context()); err != nil {
				return err
			}
		}
		return nil
	})
	run(func(acc *accelerate.Accelerator) error { return oneStep(t, acc, mine[1-acc.Rank()]) })

	// A job that nobody has closed.
	open := accelerators(t, 2, nil)
	var all sync.WaitGroup
	for r, acc := range open {
		all.Go(func() {
			if err := oneStep(t, acc, mine[r]); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	run(func(acc *accelerate.Accelerator) error { return oneStep(t, acc, mine[1-acc.Rank()]) })
	require.NotZero(t, accelerate.Claims())
	for _, acc := range open {
		require.NoError(t, acc.Close())
	}
	require.Zero(t, accelerate.Claims(), "each claim ends with its accelerator")
}

// The claims of accelerators that nobody closed end when nothing refers to them and their models any more.
func TestAbandonedAcceleratorsClaimNothing(t *testing.T) {
	groups := func() (groups []*comm.Group) {
		var all sync.WaitGroup
		for _, acc := range accelerators(t, 2, nil) {
			groups = append(groups, acc.Group())
			all.Go(func() {
				if err := oneStep(t, acc, newNet(tensor.CPU(), 1)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		return groups
	}()
	require.NotZero(t, accelerate.Claims())
	require.Eventually(t, func() bool {
		runtime.GC()
		return accelerate.Claims() == 0
	}, time.Minute, time.Millisecond)
	for _, g := range groups {
		require.NoError(t, g.Close())
	}
}
