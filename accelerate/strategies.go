// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate/ddp"
	"github.com/lockstep-ml/lockstep/accelerate/localsgd"
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/accelerate/tp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// WithStrategy trains by the program's strategy where several ranks see different data, in place of data parallelism.
// With fsdp, zero_stage, local_sgd_steps or ddp_comm_hook it is an error; the arguments of DDP reach the strategy as
// strategy.Job.Exchange. All ranks must use the same.
func WithStrategy(f strategy.Factory) Option {
	if f.New == nil {
		f.New = func(strategy.Job) (strategy.Strategy, error) { return nil, nil }
	}
	return func(a *Accelerator) { a.factory = f }
}

// strategyJob is what a strategy works with.
func (a *Accelerator) strategyJob(units []nn.Module) strategy.Job {
	var held []tensor.Named
	if a.tree != nil {
		held = a.tree.Parameters()
	}
	var divided *strategy.Divided
	if a.division != nil {
		divided = a.division.Divided()
	}
	return strategy.Job{Ctx: a.ctx, Tree: a.tree, Model: a.model, Held: held, Params: a.params, Units: units,
		Divided: divided,
		Layout:  a.layout, Exchange: a.plan.exchange.Exchange, Main: a.IsMain(), Log: a.log, Trace: a.Trace(),
		Peers: strategy.Peers{Data: a.DataRanks().Group(), Loss: a.gradientRanks().Group(),
			Shards: a.ShardRanks().Group(), Tokens: a.ContextRanks().Group(), Replicas: a.ReplicaRanks().Group()}}
}

// choose makes the strategy of ranks that have the same part of the model.
func (a *Accelerator) choose(hook ddp.Hook, j strategy.Job) (strategy.Strategy, error) {
	sharded := a.sharding.Strategy != shard.None
	switch {
	case j.Peers.Loss == nil: // all ranks see the same data
		return strategy.NewSingle(j), nil
	case a.factory.New != nil:
		s, err := a.factory.New(j)
		if err == nil && s == nil {
			return nil, errors.New("accelerate: the factory of WithStrategy made no strategy: want one, or an error")
		}
		return s, err
	case sharded:
		s, err := shard.New(j, a.shardOptions())
		if err != nil {
			return nil, fmt.Errorf("accelerate: %w", err)
		}
		return s, nil
	}
	reduce := func() (strategy.Strategy, error) {
		a.active = hook
		return ddp.NewStrategy(j, hook)
	}
	if a.plan.local.Every > 0 && j.Peers.Data != nil {
		return localsgd.New(j, a.plan.local, reduce)
	}
	return reduce()
}

// checkStrategy refuses what does not go together.
func (a *Accelerator) checkStrategy(hook ddp.Hook) error {
	sharded := a.sharding.Strategy != shard.None
	own, local := hook.Lossy() || hook.Name() != ddp.AllReduce.Name(), a.plan.local.Every
	_, stateful := hook.(ddp.Stateful)
	switch {
	case a.factory.New != nil && (sharded || local > 0 || own):
		return fmt.Errorf("accelerate: WithStrategy with sharding %q, local_sgd_steps %d and ddp_comm_hook %s: want "+
			"none of them beside the program's strategy", a.sharding.Strategy, local, hook.Name())
	case local > 0 && sharded:
		return fmt.Errorf("accelerate: local_sgd_steps %d with a model that is sharded (%s): want 0, since a rank "+
			"steps with its shard only, or no sharding", local, a.sharding.Strategy)
	case local > 0 && own:
		return fmt.Errorf("accelerate: local_sgd_steps %d with ddp_comm_hook %s: want no hook, since ranks that step "+
			"on their own exchange no gradients, or 0", local, hook.Name())
	case sharded && own:
		return fmt.Errorf("accelerate: ddp_comm_hook %s with a model that is sharded (%s): want no hook, since "+
			"shards of gradients are summed exactly, or no sharding", hook.Name(), a.sharding.Strategy)
	case stateful && a.scaler != nil:
		return fmt.Errorf("accelerate: ddp_comm_hook %s keeps gradients from step to step, and the scale of fp16 "+
			"changes: want bf16 or float32", hook.Name())
	case stateful && a.DataRanks().WorldSize() != a.WorldSize():
		return fmt.Errorf("accelerate: ddp_comm_hook %s keeps a state, which is saved for %d ranks that share the "+
			"data only, of %d: want a hook without state", hook.Name(), a.DataRanks().WorldSize(), a.WorldSize())
	}
	return nil
}

// checkOptimizer refuses an optimizer that does not fit the parts of parameters that this rank updates.
func (a *Accelerator) checkOptimizer(opt *optim.Optimizer) error {
	blocks := opt.Blocks()
	divided := a.division != nil && a.TensorRanks().WorldSize() > 1
	if (opt.NeedsWhole() || blocks > 1) && divided && a.cut() {
		return fmt.Errorf("accelerate: optimizer %s needs whole parameters, and they are divided (tp_size): want "+
			"tp_size 1, or an optimizer whose transforms are all elementwise (optim.Traits)", opt.Name())
	}
	if opt.NeedsWhole() && a.cut() {
		return fmt.Errorf("accelerate: optimizer %s needs whole parameters, and they are sharded: want no fsdp, "+
			"zero_stage and dp_shard_size, or an optimizer whose transforms are all elementwise (optim.Traits)",
			opt.Name())
	}
	if a.cut() && strategy.Cell%blocks != 0 {
		return fmt.Errorf("accelerate: optimizer %s computes blocks of %d elements, and shards begin at multiples of "+
			"%d: want a divisor of that", opt.Name(), blocks, strategy.Cell)
	}
	if s := a.strategy.Shards(); s != nil {
		numel := map[string]int{}
		for _, p := range a.params {
			if at, ok := s.Placement(p.Name); ok {
				numel[p.Name] = at.BoxNumel()
			}
		}
		opt.DescribeParts(numel)
	}
	if opt.Averages() {
		for _, of := range []struct {
			set       bool
			key, want string
		}{{a.pipeline != nil, fmt.Sprintf("pp_size %d", a.PipelineRanks().WorldSize()), "pp_size 1"},
			{divided && a.cut(), fmt.Sprintf("tp_size %d", a.TensorRanks().WorldSize()), "tp_size 1"},
			{a.plan.local.Every > 0, fmt.Sprintf("local_sgd_steps %d", a.plan.local.Every), "0"}} {
			if of.set {
				return fmt.Errorf("accelerate: optimizer %s, or ema_decay, averages weights, of which each rank "+
					"needs all, with %s: want %s", opt.Name(), of.key, of.want)
			}
		}
	}
	mine := map[*tensor.Tensor]bool{}
	for _, p := range slices.Concat(a.Trained(), a.frozen) {
		mine[p.Tensor] = true
	}
	for _, p := range opt.Params() {
		if !mine[p.Tensor] {
			return fmt.Errorf("accelerate: the optimizer has parameter %s, which this rank does not train: want one "+
				"over the parameters that Prepare passes to its OptimizerFunc", p.Name)
		}
	}
	return nil
}

// cut reports whether this rank owns parts of parameters.
func (a *Accelerator) cut() bool {
	s := a.strategy.Shards()
	return s != nil && slices.ContainsFunc(a.params, func(p tensor.Named) bool { return s.Cut(p.Name) })
}

// summed are the tensors that have the window's gradients when they are complete: the whole parameters, also of those
// that other ranks own, unless parameters are cut.
func (a *Accelerator) summed() []tensor.Named {
	if a.cut() {
		return a.Trained()
	}
	return a.params
}

// Shards are this rank's part of the prepared model; nil where each rank updates all of it. They serve those who save
// and load it.
func (a *Accelerator) Shards() strategy.Shards { return a.strategy.Shards() }

// ShardMemory is the memory of this rank's part of the prepared model; the zero value if each rank has all of it.
func (a *Accelerator) ShardMemory() strategy.Memory {
	p := a.strategy.Parameters()
	if p == nil {
		return strategy.Memory{}
	}
	m := p.Memory()
	if s, ok := a.strategy.(*tp.Strategy); ok && s.Strategy.Parameters() == nil {
		m.Allocated += a.DataRanks().Allocated() // gradients of replicas lie there
	}
	return m
}

// GathersParameters reports whether all ranks must compute at the same time, since they gather the parameters of a
// sharded model: a rank without its own batch then repeats another.
func (a *Accelerator) GathersParameters() bool {
	p := a.strategy.Parameters()
	return p != nil && p.Gathers()
}

// Alone calls f, which other ranks do not call, as callbacks of rank 0. If it uses parameters of a sharded model, f
// ends with an error: only all ranks together can gather them.
func (a *Accelerator) Alone(f func() error) error {
	if p := a.strategy.Parameters(); p != nil {
		return p.Alone(f)
	}
	return f()
}

// Summon calls f, which may read whole parameters of a sharded model outside of forward passes. They are gathered as f
// uses them. With write the changes of f are kept. On every rank f uses the same parameters in the same order. Without
// shards it only calls f.
func (a *Accelerator) Summon(write bool, f func() error) error {
	if p := a.strategy.Parameters(); p != nil {
		return p.Summon(write, f)
	}
	return f()
}

// SummonParts is Summon for code that computes with the model, as text generation does: of matrices that ranks divide
// (tp_size) it has this rank's parts, in the contexts of EvalCtx.
func (a *Accelerator) SummonParts(f func() error) error {
	if s, ok := a.strategy.(*tp.Strategy); ok {
		return s.SummonParts(f)
	}
	return a.Summon(false, f)
}

// AverageParameters makes the parameters of ranks that step on their own (local_sgd_steps) the means over the ranks, as
// happens every local_sgd_steps steps. Call it where the ranks must have the same model: before an evaluation and
// at the end. It is collective. Without local SGD it does nothing.
func (a *Accelerator) AverageParameters(ctx context.Context) error {
	if s := a.strategy.Averages(); s != nil {
		return s.Average(ctx)
	}
	return nil
}

// EvalWeights puts the weights in place that evaluation and checkpoints take (optim.Optimizer.Eval), on all ranks of a
// sharded model too. It is collective. Where the optimizer averages nothing it does nothing.
func (a *Accelerator) EvalWeights(ctx context.Context) error {
	return a.exchangeWeights(ctx, true, (*optim.Optimizer).Eval)
}

// TrainWeights undoes EvalWeights. It is collective.
func (a *Accelerator) TrainWeights(ctx context.Context) error {
	return a.exchangeWeights(ctx, false, (*optim.Optimizer).Train)
}

func (a *Accelerator) exchangeWeights(ctx context.Context, eval bool, put func(*optim.Optimizer, *tensor.Ctx)) error {
	if a.opt == nil || !a.opt.Averages() || a.opt.Evaluating() == eval {
		return nil
	}
	put(a.opt, a.ctx)
	if s := a.strategy.Shards(); s != nil { // each rank has put its part there
		return s.Publish(ctx)
	}
	return nil
}

// AverageState is AverageParameters that averages the optimizer's state too, so that what rank 0 saves is all that
// there is: a run that continues from it has the bits of the one that saved it. Of steps that ranks counted differently
// the most counts.
func (a *Accelerator) AverageState(ctx context.Context) error {
	if s := a.strategy.Averages(); s != nil {
		return s.AverageState(ctx, a.opt)
	}
	return nil
}

// SetSteps says how many steps a prepared job has done already, as a resumed one has: start_local_sgd_iter and
// local_sgd_steps count from the first. It is collective.
func (a *Accelerator) SetSteps(ctx context.Context, steps int64) error {
	if s := a.strategy.Averages(); s != nil {
		return s.SetSteps(ctx, steps)
	}
	return nil
}
