// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"errors"

	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Strategy is data parallelism: each rank has all parameters, and gradients are summed over the ranks while the last
// backward pass of a window computes others.
type Strategy struct {
	*strategy.Single
	reducer *Reducer
}

// NewStrategy makes the strategy of the ranks of the job whose gradients are summed, with a hook or nil. It is
// collective.
func NewStrategy(j strategy.Job, h Hook) (*Strategy, error) {
	if j.Peers.Loss == nil {
		return nil, errors.New("ddp: the job has no ranks that sum losses (strategy.Peers.Loss): want several")
	}
	r, err := New(j.Ctx, j.Peers.Loss, j.Params, Options{Hook: h, Exchange: j.Exchange, Trace: j.Trace})
	if err != nil {
		return nil, err
	}
	s := &Strategy{Single: strategy.NewSingle(j), reducer: r}
	s.Sum.Settle(r.Views())
	return s, nil
}

// Begin implements strategy.Strategy.
func (s *Strategy) Begin(microBatch int, last bool) (sends bool) {
	s.Sum.Begin(microBatch)
	return last
}

// Ready implements strategy.Strategy.
func (s *Strategy) Ready(i int) {
	s.Sum.FinishParam(i)
	s.reducer.Ready(i)
}

// Open implements strategy.Strategy. It rebuilds the buckets once the order of gradients is known.
func (s *Strategy) Open(ctx context.Context) error {
	rebuilt, err := s.reducer.Rebuild(ctx)
	if rebuilt {
		s.Sum.Settle(s.reducer.Views())
	}
	return err
}

// Finish implements strategy.Strategy.
func (s *Strategy) Finish(ctx context.Context) error {
	if err := tensor.Try(s.Sum.Finish); err != nil {
		return err
	}
	return s.reducer.Finish(ctx)
}

// Close implements strategy.Strategy. The group must be done with the gradients: call it after a barrier, or when the
// group is dead or closed.
func (s *Strategy) Close(bool) error {
	s.Sum.Settle(nil) // the buckets go
	return s.reducer.Close()
}
