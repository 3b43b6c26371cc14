// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Config describes a pipeline. All ranks give the same, apart from Ctx, Tree and Group.
type Config struct {
	Ctx   *tensor.Ctx // of the rank, without a memory scope
	Model Model
	Tree  *nn.Tree    // of Model
	Group *comm.Group // the ranks of the pipeline, in the order of the schedule's

	Schedule *schedule.Schedule // of a whole step; see schedule.Load
	Stages   [][]nn.Part        // see Stages
	Forward  Forward
	// Context derives the context of a forward pass of b from c: its random stream, dtypes and recomputation. tree is
	// that of the model which runs.
	Context func(c *tensor.Ctx, tree *nn.Tree, b *data.Batch, training bool) *nn.Ctx
	// DeterministicRanks is as in package accumulation.
	DeterministicRanks int
}

// Loss is the loss of a micro-batch.
type Loss struct {
	Sum   float64 // of the loss terms
	Count float64
}

// Pipeline runs training steps on the ranks of a group, each of which has stages of the model. It belongs to one
// goroutine. After an error the group is dead, and so is the pipeline.
type Pipeline struct {
	cfg    Config
	rank   int
	root   *tensor.Ctx // without gradients
	stages []*stage    // by number; nil on other ranks
	ties   []*tie
	sketch *sketch
	known  map[string][]border
	plans  map[plan]*schedule.Schedule
	params []tensor.Named
	ended  chan struct{} // closed by Close; nil: the pipeline has no groups
}

// stage is what a rank has of a stage.
type stage struct {
	number int
	parts  []nn.Part
	params []tensor.Named // that are trained and not tied
	sum    *accumulation.Accumulator
	ties   []*tie  // those with an end here
	queue  []*pass // backward passes whose weight gradients wait for those of the tie's other end
}

// border is what flows between two stages.
type border []struct {
	dtype tensor.DType
	shape []int
}

// plan is a kind of step.
type plan struct {
	microBatches int
	training     bool
}

// New makes a pipeline. It is collective. The schedule is validated, with its messages and without, and simulated.
func New(cfg Config) (*Pipeline, error) {
	s := cfg.Schedule
	switch {
	case len(s.Ranks) != cfg.Group.Size():
		return nil, fmt.Errorf("pp: schedule %s is for %d ranks: want %d", s.Name, len(s.Ranks), cfg.Group.Size())
	case s.Stages() != len(cfg.Stages):
		return nil, fmt.Errorf("pp: schedule %s has %d stages: want %d, as the model", s.Name, s.Stages(),
			len(cfg.Stages))
	}
	if err := errors.Join(CheckParts(cfg.Model), s.Validate()); err != nil {
		return nil, err
	}
	p := &Pipeline{cfg: cfg, rank: cfg.Group.Rank(), root: cfg.Ctx.NoGrad(), stages: make([]*stage, len(cfg.Stages)),
		known: map[string][]border{}, plans: map[plan]*schedule.Schedule{}}
	if _, err := p.plan(plan{s.MicroBatches, true}); err != nil {
		return nil, err
	}
	var err error
	if p.sketch, err = newSketch(cfg.Model, cfg.Forward); err != nil {
		return nil, err
	}
	if err := p.tie(); err != nil {
		return nil, err
	}
	p.own()
	return p, nil
}

// own finds what this rank trains.
func (p *Pipeline) own() {
	mine := map[*tensor.Tensor]bool{}
	for _, n := range p.cfg.Schedule.StagesOf(p.rank) {
		s := &stage{number: n, parts: p.cfg.Stages[n]}
		for _, t := range p.ties {
			if n == t.first || n == t.last {
				s.ties = append(s.ties, t)
			}
		}
		for _, q := range Parameters(p.cfg.Tree, s.parts) {
			mine[q.Tensor] = true
			tied := slices.ContainsFunc(s.ties, func(t *tie) bool { return t.param.Tensor == q.Tensor })
			if q.IsLeaf() && !tied {
				s.params = append(s.params, q)
			}
		}
		s.sum = accumulation.New(p.root, s.params, p.cfg.Schedule.MicroBatches, p.cfg.DeterministicRanks)
		p.stages[n] = s
	}
	for _, q := range p.cfg.Tree.Parameters() {
		if mine[q.Tensor] {
			p.params = append(p.params, q)
		}
	}
}

// Params are the parameters of this rank's stages, in the order and under the names of the whole model.
func (p *Pipeline) Params() []tensor.Named { return p.params }

// Owned are the parameters whose gradients count on this rank in a norm over the model: all of Params, except tied ones
// that an earlier rank of the pipeline has too.
func (p *Pipeline) Owned() []tensor.Named {
	elsewhere := func(q tensor.Named) bool {
		return slices.ContainsFunc(p.ties, func(t *tie) bool {
			return t.param.Tensor == q.Tensor && t.ranks[0] != p.rank
		})
	}
	return slices.DeleteFunc(slices.Clone(p.params), elsewhere)
}

// plan is the schedule of a step, as the ranks run it.
func (p *Pipeline) plan(of plan) (*schedule.Schedule, error) {
	if s := p.plans[of]; s != nil {
		return s, nil
	}
	s, err := p.cfg.Schedule.Truncate(of.microBatches)
	if err != nil {
		return nil, err
	}
	if !of.training {
		s = s.Forward()
	}
	if s, err = s.Lower(); err != nil {
		return nil, err
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	unit := schedule.Uniform(s.Stages(), schedule.StageCosts{Forward: 1, Input: 1, Weight: 1}, 1)
	if _, err := s.Simulate(unit); err != nil {
		return nil, err
	}
	p.plans[of] = s
	return s, nil
}

// borders are the tensors that flow between the stages for a batch.
func (p *Pipeline) borders(b *data.Batch) ([]border, error) {
	var key strings.Builder
	for _, name := range slices.Sorted(maps.Keys(b.Tensors)) {
		fmt.Fprint(&key, name, b.Tensors[name].DType(), b.Tensors[name].Shape())
	}
	if list, ok := p.known[key.String()]; ok {
		return list, nil
	}
	list := make([]border, len(p.cfg.Stages)-1)
	c := p.cfg.Context(p.sketch.c, p.sketch.tree, b, true)
	c.Training = false // modules report nothing
	var split []int
	for _, parts := range p.cfg.Stages {
		split = append(split, len(parts))
	}
	stages := p.sketch.stages(split)
	err := p.sketch.run(c, stages[:len(list)], p.sketch.batch(b), func(i int, out Output) {
		for _, t := range out.Hidden {
			list[i] = append(list[i], struct {
				dtype tensor.DType
				shape []int
			}{t.DType(), t.Shape()})
		}
	})
	p.known[key.String()] = list
	return list, err
}

// Step runs the forward and backward passes of a training step. Every rank passes the same micro-batches. The gradients
// of the loss sums, times scale, become those of Params. The rank of the last stage returns the losses of the
// micro-batches, the others nil. It is collective.
func (p *Pipeline) Step(ctx context.Context, batches []*data.Batch, scale float64) ([]Loss, error) {
	return p.run(ctx, batches, true, scale)
}

// Evaluate runs forward passes alone, and returns what Step returns. It is collective.
func (p *Pipeline) Evaluate(ctx context.Context, batches []*data.Batch) ([]Loss, error) {
	return p.run(ctx, batches, false, 0)
}

func (p *Pipeline) run(ctx context.Context, batches []*data.Batch, training bool, scale float64) ([]Loss, error) {
	s, err := p.plan(plan{len(batches), training})
	if err != nil {
		return nil, err
	}
	r := &runner{Pipeline: p, ctx: ctx, schedule: s, batches: batches, training: training, scale: scale,
		passes: map[place]*pass{}, inputs: map[place]*parcel{}, grads: map[place]*parcel{},
		tied: map[tiedPlace]*parcel{}}
	losses, err := r.step()
	if err != nil {
		p.cfg.Group.Abort(err)
	}
	r.clear()
	return losses, err
}
