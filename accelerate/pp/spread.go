// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Strategy is a pipeline as a strategy: each rank has, and updates, the parameters of its stages, or its shards of
// them. Parameters of other stages have no memory here; using one is an error outside of Summon.
type Strategy struct {
	*Pipeline
	held []held
	away *visits
	late []int // parameters of other stages that still have memory
}

// NewStrategy makes the strategy of a pipeline. All ranks begin with the values of the first rank; differed is how many
// parameters had others here. It is collective. GiveUp follows it.
func NewStrategy(ctx context.Context, cfg Config) (s *Strategy, differed int, err error) {
	p, err := newPipeline(cfg)
	if err != nil {
		return nil, 0, err
	}
	s = &Strategy{Pipeline: p, held: holders(&p.cfg)}
	s.away = newVisits(s)
	if fault := tensor.Try(func() { differed, err = s.begin(ctx) }); fault != nil {
		err = fault
	}
	if err == nil { // a strategy may cut the parameters
		err = p.own()
	}
	if err != nil {
		return nil, differed, errors.Join(err, p.Close(false))
	}
	return s, differed, nil
}

// Begin implements strategy.Strategy. Step runs the passes.
func (s *Strategy) Begin(int, bool) (sends bool) {
	panic(&tensor.Error{Op: "pp.Strategy", Msg: "a separate backward pass: want Step, which runs those of a window"})
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
	for _, t := range s.all() {
		if of := t.Shards(); of != nil {
			list = append(list, of.Placed()...)
			continue
		}
		for _, p := range t.held {
			list = append(list, tensor.Placed{Placement: s.cfg.Job.Place(p), Tensor: p.Tensor})
		}
	}
	for _, b := range s.cfg.Job.Tree.Buffers() {
		list = append(list, b.Placed())
	}
	return list
}

// Cut implements strategy.Shards.
func (s *Strategy) Cut(name string) bool {
	return slices.ContainsFunc(s.all(), func(t *trained) bool { return t.Shards() != nil && t.Shards().Cut(name) })
}

// Placement implements strategy.Shards.
func (s *Strategy) Placement(name string) (p tensor.Placement, ok bool) {
	if p, ok = s.Pipeline.Placement(name); ok {
		return p, true
	}
	i := slices.IndexFunc(s.held, func(h held) bool { return h.Name == name && h.IsLeaf() })
	if i < 0 {
		return p, false
	}
	return s.cfg.Job.Place(s.held[i].Named).Slice(0, 0), true
}

// Publish implements strategy.Shards.
func (s *Strategy) Publish(ctx context.Context) error {
	for _, t := range s.all() {
		if of := t.Shards(); of != nil {
			if err := of.Publish(ctx); err != nil {
				return err
			}
		}
	}
	return nil
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

// Unshard implements strategy.Parameters. Steps and evaluations do it by themselves.
func (s *Strategy) Unshard() {
	for _, t := range s.all() {
		t.unshard()
	}
}

// Reshard implements strategy.Parameters.
func (s *Strategy) Reshard() {
	for _, t := range s.all() {
		t.reshard()
	}
}

// Gathers implements strategy.Parameters.
func (s *Strategy) Gathers() bool {
	return slices.ContainsFunc(s.all(), func(t *trained) bool {
		p := t.Parameters()
		return p != nil && p.Gathers()
	})
}

// Memory implements strategy.Parameters.
func (s *Strategy) Memory() (m strategy.Memory) {
	for _, t := range s.all() {
		one := t.memory()
		m.Parameters += one.Parameters
		m.Uncut += one.Uncut
		m.Gradients += one.Gradients
		m.Gathered += one.Gathered
		m.Together += one.Together
		m.Sums = max(m.Sums, one.Sums)
		m.Shared = m.Shared || one.Shared
	}
	for _, p := range s.cfg.Job.Tree.Buffers() {
		m.Uncut += int64(p.Bytes())
	}
	if g := cmp.Or(s.cfg.Job.Peers.Shards, s.cfg.Job.Peers.Loss); g != nil {
		m.Allocated = g.Allocated()
	}
	return m
}

// memory is what the rank holds of the parameters.
func (t *trained) memory() (m strategy.Memory) {
	if p := t.Parameters(); p != nil {
		return p.Memory()
	}
	for _, p := range t.held {
		m.Parameters += int64(p.Bytes())
	}
	for _, p := range t.Trained() {
		m.Gradients += int64(p.Numel() * p.GradDType().Size())
	}
	m.Together, m.Sums = m.Parameters+m.Gradients, 1
	return m
}

// Describe implements strategy.Parameters.
func (s *Strategy) Describe() string {
	var parts []string
	for _, stage := range s.cfg.Stages {
		parts = append(parts, strconv.Itoa(len(stage)))
	}
	words := fmt.Sprintf("%s (micro-batches: %d), %s (parts: %s), predicted idle %.1f %%, %.1f MB of parameters per "+
		"rank", s.cfg.Schedule.Name, s.MicroBatches(), quantity.Of(len(parts), "stage"), strings.Join(parts, ", "),
		100*s.predictedIdle(), float64(s.Memory().Parameters)/1e6)
	if s.Gathers() {
		words += ", gathered"
	}
	return words
}

// predictedIdle is the part of the ranks' time in a whole step in which they wait, 0 to 1, by the costs of the parts:
// Config.Costs. Messages take no time there.
func (p *Pipeline) predictedIdle() float64 {
	stages, from := make([]schedule.StageCosts, len(p.cfg.Stages)), 0
	total := sum(p.cfg.Costs)
	for i, parts := range p.cfg.Stages {
		cost := float64(len(parts))
		if total > 0 {
			cost = sum(p.cfg.Costs[from:from+len(parts)]) / total
		}
		stages[i], from = schedule.StageCosts{Forward: cost, Input: cost, Weight: cost}, from+len(parts)
	}
	sim, err := p.cfg.Schedule.Simulate(schedule.Costs{Stages: stages})
	if err != nil { // New has simulated it
		return 0
	}
	return sim.Idle()
}

func sum(list []float64) (total float64) {
	for _, x := range list {
		total += x
	}
	return total
}
