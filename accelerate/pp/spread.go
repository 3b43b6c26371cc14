// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Strategy is a pipeline as a strategy: each rank has, and updates, whole parameters, those of its stages. Parameters
// of other stages have no memory here; using one is an error outside of Summon.
type Strategy struct {
	*Pipeline
	held []held
	away *visits
	late []int // parameters of other stages that still have memory
}

// NewStrategy makes the strategy of a pipeline. All ranks begin with the values of
// the pipeline's first; differed is how many parameters had others here. It is collective. GiveUp follows it.
func NewStrategy(ctx context.Context, cfg Config) (s *Strategy, differed int, err error) {
	p, err := New(cfg)
	if err != nil {
		return nil, 0, err
	}
	s = &Strategy{Pipeline: p, held: holders(&p.cfg)}
	s.away = newVisits(s)
	if fault := tensor.Try(func() { differed, err = s.begin(ctx) }); fault != nil {
		err = fault
	}
	if err != nil {
		return nil, differed, errors.Join(err, p.Close(false))
	}
	return s, differed, nil
}

// Begin implements strategy.Strategy. Step runs the passes.
func (s *Strategy) Begin(int, bool) (sends bool) {
	panic(&tensor.Error{Op: "pp.Strategy", Msg: "a backward pass of its own: want Step, which runs those of a window"})
}

// Ready implements strategy.Strategy.
func (s *Strategy) Ready(int) {}

// End implements strategy.Strategy.
func (s *Strategy) End() {}

// Open implements strategy.Strategy. Step readies the exchange.
func (s *Strategy) Open(context.Context) error { return nil }

// Finish implements strategy.Strategy. The gradients are complete after Step.
func (s *Strategy) Finish(context.Context) error { return nil }

// Reset implements strategy.Strategy.
func (s *Strategy) Reset() { s.reset() }

// Local implements strategy.Strategy.
func (s *Strategy) Local() bool { return false }

// Shards implements strategy.Strategy.
func (s *Strategy) Shards() strategy.Shards { return s }

// Parameters implements strategy.Strategy.
func (s *Strategy) Parameters() strategy.Parameters { return s }

// Averages implements strategy.Strategy.
func (s *Strategy) Averages() strategy.Averages { return nil }

// Placed implements strategy.Shards.
func (s *Strategy) Placed() (list []tensor.Placed) {
	for _, p := range append(s.Params(), s.cfg.Job.Tree.Buffers()...) {
		list = append(list, p.Placed())
	}
	return list
}

// Cut implements strategy.Shards.
func (s *Strategy) Cut(string) bool { return false }

// Placement implements strategy.Shards.
func (s *Strategy) Placement(name string) (p tensor.Placement, ok bool) {
	if p, ok = s.Pipeline.Placement(name); ok {
		return p, true
	}
	i := slices.IndexFunc(s.held, func(h held) bool { return h.Name == name && h.IsLeaf() })
	if i < 0 {
		return p, false
	}
	return s.held[i].Placed().Placement.Slice(0, 0), true
}

// Publish implements strategy.Shards: ranks that have the same parameter get the owner's.
func (s *Strategy) Publish(ctx context.Context) error {
	for _, h := range s.held {
		for _, r := range slices.Compact(slices.Sorted(slices.Values(h.ranks))) {
			if r == h.ranks[0] {
				continue
			}
			if err := s.pass(ctx, h, h.ranks[0], r); err != nil {
				return fmt.Errorf("pp: publishing %s: %w", h.Name, err)
			}
		}
	}
	return nil
}

// pass gives the values of a parameter to another rank that has it.
func (s *Strategy) pass(ctx context.Context, h held, from, to int) (err error) {
	fault := tensor.Try(func() {
		switch label := comm.Label(h.Name); s.rank {
		case from:
			err = s.cfg.Group.Send(comm.OfTensor(s.root, h.Tensor), to, label).Wait(ctx)
		case to:
			err = s.cfg.Group.Recv(comm.OfTensor(s.root, h.Tensor), from, label).Wait(ctx)
			h.Written()
		}
	})
	return errors.Join(err, fault)
}

// held is a parameter of the model, and which ranks of the pipeline have it. The first of them has the earliest stage
// with it.
type held struct {
	tensor.Named
	ranks []int
}

// holders finds who has the parameters, in the order of the model.
func holders(cfg *Config) (list []held) {
	of := map[*tensor.Tensor][]int{}
	for n, parts := range cfg.Stages {
		for _, q := range Parameters(cfg.Job.Tree, parts) {
			of[q.Tensor] = append(of[q.Tensor], cfg.Schedule.StageToRank[n])
		}
	}
	for _, q := range cfg.Job.Tree.Parameters() {
		list = append(list, held{q, of[q.Tensor]})
	}
	return list
}

// Unshard implements strategy.Parameters. A pipeline's parameters come in its steps.
func (s *Strategy) Unshard() {}

// Reshard implements strategy.Parameters.
func (s *Strategy) Reshard() {}

// Gathers implements strategy.Parameters.
func (s *Strategy) Gathers() bool { return false }

// Memory implements strategy.Parameters.
func (s *Strategy) Memory() (m strategy.Memory) {
	for _, p := range s.Params() {
		m.Parameters += int64(p.Bytes())
	}
	for _, p := range s.Trained() {
		m.Gradients += int64(p.Numel() * p.GradDType().Size())
	}
	for _, p := range s.cfg.Job.Tree.Buffers() {
		m.Uncut += int64(p.Bytes())
	}
	m.Together = m.Parameters + m.Gradients
	if g := s.cfg.Job.Peers.Loss; g != nil {
		m.Allocated = g.Allocated()
	}
	return m
}

// Describe implements strategy.Parameters.
func (s *Strategy) Describe() string {
	return fmt.Sprintf("%s, %s, %.1f MB of parameters per rank", s.cfg.Schedule.Name,
		quantity.Of(len(s.cfg.Stages), "stage"), float64(s.Memory().Parameters)/1e6)
}
