// SPDX-License-Identifier: Apache-2.0

// Package localsgd is local SGD (Stich 2019; Lin et al. 2020), for slow networks: ranks update their own parameters and
// average them every few steps. Before the first such step the ranks may train in another way (post-local SGD). It is
// for package accelerate; programs set the arguments local_sgd_steps and start_local_sgd_iter.
package localsgd

import (
	"context"
	"math"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Options are the settings of a Strategy.
type Options struct {
	Every int64 // steps from one average to the next
	After int64 // steps that the ranks do together before
}

// Strategy is local SGD.
type Strategy struct {
	strategy.Strategy // strategy.Single from the step on from which the ranks step on their own
	job               strategy.Job
	options           Options
	onOwn             bool
	steps             int64 // of the job so far
	averaged          int64 // the step after which the parameters were averaged last
	different         bool  // the ranks' parameters are not the same
}

// New makes the strategy for the ranks that see different data. Until they step on their own they follow another, which
// New makes if the first step is one of those.
func New(j strategy.Job, o Options, first func() (strategy.Strategy, error)) (*Strategy, error) {
	s := &Strategy{job: j, options: o, onOwn: o.After <= 0}
	if s.onOwn {
		s.Strategy = strategy.NewSingle(j)
		return s, nil
	}
	var err error
	s.Strategy, err = first()
	return s, err
}

// Averages implements strategy.Strategy.
func (s *Strategy) Averages() strategy.Averages { return s }

// OnOwn implements strategy.Averages.
func (s *Strategy) OnOwn() bool { return s.onOwn }

// Open implements strategy.Strategy.
func (s *Strategy) Open(ctx context.Context) error {
	if !s.onOwn && s.steps >= s.options.After {
		return s.leave(ctx)
	}
	return s.Strategy.Open(ctx)
}

// leave ends the exchange of gradients: from here on the ranks step on their own.
func (s *Strategy) leave(ctx context.Context) error {
	if err := s.job.Peers.Data.Barrier().Wait(ctx); err != nil { // the last step's buckets are read
		return err
	}
	s.Reset()
	if err := s.Close(false); err != nil {
		return err
	}
	s.Strategy, s.onOwn, s.averaged = strategy.NewSingle(s.job), true, s.steps
	if s.job.Main {
		s.job.Log.Info("from now on ranks step independently", "step", s.steps+1, "local_sgd_steps", s.options.Every)
	}
	return nil
}

// Finish implements strategy.Strategy.
func (s *Strategy) Finish(ctx context.Context) error {
	s.steps++
	return s.Strategy.Finish(ctx)
}

// Norm implements strategy.Strategy. That of a rank on its own is NaN if that of any rank is not finite, so that all
// leave out the same steps.
func (s *Strategy) Norm(ctx context.Context) (float64, error) {
	norm, err := s.Strategy.Norm(ctx)
	if !s.onOwn || err != nil {
		return norm, err
	}
	sum := []float64{norm}
	if err := s.job.Peers.Data.AllReduce(comm.Of(sum), comm.Sum, comm.Label("gradient norms")).Wait(ctx); err != nil {
		return 0, err
	}
	if math.IsNaN(sum[0]) || math.IsInf(sum[0], 0) {
		norm = math.NaN()
	}
	return norm, nil
}

// Local implements strategy.Strategy: ranks on their own must leave out the same steps.
func (s *Strategy) Local() bool { return !s.onOwn && s.Strategy.Local() }

// Stepped implements strategy.Strategy. It averages the parameters after each Options.Every windows, whether or not a
// rank had loss terms in them.
func (s *Strategy) Stepped(ctx context.Context, changed bool) error {
	if !s.onOwn {
		return s.Strategy.Stepped(ctx, changed)
	}
	s.different = s.different || changed
	if every, since := s.options.Every, s.options.After; (s.steps-since)/every == (s.averaged-since)/every {
		return nil
	}
	return s.Average(ctx)
}

// Average implements strategy.Averages.
func (s *Strategy) Average(ctx context.Context) error {
	s.averaged = s.steps
	if !s.different {
		return nil
	}
	s.different = false
	if err := ddp.CheckFrozen(ctx, s.job.Peers.Data, s.job.Params); err != nil {
		return err
	}
	var list []*tensor.Tensor
	size := 0
	for i, p := range s.job.Params {
		list = append(list, p.Tensor)
		size += 4 * p.Numel()
		if size >= ddp.BucketBytes || i == len(s.job.Params)-1 {
			if err := s.mean(ctx, list, "average of parameters"); err != nil {
				return err
			}
			list, size = nil, 0
		}
	}
	return nil
}

// AverageState implements strategy.Averages. Of steps that ranks counted differently the most counts.
func (s *Strategy) AverageState(ctx context.Context, opt *optim.Optimizer) error {
	if !s.onOwn {
		return nil
	}
	if err := s.Average(ctx); err != nil || opt == nil {
		return err
	}
	own := opt.State()
	all, err := comm.AllGatherObject(ctx, s.job.Peers.Data, own.Steps)
	if err != nil {
		return err
	}
	steps := map[string]int64{}
	for _, theirs := range all {
		for name, n := range theirs {
			steps[name] = max(steps[name], n)
		}
	}
	state := map[string]optim.Saved{}
	for name, t := range own.Tensors {
		state[name] = optim.Saved{DType: t.DType(), Shape: t.Shape(),
			Read: func(into *tensor.Tensor) (tensor.Census, error) {
				return tensor.Census{}, s.mean(ctx, []*tensor.Tensor{into}, "average of "+name)
			}}
	}
	return opt.ReadState(own.Name, steps, state)
}

// SetSteps implements strategy.Averages.
func (s *Strategy) SetSteps(ctx context.Context, steps int64) error {
	s.steps, s.averaged = steps, steps
	if !s.onOwn && steps >= s.options.After {
		return s.leave(ctx)
	}
	return nil
}
