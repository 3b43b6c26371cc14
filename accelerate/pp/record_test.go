// SPDX-License-Identifier: Apache-2.0

package pp_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/pp/timeline"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/trace"
)

// A step whose forward passes take their time has the idle time of the simulator, and its spans are told. Evaluations
// and steps without a listener are not recorded.
func TestTimeline(t *testing.T) {
	for _, name := range schedule.Names() {
		s := settings{layers: 2, tied: true, deterministic: 1, steps: 1, micro: 4}
		s.forward = func(c *nn.Ctx, m pp.Model, b *data.Batch) (pp.Output, error) {
			time.Sleep(2 * time.Millisecond)
			return forward(c, m, b)
		}
		var mu sync.Mutex
		told := map[string]int{}
		var got *timeline.Timeline
		require.NoError(t, local.Run(2, comm.Options{}, func(g *comm.Group) error {
			s, listeners := s, &trace.Listeners{}
			s.job = func(j *strategy.Job, _ nn.Module) { j.Trace = listeners }
			r, err := s.rank(g, name, 0)
			if err != nil {
				return err
			}
			batches := s.batches(r.c, 0)
			if _, err := r.Step(context.Background(), batches, scale); err != nil {
				return err
			}
			if _, err := r.Timeline(context.Background()); err == nil {
				return errors.New("a timeline of a step that was not recorded")
			}
			stop := listeners.Listen(func(s trace.Span) {
				mu.Lock()
				defer mu.Unlock()
				told[s.Name]++
				if s.End.Before(s.Start) || s.Rank != g.Rank() {
					told["faulty"]++
				}
			})
			if _, err := r.Step(context.Background(), batches, scale); err != nil {
				return err
			}
			stop()
			if _, err := r.Evaluate(context.Background(), batches); err != nil {
				return err
			}
			line, err := r.Timeline(context.Background())
			if line != nil {
				got = line
			}
			if (line != nil) != (g.Rank() == 0) {
				return errors.New("the first rank gets the timeline")
			}
			return errors.Join(err, r.Close(true))
		}))
		stages := got.Measured.Schedule.Stages()
		require.Equal(t, s.micro*stages, told["forward"], name)
		require.Equal(t, s.micro*stages, told["backward"]+told["input_gradient"], name)
		require.Equal(t, told["input_gradient"], told["weight_gradient"], name)
		require.Positive(t, told["collective"], name)
		require.Zero(t, told["faulty"], name)
		for _, stage := range got.Costs.Stages {
			require.GreaterOrEqual(t, stage.Forward, 2e-3, name)
		}
		require.GreaterOrEqual(t, got.Measured.Time, 2e-3*float64(s.micro*stages/2), name)
		for rank, usage := range got.Measured.Ranks {
			require.Positive(t, usage.Busy, "%s, rank %d", name, rank)
			require.GreaterOrEqual(t, usage.Idle, -1e-9, "%s, rank %d", name, rank)
		}
		t.Log(got)
	}
}
