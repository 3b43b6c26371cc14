// SPDX-License-Identifier: Apache-2.0

package pp_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/local"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/comm/shm"
	"github.com/lockstep-ml/lockstep/comm/tcp"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Engines between processes give the same bits.
func TestEngines(t *testing.T) {
	for name, open := range map[string]func(*rendezvous.Job, comm.Options) (*comm.Group, error){
		"shm": shm.New, "tcp": tcp.New} {
		for i, s := range []string{"interleaved_1f1b", "zb_h1", "zbv"} {
			of := settings{layers: 2, tied: true, recompute: i == 1, deterministic: 4, steps: 2, micro: 4}
			of.on = commtest.Connected(t, open)
			t.Run(name+"/"+s, func(t *testing.T) { of.same(t, 2, s, 0) })
		}
	}
}

// A rank that fails ends the others, and its error names the action.
func TestFailureNamesTheAction(t *testing.T) {
	for _, name := range []string{"1f1b", "zb_h1", "zbv"} {
		s := settings{layers: 2, tied: true, deterministic: 1, steps: 1, micro: 4}
		s.forward = func(c *nn.Ctx, m pp.Model, b *data.Batch) (pp.Output, error) {
			out, err := forward(c, m, b)
			if out.Loss != nil && b.MicroBatch == 2 {
				err = errors.New("no more paper")
			}
			return out, err
		}
		errs := make([]error, 2)
		err := local.Run(2, comm.Options{}, func(g *comm.Group) error {
			r, err := s.rank(g, name, 0)
			if err != nil {
				return err
			}
			_, errs[g.Rank()] = r.Step(context.Background(), s.batches(r.c, 0), scale)
			return errors.Join(errs[g.Rank()], r.Close(true))
		})
		require.ErrorContains(t, err, "no more paper")
		for rank, err := range errs {
			require.Error(t, err, "%s, rank %d", name, rank)
			require.True(t, strings.HasPrefix(err.Error(), "pp: rank "), err.Error())
		}
		holder := 1
		if name == "zbv" {
			holder = 0
		}
		require.Regexp(t, `^pp: rank \d, \dF2: no more paper$`, errs[holder].Error())
	}
}

// A rank that fails after its last message of the pipeline does not leave the other waiting for a tied gradient.
func TestFailureInTheLastWeightGradients(t *testing.T) {
	s := settings{layers: 2, tied: true, deterministic: 1, steps: 1, micro: 4}
	errs := make([]error, 2)
	var both sync.WaitGroup // a rank that closes its groups ends the wait, too
	both.Add(2)
	err := local.Run(2, comm.Options{Timeout: 5 * time.Second}, func(g *comm.Group) error {
		r, err := s.rank(g, "zb_h1", 0)
		if err != nil {
			return err
		}
		if passes := 0; g.Rank() == 1 {
			last := r.Params()[len(r.Params())-1]
			last.OnGrad(func(*tensor.Ctx, *tensor.Tensor) {
				if passes++; passes == s.micro {
					time.Sleep(200 * time.Millisecond) // until the other rank waits
					panic(errors.New("no more paper"))
				}
			})
		}
		_, errs[g.Rank()] = r.Step(context.Background(), s.batches(r.c, 0), scale)
		both.Done()
		both.Wait()
		return errors.Join(errs[g.Rank()], r.Close(true))
	})
	require.ErrorContains(t, err, "no more paper")
	require.ErrorContains(t, errs[0], "no more paper", "not the end of the time that a call may take")
}

// What does not fit is refused on all ranks, before a step.
func TestNewRefuses(t *testing.T) {
	s := settings{layers: 2, deterministic: 1, micro: 4}
	for _, k := range []struct {
		ranks int
		name  string
		whole int
		want  string
	}{
		{2, "dualpipev", 2, "dualpipev"},
		{4, "zbv", 8, "pp: 8 stages of a model of 4 parts: want 1 to 4 stages"},
	} {
		err := local.Run(k.ranks, comm.Options{}, func(g *comm.Group) error {
			s := s
			s.micro = k.whole
			_, err := s.rank(g, k.name, k.whole)
			return err
		})
		require.ErrorContains(t, err, k.want)
	}
	err := local.Run(2, comm.Options{}, func(g *comm.Group) error {
		r, err := s.rank(g, "1f1b", 4)
		if err != nil {
			return err
		}
		s := s
		s.micro = 5
		_, err = r.Step(context.Background(), s.batches(r.c, 0), scale)
		return err
	})
	require.ErrorContains(t, err, "schedule 1f1b for a step of 5 micro-batches: want 1 to 4")
	_, err = schedule.Load("dualpipev", schedule.Shape{Ranks: 2, MicroBatches: 2})
	require.ErrorContains(t, err, "dualpipev")
}
