// SPDX-License-Identifier: Apache-2.0

package pp_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// rehearse plays a rank of the pipeline that rank makes.
func (s settings) rehearse(t *testing.T, rank, ranks int, name string) *pp.Rehearsal {
	flops := func(k tensor.KernelSpan) float64 { return k.FLOPs }
	r, err := pp.Rehearse(nil, rank, flops, func(dev *tensor.Device) (sc pp.Scene, err error) {
		m := s.model(nn.NewInit(dev, 7).Deferred())
		sc.Config = pp.Config{Model: m, Forward: forward, Context: s.context(m), Job: strategy.Job{
			Ctx: tensor.NewCtx(dev), Tree: nn.Walk(m), Layout: samplers.WindowLayout{AccumulationSteps: s.micro,
				WorldSize: 1}, Exchange: strategy.Exchange{DeterministicRanks: s.deterministic}}}
		sc.Schedule, err = schedule.Load(name, schedule.Shape{Ranks: ranks, MicroBatches: s.micro})
		require.NoError(t, err)
		costs, err := pp.Measure(m, forward, m.ExampleBatch(tensor.NewCtx(tensor.CPU()), 1, 0))
		require.NoError(t, err)
		split, err := pp.Partition(costs, sc.Schedule.Stages())
		require.NoError(t, err)
		sc.Stages, err = pp.Stages(m.Parts(), split)
		sc.Batches = s.batches(sc.Job.Ctx, 0)
		sc.Optimizer = func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
			return adamW(c, params), nil
		}
		return sc, err
	})
	require.NoError(t, err)
	return r
}

// What a rehearsal says a rank allocates and sends is what ranks on goroutines allocate and send. These hold a message
// a little longer, since it takes its time.
func TestRehearsal(t *testing.T) {
	const ranks = 2
	for _, name := range schedule.Names() {
		s := settings{layers: 6, micro: 8, steps: 2}
		peaks, sent := make([]int64, ranks), make([]int64, ranks)
		require.NoError(t, local.Run(ranks, comm.Options{}, func(g *comm.Group) error {
			r, err := s.rank(g, name, 0)
			if err != nil {
				return err
			}
			defer r.dev.Close()
			defer r.Close(false)
			opt, batches := adamW(r.c, r.Params()), s.batches(r.c, 0)
			var before int64
			for range s.steps {
				before = g.Sent()
				if _, err := r.Step(context.Background(), batches, scale); err != nil {
					return err
				}
				opt.Step(r.c)
			}
			peaks[g.Rank()], sent[g.Rank()] = r.dev.MemStats().Peak, g.Sent()-before
			runtime.KeepAlive(opt)
			return nil
		}))
		for rank := range ranks {
			e := s.rehearse(t, rank, ranks, name)
			require.Equal(t, sent[rank], e.Outputs+e.Inputs+e.Tied, "%s: bytes that rank %d sends", name, rank)
			require.InEpsilon(t, peaks[rank], e.Peak, 0.05, "%s: bytes of rank %d", name, rank)
			require.Equal(t, 2*e.Parameters, e.State, "AdamW's moments")
			require.Equal(t, e, s.rehearse(t, rank, ranks, name), "again")
		}
	}
	tied := settings{layers: 2, tied: true, micro: 4}
	tokens := int64(rows * (length + length - 1 + length - 2 + length))
	require.Equal(t, tokens*(8+4*16), tied.rehearse(t, 0, ranks, "1f1b").Tied, "rows and their gradients")
	require.Equal(t, int64(4*vocabulary*16), tied.rehearse(t, 1, ranks, "1f1b").Tied, "the total")
}
