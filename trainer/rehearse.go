// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/accumulation"
	"github.com/lockstep-ml/lockstep/accelerate/pp"
	"github.com/lockstep-ml/lockstep/accelerate/pp/schedule"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/fake"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Rehearsal is a training step of the ranks of one pipeline that was run without values.
type Rehearsal struct {
	Schedule *schedule.Schedule
	Split    []int           // parts of the model in each stage
	Ranks    []*pp.Rehearsal // of the pipeline
}

// Play describes a run to rehearse, or to estimate the memory of.
type Play struct {
	Args  *args.TrainingArguments
	On    *tensor.Device                               // of the real run; nil is the CPU
	Mesh  comm.Mesh                                    // of all ranks
	Model func(in *nn.Init) (models.Model, error)      // creates the model
	Batch func(c *tensor.Ctx, samples int) *data.Batch // makes a batch of so many samples
	Cost  func(k tensor.KernelSpan) float64            // the time of a kernel; nil: no time
	// Exchange is the time of calls by which ranks along an axis, tp or cp, send so many bytes; nil: no time.
	Exchange func(axis comm.Axes, calls int, bytes int64) float64
}

// Axes along which ranks exchange something in passes, as Rehearsal's ranks have them in Beside.
var besides = []comm.Axes{comm.TP, comm.CP}

// Rehearse runs two training steps of each rank of a pipeline on a device without values (see pp.Rehearse): it
// allocates, computes and sends what a real run would, on one goroutine. A mesh without pipelines has one of one rank.
func (p *Play) Rehearse() (*Rehearsal, error) {
	r, err := p.rehearse(false)
	if err != nil {
		return nil, fmt.Errorf("trainer: rehearsal: %w", err)
	}
	return r, nil
}

func (p *Play) rehearse(together bool) (*Rehearsal, error) {
	micro, err := p.Args.AccumulationSteps(p.replicas())
	if err != nil {
		return nil, err
	}
	r := &Rehearsal{}
	shape := schedule.Shape{Ranks: max(p.Mesh.PP, 1), MicroBatches: micro}
	if r.Schedule, err = schedule.Load(p.Args.PPSchedule, shape); err != nil {
		return nil, err
	}
	if r.Split, err = p.split(r.Schedule.Stages()); err != nil {
		return nil, err
	}
	cost := p.Cost
	if cost == nil {
		cost = func(tensor.KernelSpan) float64 { return 0 }
	}
	for rank := range r.Schedule.Ranks {
		of, err := pp.Rehearse(p.On, rank, cost, func(dev *tensor.Device) (pp.Scene, error) {
			return p.scene(dev, r.Schedule, r.Split, together)
		})
		if err != nil {
			return nil, err
		}
		r.Ranks = append(r.Ranks, of)
	}
	return r, nil
}

// pipelined creates the model on a device without values.
func (p *Play) pipelined(dev *tensor.Device) (m models.Pipelined, err error) {
	var made models.Model
	if tried := tensor.Try(func() { made, err = p.Model(nn.NewInit(dev, p.Args.Seed).Deferred()) }); tried != nil ||
		err != nil {
		return nil, errors.Join(tried, err)
	}
	m, ok := made.(models.Pipelined)
	if !ok {
		return nil, errors.New("the model cannot be cut into stages: want one that lists its parts (models.Pipelined)")
	}
	return m, nil
}

// split is how many parts each stage has.
func (p *Play) split(stages int) ([]int, error) {
	dev := tensor.NewMeta()
	defer dev.Close()
	m, err := p.pipelined(dev)
	if err != nil {
		return nil, err
	}
	split, err := p.Args.PipelineSplit()
	if err != nil {
		return nil, err
	}
	if split == nil {
		b, err := exampleOf(tensor.NewCtx(dev), m)
		if err != nil {
			return nil, err
		}
		costs, err := pp.Measure(m, forwardStage, b)
		if err != nil {
			return nil, err
		}
		if split, err = pp.Partition(costs, stages); err != nil {
			return nil, err
		}
	}
	if _, err := pp.Stages(m.Parts(), split); err != nil {
		return nil, err
	}
	if len(split) != stages {
		return nil, fmt.Errorf("a split into %d stages: want %d, as the schedule has", len(split), stages)
	}
	return split, nil
}

// forwardStage is the training forward pass of a stage.
func forwardStage(c *nn.Ctx, m pp.Model, b *data.Batch) (pp.Output, error) { return stageOf(c, m, b) }

// scene is a rank of the pipeline on a device without values. With together it trains with the ranks of other pipelines
// that have the same stages.
func (p *Play) scene(dev *tensor.Device, s *schedule.Schedule, split []int, together bool) (sc pp.Scene, err error) {
	m, err := p.pipelined(dev)
	if err != nil {
		return sc, err
	}
	a, c := p.Args, tensor.NewCtx(dev)
	sc.Config = pp.Config{Model: m, Schedule: s, Forward: forwardStage, Context: p.context(m), Job: strategy.Job{
		Ctx: c, Tree: nn.Walk(m), Exchange: strategy.Exchange{DeterministicRanks: p.deterministicRanks()},
		Layout: samplers.WindowLayout{AccumulationSteps: s.MicroBatches, WorldSize: 1}}}
	if sc.Stages, err = pp.Stages(m.Parts(), split); err != nil {
		return sc, err
	}
	if err := p.share(&sc); err != nil {
		return sc, err
	}
	if together {
		if err := p.spread(&sc); err != nil {
			return sc, err
		}
	}
	for i := range s.MicroBatches {
		b := p.Batch(c, a.PerDeviceTrainBatchSize)
		b.Position, b.MicroBatch = int64(i*a.PerDeviceTrainBatchSize), i
		sc.Batches = append(sc.Batches, b)
	}
	sc.Optimizer = func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
		opt, err := namedOptimizer(a, 1, c, []*optim.Group{{LR: a.LearningRate, Params: params}})
		if err == nil {
			opt.SetHalfUpdate(optim.HalfUpdate(a.HalfUpdate), a.Seed)
			if a.EMADecay > 0 {
				opt.SetAverage(a.EMADecay)
			}
		}
		return opt, err
	}
	return sc, nil
}

// share divides the matrices of a scene's model, and the tokens of its batches, as the first rank along tp and cp has
// them.
func (p *Play) share(sc *pp.Scene) (err error) {
	groups := make([]*comm.Group, len(besides))
	for i, axis := range besides {
		g, engine := fake.New(0, max(p.Mesh.Size(axis), 1), comm.Options{Log: slog.New(slog.DiscardHandler)})
		engine.Mirror = true
		groups[i] = g
		b := pp.Beside{Engine: engine}
		if f := p.Exchange; f != nil {
			b.Time = func(calls int, bytes int64) float64 { return f(axis, calls, bytes) }
		}
		sc.Beside = append(sc.Beside, b)
	}
	if sc.Tokens, err = accelerate.TokenPasses(p.Args, groups[1]); err != nil {
		return err
	}
	sc.Parted = accelerate.ShardsGradients(p.Args)
	cfg, ok, err := accelerate.TensorConfig(p.Args, sc.Model, groups[0])
	if err != nil || !ok {
		return err
	}
	if sc.Sketch, err = pp.NewSketch(sc.Model, sc.Forward); err != nil {
		return err
	}
	d, err := tp.Divide(sc.Job.Ctx, sc.Model, cfg)
	if err != nil {
		return err
	}
	sc.Job.Tree, sc.Job.Divided = d.Tree(), d.Divided()
	return nil
}

// spread makes a scene's rank the first of those that have the same stages: they see other samples or tokens, and may
// have shards of the parameters, gradients and moments.
func (p *Play) spread(sc *pp.Scene) (err error) {
	j, m := &sc.Job, p.Mesh
	group := func(axes comm.Axes) *comm.Group {
		if m.Size(axes) <= 1 {
			return nil
		}
		g, engine := fake.New(0, m.Size(axes), comm.Options{Log: slog.New(slog.DiscardHandler)})
		engine.Mirror = true
		return g
	}
	const data = comm.DPReplicate | comm.DPShard
	j.Peers = strategy.Peers{Data: group(data), Loss: group(data)}
	if p.Args.ShardStrategy() != args.NoShard {
		j.Peers.Loss, j.Peers.Shards = group(data|comm.CP), group(comm.DPShard|comm.CP)
		j.Peers.Tokens, j.Peers.Replicas = group(comm.CP), group(comm.DPReplicate)
	}
	j.Log, j.BucketBytes = slog.New(slog.DiscardHandler), p.Args.DDPBucketCapMB<<20
	j.DeterministicRanks, j.Layout.WorldSize = p.Args.DeterministicRanks, p.replicas()
	if p.replicas() > 1 && accelerate.ShardsGradients(p.Args) {
		j.Layout.Interleaved, j.Layout.Replicas = true, max(m.DPReplicate, 1)
	}
	if of, ok := sc.Model.(models.Recomputable); ok {
		j.Units = of.RecomputeUnits()
	}
	sc.Strategy, err = accelerate.StageStrategy(p.Args, j.Tree)
	return err
}

// context makes the contexts of forward passes.
func (p *Play) context(m models.Model) func(*tensor.Ctx, *nn.Tree, *data.Batch, bool) *nn.Ctx {
	return func(c *tensor.Ctx, tree *nn.Tree, b *data.Batch, training bool) *nn.Ctx {
		c = c.WithRandom(p.Args.Seed, b.Position)
		switch {
		case p.Args.BF16:
			c = c.Autocast(tensor.BFloat16)
		case p.Args.FP16:
			c = c.Autocast(tensor.Float16)
		}
		d := nn.NewCtx(c, tree, training).WithLossOnly()
		if of, ok := m.(models.Recomputable); ok && p.Args.GradientCheckpointing {
			d = d.WithRecompute(of.RecomputeUnits())
		}
		return d
	}
}

// EstimateMemory estimates the memory of the tensors of each rank of a pipeline. Gradients and activations are the most
// that there is of each, at different times: the peak is less than the sum. Where ranks along dp_shard spread the
// model, they gather, and share no memory.
func (p *Play) EstimateMemory() ([]*MemoryEstimate, *Rehearsal, error) {
	r, err := p.Rehearse()
	if err != nil {
		return nil, nil, err
	}
	together := r
	if p.replicas()*max(p.Mesh.CP, 1) > 1 {
		if together, err = p.rehearse(true); err != nil {
			return nil, nil, fmt.Errorf("trainer: rehearsal: %w", err)
		}
	}
	list := make([]*MemoryEstimate, len(r.Ranks))
	for i := range list {
		list[i] = p.estimate(r.Ranks[i], together.Ranks[i], r.Schedule.MicroBatches)
	}
	return list, r, nil
}

// estimate is what a rank takes that trains together with those of other pipelines. alone is what it would take without
// them, which tells what is no gradient.
func (p *Play) estimate(alone, together *pp.Rehearsal, microBatches int) *MemoryEstimate {
	e := &MemoryEstimate{Parameters: alone.Parameters, Gradients: alone.Sums, OptimizerState: together.State,
		Activations: alone.Held, Peak: together.Peak,
		GradientSums: bits.Len(uint(accumulation.Groups(microBatches, p.deterministicRanks())))}
	if m := together.Spread; together != alone && p.Args.ShardStrategy() != args.NoShard {
		e.Parameters, e.Gradients, e.GradientSums = m.Parameters+m.Uncut, m.Gradients, m.Sums
		// As in EstimateMemory of a run without pipeline.
		e.Gathered = min(m.Gathered, e.Peak-e.Parameters-e.OptimizerState)
	}
	return e
}

// deterministicRanks are those of each replica of the pipeline.
func (p *Play) deterministicRanks() int {
	return max(1, p.Args.DeterministicRanks/p.replicas())
}

// replicas is how many pipelines the mesh has.
func (p *Play) replicas() int { return max(p.Mesh.DPReplicate, 1) * max(p.Mesh.DPShard, 1) }
