// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate/cp"
	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/pp/timeline"
	"github.com/lockstep-ml/lockstep/accelerate/ranks"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Stages say how stages of a model run in a pipeline (pp_size), before there is data.
type Stages struct {
	// Forward runs the stage of a context (nn.Ctx.WithStage) of m, which is the prepared model or a copy of it on a
	// device without values: so the ranks learn what each part costs, and what flows from stage to stage.
	Forward func(c *nn.Ctx, m nn.Module, b *data.Batch) (Output, error)
	// Example makes a batch to measure the parts of m with. nil: pp_split says where the model is cut.
	Example func(c *tensor.Ctx, m nn.Module) (*data.Batch, error)
}

func (s Stages) forward(c *nn.Ctx, m pp.Model, b *data.Batch) (Output, error) {
	return s.Forward(c, m, b)
}

// WithStages says how the stages of the model run in a pipeline. Package trainer does.
func WithStages(s Stages) Option { return func(a *Accelerator) { a.stages = s } }

// pipelining is what the arguments say of pipelines.
type pipelining struct {
	schedule string // a name, or a file
	split    []int  // parts of each stage; nil: by their costs
}

// joinPipeline makes this rank part of a pipeline, and of the pipelines that share a window.
func (a *Accelerator) joinPipeline(ctx context.Context, hook ddp.Hook, units []nn.Module) error {
	if err := a.checkPipeline(hook); err != nil {
		return err
	}
	model, _ := a.model.(pp.Model)
	sched, err := a.loadSchedule()
	if err != nil {
		return err
	}
	split, costs, err := a.split(ctx, model, sched.Stages())
	if err != nil {
		return err
	}
	stages, err := pp.Stages(model.Parts(), split)
	if err != nil {
		return fmt.Errorf("accelerate: pp_split: %w", err)
	}
	sketch, err := pp.NewSketch(model, a.stages.forward)
	if err != nil {
		return fmt.Errorf("accelerate: %w", err)
	}
	if a.divides() {
		if err := a.divide(ctx, hook, func() error { return a.Barrier(ctx) }); err != nil {
			return err
		}
	}
	var tokens *cp.Passes
	if a.DividesTokens() {
		if tokens, err = a.passes(nil, 0); err != nil {
			return err
		}
	}
	j := a.strategyJob(units)
	s, differed, err := pp.NewStrategy(ctx, pp.Config{Model: model, Group: a.PipelineRanks().Group(), Job: j,
		Meet:     a.Barrier,
		Strategy: func(j strategy.Job) (strategy.Strategy, error) { return a.choose(hook, j) },
		Schedule: sched, Stages: stages, Costs: costs, Sketch: sketch, Forward: a.stages.forward,
		Context: a.stageCtx, LogsTail: a.logsTail(j.Layout), Tokens: tokens, Same: a.SamePartRanks().Group(),
		Parted: a.sharding.Strategy.ShardsGradients()})
	if err != nil {
		a.division = nil
		return fmt.Errorf("accelerate: %w", err)
	}
	if a.strategy, a.pipeline = s, s; a.division != nil {
		a.strategy = tp.NewStrategy(a.ctx, a.division, s)
	}
	buffers, err := ddp.Verify(ctx, a.ctx, a.Group(), a.tree.Buffers())
	if err != nil {
		return err
	}
	if err := a.reportDiffering(ctx, differed+buffers, len(a.tree.Buffers())+len(s.Params())); err != nil {
		return err
	}
	return s.GiveUp()
}

// logsTail reports whether this rank logs that its pipeline has too few micro-batches for the schedule. One rank does
// of all whose pipelines have as few: of consecutive micro-batches only one pipeline's end early, and otherwise all of
// those that take turns have as many.
func (a *Accelerator) logsTail(l samplers.WindowLayout) bool {
	switch {
	case a.PipelineRanks().Rank() > 0:
		return false
	case a.next.batches.dealing != microBatches:
		return a.IsMain()
	case l.Interleaved:
		return l.MicroBatch(0) == l.Round(0)
	}
	return true
}

// loadSchedule is that of the windows from the next Prepare on.
func (a *Accelerator) loadSchedule() (*schedule.Schedule, error) {
	layout, err := a.Layout()
	if err != nil {
		return nil, err
	}
	s, err := schedule.Load(a.next.pipelining.schedule, schedule.Shape{Ranks: a.PipelineRanks().WorldSize(),
		MicroBatches: layout.AccumulationSteps})
	if err != nil {
		return nil, fmt.Errorf("accelerate: pp_schedule, with pp_size %d and %s on each rank "+
			"(gradient_accumulation_steps): %w", a.PipelineRanks().WorldSize(),
			quantity.Of(layout.AccumulationSteps, "micro-batch"), err)
	}
	return s, nil
}

// checkPipeline refuses what does not go together with a pipeline.
func (a *Accelerator) checkPipeline(hook ddp.Hook) error {
	size := fmt.Sprintf("accelerate: pp_size %d: ", a.PipelineRanks().WorldSize())
	_, staged := a.model.(pp.Model)
	switch disk := a.plan.disk; {
	case !staged:
		return errors.New(size + "the model cannot be cut into stages: want one that lists its parts " +
			"(models.Pipelined), or pp_size 1")
	case a.stages.Forward == nil:
		return errors.New(size + "want WithStages, which defines how a stage runs")
	case a.factory.New != nil:
		return errors.New(size + "WithStrategy is not supported in pipelines: want pp_size 1, or no WithStrategy")
	case a.plan.local.Every > 0:
		return fmt.Errorf("%slocal_sgd_steps %d: want 0: the ranks of a pipeline step together", size,
			a.plan.local.Every)
	case hook.Name() != ddp.AllReduce.Name():
		return fmt.Errorf("%sddp_comm_hook %s is not built in pipelines: want no", size, hook.Name())
	case a.stats != nil:
		return fmt.Errorf("%sthe model tracks statistics of its batches (batch norm), which the ranks of a pipeline "+
			"do not exchange: want pp_size 1, or a model without", size)
	case disk.params || disk.state:
		return errors.New(size + "offload to disk is not built in pipelines: want offload_params and " +
			"offload_optimizer none")
	}
	return nil
}

// split is how many parts each stage has: what pp_split says, or what the first rank finds. costs are those of the
// parts; nil if the model makes no batch to measure them with.
func (a *Accelerator) split(ctx context.Context, m pp.Model, stages int) (split []int, costs []float64, err error) {
	split = a.plan.pipelining.split
	if split != nil && len(split) != stages {
		return nil, nil, fmt.Errorf("accelerate: pp_split %v has %s: want %d, one for each stage of %s", split,
			quantity.Of(len(split), "number"), stages, a.plan.pipelining.schedule)
	}
	if a.stages.Example == nil && split == nil {
		return nil, nil, fmt.Errorf("accelerate: pp_size %d: no example batch to measure the model's parts with: "+
			"want pp_split, the number of parts in each of %d stages", a.PipelineRanks().WorldSize(), stages)
	}
	costs, err = a.partCosts(m)
	if split != nil { // the costs only tell the predicted idle
		return split, costs, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if split, err = pp.Partition(costs, stages); err != nil {
		return nil, nil, fmt.Errorf("accelerate: %w", err)
	}
	err = comm.BroadcastObject(ctx, a.Group(), &split, 0)
	return split, costs, err
}

// partCosts are those of each part of the model; nil if nothing makes a batch to measure them with.
func (a *Accelerator) partCosts(m pp.Model) ([]float64, error) {
	if a.stages.Example == nil {
		return nil, nil
	}
	b, err := a.stages.Example(tensor.NewCtx(tensor.NewMeta()).NoGrad(), m)
	if err != nil {
		return nil, err
	}
	costs, err := pp.Measure(m, a.stages.forward, b)
	if err != nil {
		return nil, fmt.Errorf("accelerate: %w", err)
	}
	return costs, nil
}

// Evaluate calls run for each batch, in the context of a forward pass without gradients and dropout. In a pipeline it
// is called for every batch and stage, on the rank that has the stage; only that of the last stage gets the model's
// output. There all ranks of the pipeline pass the same batches, at most EvaluatesTogether, and an error of one is an
// error on all. It is collective over ComputingRanks.
func (a *Accelerator) Evaluate(ctx context.Context, batches []*data.Batch, run LossFunc) (err error) {
	if a.pipeline != nil {
		f := func(c *nn.Ctx, _ pp.Model, b *data.Batch) (Output, error) { return run(c, b) }
		_, err = a.pipeline.WithForward(f).Evaluate(ctx, batches)
		return err
	}
	for _, b := range batches {
		if fault := tensor.Recover(func() {
			_, err = a.EvalCtx().TryScope(func(c *nn.Ctx) ([]*tensor.Tensor, error) {
				_, err := run(c, b)
				return nil, err
			})
		}); fault != nil {
			return b.Explain(fault)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Timeline lays the last step of this rank's pipeline over the predicted one, while every rank of it has a listener
// (Trace). The first rank of the pipeline gets it, the others nil, and all where there is no pipeline. It is collective
// over PipelineRanks.
func (a *Accelerator) Timeline(ctx context.Context) (*timeline.Timeline, error) {
	if a.pipeline == nil {
		return nil, nil
	}
	return a.pipeline.Timeline(ctx)
}

// EvaluatesTogether is how many batches Evaluate takes at once: as many as keep a pipeline busy, else 1.
func (a *Accelerator) EvaluatesTogether() int {
	if a.pipeline != nil {
		return a.pipeline.MicroBatches()
	}
	return 1
}

// ComputingRanks are the ranks that must compute at the same time as this one: those that share the work on the same
// samples, or all if they gather the parameters of a sharded model.
func (a *Accelerator) ComputingRanks() *ranks.Peers {
	switch {
	case a.GathersParameters():
		return &a.Peers
	case a.pipeline != nil, a.division != nil, a.DividesTokens():
		return a.ModelRanks()
	}
	return new(ranks.Peers)
}

// Repeats reports whether another rank has the outputs of this one's forward passes too, and counts them: ranks along
// pp each have the whole model before and after they are a pipeline.
func (a *Accelerator) Repeats() bool { return a.pipeline == nil && a.PipelineRanks().Rank() > 0 }

// stageCtx is pp.Config.Context.
func (a *Accelerator) stageCtx(c *tensor.Ctx, tree *nn.Tree, b *data.Batch, training bool) *nn.Ctx {
	if training {
		return a.trainCtx(c, tree, b.Position)
	}
	return a.evalCtx(c, tree)
}
