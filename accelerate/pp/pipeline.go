// SPDX-License-Identifier: Apache-2.0

package pp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Config describes a pipeline. All ranks give the same, apart from Job and Group.
type Config struct {
	Model Model
	Group *comm.Group // the ranks of the pipeline, in the order of the schedule's
	// Job is that of a rank which has the whole model; its Params and Held are not read. Its peers are ranks of other
	// pipelines that hold the same stages, and see other samples.
	Job strategy.Job
	// Meet waits for all ranks whose models are copies of one another's, which get their values when they are used;
	// nil: they are those of Group and Job.Peers.Loss.
	Meet func(ctx context.Context) error
	// Strategy makes the strategy by which these ranks train the parameters that Job.Params lists: those of a stage, or
	// one that two stages have. nil: this rank trains them by itself.
	Strategy func(strategy.Job) (strategy.Strategy, error)

	Schedule *schedule.Schedule // of a whole step; see schedule.Load
	Stages   [][]nn.Part        // see Stages
	Costs    []float64          // of each part, see Measure: for Strategy.Describe; nil: they are alike
	Sketch   *Sketch            // of Model before its matrices were divided; nil: they are whole
	Forward  Forward
	// Tokens runs the passes of a batch whose tokens are divided among ranks, or computed by chunks on one; nil: its
	// sequences are whole. Its Params are not read. Ranks along cp have the same stages.
	Tokens *cp.Passes
	Parted bool // strategies that cut parameters, or nobody without Strategy, add up the gradients of ranks along cp
	// Same are the ranks whose models have the same stages; nil: Job.Peers.Loss.
	Same *comm.Group
	// Joined is called on the last stage after the forward passes of a batch, or of all of its chunks here; nil: nobody
	// waits for them.
	Joined   func(ctx context.Context, c *nn.Ctx, b *data.Batch) error
	LogsTail bool // this rank logs that a step has fewer micro-batches than the schedule takes
	// Context derives the context of a forward pass of b from c: its random stream, dtypes and recomputation. tree is
	// that of the model which runs.
	Context func(c *tensor.Ctx, tree *nn.Tree, b *data.Batch, training bool) *nn.Ctx
}

// Loss is the loss of a micro-batch.
type Loss struct {
	Sum   float64 // of the loss terms
	Count float64
}

// Pipeline runs training steps on the ranks of a group, each of which has stages of the model. It belongs to one
// goroutine. After an error the group is dead, and so is the pipeline.
type Pipeline struct {
	cfg     Config
	rank    int
	root    *tensor.Ctx // without gradients
	stages  []*stage    // by number; nil on other ranks
	ties    []*tie
	sketch  *Sketch
	known   map[string]flow
	plans   map[plan]*step
	order   []int        // see sort
	early   map[int]bool // stages whose gradients are exchanged in the passes of a whole step
	params  []tensor.Named
	ended   chan struct{} // closed by Close; nil: the pipeline has no groups
	records *records
	// observe is called before each action of a training step and, with ended, after it; nil: nobody listens.
	observe func(r *runner, a schedule.Action, ended bool)
}

// stage is what a rank has of a stage.
type stage struct {
	*trained
	number   int
	parts    []nn.Part
	ties     []*tie // those with an end here
	complete bool   // the gradients of this step are
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
	p, err := newPipeline(cfg)
	if err != nil {
		return nil, err
	}
	if err := p.own(); err != nil {
		return nil, errors.Join(err, p.Close(false))
	}
	return p, nil
}

// newPipeline makes a pipeline that trains nothing yet: own follows.
func newPipeline(cfg Config) (*Pipeline, error) {
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
	comm.SpareProcessor()
	p := &Pipeline{cfg: cfg, rank: cfg.Group.Rank(), root: cfg.Job.Ctx.NoGrad(),
		stages: make([]*stage, len(cfg.Stages)), known: map[string]flow{}, plans: map[plan]*step{}, records: &records{}}
	if err := p.tie(); err != nil {
		return nil, err
	}
	whole, err := p.plan(plan{s.MicroBatches, true})
	if err != nil {
		return nil, err
	}
	p.sort(whole)
	if p.sketch = cfg.Sketch; p.sketch != nil {
		return p, nil
	}
	if p.sketch, err = NewSketch(cfg.Model, cfg.Forward); err != nil {
		return nil, err
	}
	return p, nil
}

// own finds what this rank trains, and makes its strategies: those of the stages, then those of the ties.
func (p *Pipeline) own() error {
	mine := map[*tensor.Tensor]bool{}
	for _, t := range p.ties {
		mine[t.param.Tensor] = true
	}
	for _, n := range p.cfg.Schedule.StagesOf(p.rank) {
		s := &stage{number: n, parts: p.cfg.Stages[n]}
		for _, t := range p.ties {
			if n == t.first || n == t.last {
				s.ties = append(s.ties, t)
			}
		}
		var held []tensor.Named // a frozen parameter may be in two stages
		for _, q := range Parameters(p.cfg.Job.Tree, s.parts) {
			if !mine[q.Tensor] {
				mine[q.Tensor] = true
				held = append(held, q)
			}
		}
		var err error
		if s.trained, err = p.train(held, s.parts); err != nil {
			return fmt.Errorf("pp: stage %d: %w", n, err)
		}
		s.hook()
		p.stages[n] = s
	}
	for _, t := range p.ties {
		if !slices.Contains(t.ranks[:], p.rank) {
			delete(mine, t.param.Tensor)
			continue
		}
		var err error
		if t.trained, err = p.train([]tensor.Named{t.param}, nil); err != nil {
			return fmt.Errorf("pp: parameter %s of stages %d and %d: %w", t.param.Name, t.first, t.last, err)
		}
	}
	for _, q := range p.cfg.Job.Tree.Parameters() {
		if mine[q.Tensor] {
			p.params = append(p.params, q)
		}
	}
	return nil
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

// step is the schedule of a step, as the ranks run it.
type step struct {
	*schedule.Schedule
	due map[*tie][]int // see Pipeline.due
}

// plan is the schedule of a kind of step.
func (p *Pipeline) plan(of plan) (*step, error) {
	if s := p.plans[of]; s != nil {
		return s, nil
	}
	s, err := p.cfg.Schedule.Truncate(of.microBatches)
	if err != nil {
		return nil, err
	}
	if !of.training {
		s = s.Forward()
	} else if why := p.cfg.Schedule.Refuses(of.microBatches); why != nil && p.cfg.LogsTail {
		p.cfg.Job.Log.Warn("a step has fewer micro-batches than the schedule takes: its passes run in the order of a "+
			"whole step, with the same bits", "micro_batches", of.microBatches, "why", why)
	}
	if s, err = s.Lower(); err != nil {
		return nil, err
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	unit := schedule.Uniform(s.Stages(), schedule.StageCosts{Forward: 1, Input: 1, Weight: 1}, 1)
	sim, err := s.Simulate(unit)
	if err != nil {
		return nil, err
	}
	p.plans[of] = &step{s, p.due(sim)}
	return p.plans[of], nil
}

// flow is what ranks send each other for a batch.
type flow struct {
	borders []border       // between the stages
	rows    map[*tie][]int // of lookups, in the order of a backward pass
}

// flow finds it by the shapes of a batch.
func (p *Pipeline) flow(b *data.Batch) (flow, error) {
	var key strings.Builder
	fmt.Fprint(&key, p.chunks())
	for _, name := range slices.Sorted(maps.Keys(b.Tensors)) {
		fmt.Fprint(&key, name, b.Tensors[name].DType(), b.Tensors[name].Shape())
	}
	if f, ok := p.known[key.String()]; ok {
		return f, nil
	}
	f := flow{make([]border, len(p.cfg.Stages)-1), map[*tie][]int{}}
	var split []int
	for _, parts := range p.cfg.Stages {
		split = append(split, len(parts))
	}
	c := p.cfg.Context(p.sketch.c, p.sketch.tree, b, true)
	c.Training = false // modules report nothing
	stages := p.sketch.stages(split)
	twin := p.sketch.batch(b)
	if t := p.cfg.Tokens; t != nil { // chunks are all alike
		chunks, err := cp.Cut(p.sketch.c, twin, t.Layout())
		if err != nil {
			return f, err
		}
		twin = chunks[0]
		c = c.WithPositions(twin.Tensors[data.PositionIDs]).WithAttention(shapesOfAttention)
	}
	err := p.sketch.run(c, stages[:len(f.borders)], twin, func(i int, out Output) {
		for _, t := range out.Hidden {
			f.borders[i] = append(f.borders[i], struct {
				dtype tensor.DType
				shape []int
			}{t.DType(), t.Shape()})
		}
		for _, t := range p.ties {
			if t.first == i {
				f.rows[t] = p.sketch.lookups(t.param.Name, out)
			}
		}
	})
	p.known[key.String()] = f
	return f, err
}

// shapesOfAttention is the attention of a chunk on a device without values. Masks of chunks are of their own kind.
func shapesOfAttention(c *nn.Ctx, q, k, v *tensor.Tensor, opt tensor.AttentionOptions) *tensor.Tensor {
	opt.Mask = nil
	y, _ := tensor.Attention(c.Ctx, q, k, v, opt)
	return y
}

// Step runs the forward and backward passes of a training step. Every rank of the pipeline passes the same
// micro-batches, by their numbers in the window (data.Batch.MicroBatch); ranks of other pipelines pass others, or none.
// The gradients of the loss sums, times scale and summed over all pipelines, become those of Trained. The rank of the
// last stage returns the losses of the micro-batches, the others nil. It is collective.
func (p *Pipeline) Step(ctx context.Context, batches []*data.Batch, scale float64) ([]Loss, error) {
	return p.run(ctx, batches, true, scale)
}

// Evaluate runs forward passes alone, and returns what Step returns. The last stage's output may lack a loss. It is
// collective over the pipeline.
func (p *Pipeline) Evaluate(ctx context.Context, batches []*data.Batch) ([]Loss, error) {
	return p.run(ctx, batches, false, 0)
}

// WithForward is the pipeline with another function that runs the stages, in steps and evaluations. It must pass on the
// tensors that Config.Forward does.
func (p *Pipeline) WithForward(f Forward) *Pipeline {
	q := *p
	q.cfg.Forward = f
	return &q
}

// WithTokens is the pipeline with other passes of batches whose tokens are divided, and Config.Joined.
func (p *Pipeline) WithTokens(t *cp.Passes, joined func(ctx context.Context, c *nn.Ctx, b *data.Batch) error,
) *Pipeline {
	q := *p
	q.cfg.Tokens, q.cfg.Joined = t, joined
	return &q
}

// MicroBatches is how many micro-batches a step may have, and an evaluation.
func (p *Pipeline) MicroBatches() int { return p.cfg.Schedule.MicroBatches }

func (p *Pipeline) run(ctx context.Context, batches []*data.Batch, training bool, scale float64) ([]Loss, error) {
	s := &step{Schedule: &schedule.Schedule{Ranks: make([][]schedule.Action, p.cfg.Group.Size())}}
	if len(batches) > 0 {
		var err error
		if s, err = p.plan(plan{len(batches), training}); err != nil {
			return nil, err
		}
	}
	r := &runner{Pipeline: p, ctx: ctx, step: s, batches: batches, training: training, scale: scale,
		passes: map[place]*pass{}, inputs: map[place]*parcel{}, grads: map[place]*parcel{},
		tied: map[*tie]*tiedSum{}}
	losses, err := r.run()
	if err != nil {
		p.cfg.Group.Abort(err)
	}
	r.clear()
	return losses, err
}
