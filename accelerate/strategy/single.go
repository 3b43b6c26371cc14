// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"context"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Single is the strategy of a rank that has all parameters and exchanges nothing. Others embed it and replace what they
// do differently.
type Single struct {
	Job Job
	Sum *accumulation.Accumulator // of this rank's micro-batches
}

// NewSingle makes the strategy of a job's only rank.
func NewSingle(j Job) *Single { return &Single{j, j.Accumulator()} }

// Begin implements Strategy.
func (s *Single) Begin(microBatch int, _ bool) (sends bool) {
	s.Sum.Begin(microBatch)
	return false
}

// Ready implements Strategy.
func (s *Single) Ready(int) {}

// End implements Strategy.
func (s *Single) End() {}

// Open implements Strategy.
func (s *Single) Open(context.Context) error { return nil }

// Finish implements Strategy.
func (s *Single) Finish(context.Context) error { return tensor.Try(s.Sum.Finish) }

// Reset implements Strategy.
func (s *Single) Reset() { s.Sum.Reset() }

// Trained implements Strategy.
func (s *Single) Trained() []tensor.Named { return s.Job.Params }

// Norm implements Strategy.
func (s *Single) Norm(ctx context.Context) (float64, error) {
	if s.Job.Divided == nil {
		return optim.GradNorm(s.Job.Ctx, s.Job.Params), nil
	}
	return s.Job.Norm(ctx, s.Job.Params, func(i int) (*tensor.Tensor, int) { return s.Job.Params[i].Grad(), 0 })
}

// Local implements Strategy.
func (s *Single) Local() bool { return s.Job.Divided == nil }

// Stepped implements Strategy.
func (s *Single) Stepped(context.Context, bool) error { return nil }

// Shards implements Strategy.
func (s *Single) Shards() Shards { return nil }

// Parameters implements Strategy.
func (s *Single) Parameters() Parameters { return nil }

// Averages implements Strategy.
func (s *Single) Averages() Averages { return nil }

// Close implements Strategy.
func (s *Single) Close(bool) error { return nil }
