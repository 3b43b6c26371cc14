// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/accelerate/profile"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/jsonfloat"
	"github.com/lockstep-ml/lockstep/internal/quantity"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer/checkpointer"
)

// run is the state of one call of Train.
type run struct {
	*Trainer
	ctx      context.Context // of collective calls: an interrupt does not cancel them; their deadline is ddp_timeout
	opt      *optim.Optimizer
	schedule optim.Schedule
	byMetric optim.MetricSchedule // in place of schedule; nil: the rates follow the steps
	samples  int64                // of an epoch
	steps    samplers.Steps
	windows  *feed.Windows
	thaw     map[int64][]*nn.Parameter // frozen for so many steps
	prof     *profile.Profiler         // nil: no profile is wanted
	hashes   *hashRecorder             // nil: no hashes are wanted
	overflow *overflowWatch            // nil: debug does not ask for it
	unlisten func()                    // ends the profiler's spans
	memory   memory
	release  func() // gives output_dir up

	print         *string         // of the training data, once it was asked for
	lastNonfinite *NonfiniteError // the last step that was left out
	flopParams    int             // parameters that total_flos counts

	used map[string]float64 // memory and traffic, of the last record; nil until then
	sent int64              // bytes that this rank had sent when the run began

	timeUp      bool                 // max_train_seconds are used up, on any rank
	interrupted bool                 // the context of any rank has ended
	checkpoint  string               // the folder of the last one that this run wrote or began with
	stopReason  callbacks.StopReason // at the end: why steps are missing

	progress  progress
	pending   pending
	saved     map[int64]bool // the steps of the checkpoints that this run wrote into output_dir
	writing   *background    // the checkpoint that is being written; nil: none
	completed string         // the folder of the last that was written in the background
	savedAt   int64          // the step of the last checkpoint, or at which this process began
	logged    lossSum        // since the last train record
	started   time.Time
	resumed   callbacks.State // the counters that this process began with
	resumedP  progress
}

// pending is the work that was due when a checkpoint was written; a resume begins with it.
type pending struct{ evaluate, save, epochEnd bool }

// progress is what a resume needs in addition to HuggingFace's trainer state: the sums
// from which final figures are computed.
type progress struct {
	checkpointer.Origin
	Loss     lossSum `json:"loss"`     // over all steps that were not skipped
	Unlogged lossSum `json:"unlogged"` // since the last record of training steps
	// Figures are those of WithFigures since the last record.
	Figures   figureSums `json:"figures,omitempty"`
	LastStep  lastStep   `json:"last_step"`
	Nonfinite int64      `json:"nonfinite_steps"` // steps skipped because loss or norm was not finite
	Empty     empties    `json:"empty_steps"`
	Samples   int64      `json:"samples"`
	Tokens    int64      `json:"tokens"`
	Data      string     `json:"data"`          // of the training set, see data.Fingerprint
	Seconds   float64    `json:"train_seconds"` // in steps, without evaluations and saves; by rank 0's clock
	Time      clock      `json:"time"`
	// Environment is the one that wrote the checkpoint.
	Environment accelerate.Environment `json:"environment"`
	// Epoch is the current or next epoch, from 0. It differs from the stream's if a callback
	// ended the previous epoch early.
	Epoch      int64 `json:"epoch"`
	EpochEnded bool  `json:"epoch_ended"` // epoch_end was fired after the last step
}

// lastStep is the part of a record that shows only the last step.
type lastStep struct {
	GradNorm     jsonfloat.Float `json:"grad_norm"`
	LearningRate float64         `json:"learning_rate"`
	Skipped      bool            `json:"skipped"` // since it was not finite
	Empty        bool            `json:"empty"`
	LossScale    float64         `json:"loss_scale"` // of fp16; 0 without
}

// lossSum is a loss as sum and count, added in float64 in the order of micro-batches.
type lossSum struct {
	Sum   jsonfloat.Float `json:"sum"`
	Count float64         `json:"count"`
	Steps int64           `json:"steps"`
	// Means is the sum of the steps' means, and Counted the number of steps that have one.
	Means   jsonfloat.Float `json:"step_means"`
	Counted int64           `json:"counted_steps"`
}

func (l *lossSum) add(sum float64, count float64) {
	l.Sum += jsonfloat.Float(sum)
	l.Count += count
	l.Steps++
	if count > 0 {
		l.Means += jsonfloat.Float(sum / count)
		l.Counted++
	}
}

// mean is the loss per term or per step; NaN if there are no terms.
func (l lossSum) mean(over args.LossAverage) float64 {
	if over == args.LossAverageSteps {
		return float64(l.Means) / float64(l.Counted)
	}
	return float64(l.Sum) / l.Count
}

// complete adds what checkpoints did not have before loss_average: means of steps with as many terms as each other.
func (l *lossSum) complete() {
	if l.Counted == 0 && l.Count > 0 {
		l.Counted = l.Steps
		l.Means = jsonfloat.Float(float64(l.Sum) / l.Count * float64(l.Steps))
	}
}

// begin creates everything that a run needs and, if asked to, restores a checkpoint.
func (t *Trainer) begin(ctx context.Context) (*run, error) {
	a, state := t.args.Clone(), t.state
	r := &run{Trainer: t, ctx: context.WithoutCancel(ctx), saved: map[int64]bool{}, release: func() {},
		progress: progress{Origin: checkpointer.Origin{RunID: rand.Text()}, Figures: figureSums{}}}
	setUp := func() error { return protect(func() error { return r.setUp(ctx) }) }
	if err := t.acc.Starting(setUp); err != nil {
		*t.args, t.state = *a, state
		r.thawAfter(endOfRun)
		r.release()
		return nil, err
	}
	return r, nil
}

// setUp is begin's work.
func (r *run) setUp(ctx context.Context) error {
	t := r.Trainer
	if t.train == nil && t.stream == nil && t.dataloader == nil {
		return errors.New("trainer: there is no training set: want WithTrainData")
	}
	if err := t.checkBest(); err != nil {
		return err
	}
	ck, err := r.open(ctx)
	if err != nil {
		return err
	}
	if err := r.plan(); err != nil {
		return err
	}
	if _, ok := r.model.(models.Configured); ok { // as HuggingFace's, which counts for its own models alone
		r.flopParams = models.NonEmbeddingParameters(r.model)
	}
	r.watch()
	r.watchMemory()
	if err := r.prepare(); err != nil {
		return err
	}
	if err := cmp.Or(r.checkpointer().CheckLater(), r.checkpointer().CheckShared(r.ctx)); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	if err := r.sameData(); err != nil {
		return err
	}
	if err := r.start(ck); err != nil {
		return err
	}
	r.watchOverflow()
	return r.recordHashes()
}

// open opens the checkpoint to resume from, nil for a new run, and claims output_dir.
func (r *run) open(ctx context.Context) (*checkpoint.Checkpoint, error) {
	job, restarted := r.acc.Job()
	ck, err := r.checkpointer().Open(ctx, job, restarted)
	if err != nil {
		return nil, fmt.Errorf("trainer: %w", err)
	}
	r.acc.SetArguments(r.args) // a resume may have changed them
	if ck == nil {
		if err := r.whole(); err != nil {
			return nil, err
		}
	}
	release, err := r.checkpointer().Claim(ctx, ck != nil || r.trained && !r.args.OverwriteOutputDir)
	if err != nil {
		return nil, fmt.Errorf("trainer: %w", err)
	}
	r.release = release
	return ck, nil
}

// start begins with the counters of a checkpoint, or of a new run for nil.
func (r *run) start(ck *checkpoint.Checkpoint) error {
	t := r.Trainer
	t.state = t.newState(r.steps.MaxSteps)
	t.state.NumTrainEpochs = r.steps.Epochs
	t.control = callbacks.Control{}
	if ck != nil {
		if err := r.restore(ck); err != nil {
			return checkpointer.Refused(fmt.Errorf("trainer: resume from %s: %w", ck.Path, err))
		}
		r.checkpoint = ck.Path
		if err := r.acc.SetSteps(r.ctx, t.state.GlobalStep); err != nil {
			return err
		}
	}
	r.startClock()
	r.savedAt = t.state.GlobalStep
	t.trained = true
	r.windows.Limit(r.steps.MaxSteps - r.state.GlobalStep)
	r.resumed, r.resumedP, r.logged, r.started = *t.state, r.progress, r.progress.Unlogged, time.Now()
	r.sent = r.sentBytes()
	r.freeze()
	return nil
}

// plan cuts the training stream and counts steps.
func (r *run) plan() error {
	err := r.checkEvalSets()
	switch {
	case err != nil:
	case r.dataloader != nil:
		err = called("WithTrainDataloader", func() (err error) {
			r.windows, err = r.dataloader(r.ctx, r.acc)
			return err
		})
		if err == nil && r.windows == nil {
			err = errors.New("trainer: the function passed to WithTrainDataloader returned no windows")
		} else if err == nil {
			err = r.checkLayout()
		}
	case r.stream != nil:
		r.windows, err = r.acc.IterableWindows(r.ctx, r.stream, 0)
	default:
		err = r.planSized()
	}
	if err != nil {
		return err
	}
	batches, perStep, steps := r.windows.MicroBatches(), r.windows.Layout().MicroBatches(), int64(r.args.MaxSteps)
	if batches > 0 {
		r.steps, err = samplers.PlanSteps(batches, perStep, r.args.NumTrainEpochs, steps)
	} else {
		r.steps, err = samplers.PlanUnsized(perStep, steps)
	}
	return err
}

// checkLayout compares how a dataloader of the program's own cuts its windows with how the ranks sum them.
func (r *run) checkLayout() error {
	want, err := r.acc.Layout()
	if got := r.windows.Layout(); err == nil && got.MicroBatches() != want.MicroBatches() {
		err = fmt.Errorf("trainer: the windows of WithTrainDataloader have %d micro-batches over all ranks: want "+
			"%d, as acc.Layout has", got.MicroBatches(), want.MicroBatches())
	}
	return err
}

// checkEvalSets refuses an evaluation set without samples before the first step rather than at the first evaluation.
func (r *run) checkEvalSets() error {
	if r.args.EvalStrategy == args.StrategyNo && !r.args.EvalOnStart {
		return nil
	}
	for _, set := range r.evals {
		if set.src != nil && set.src.Len() == 0 {
			return checkpointer.Refuse("%w", set.empty())
		}
	}
	return nil
}

// planSized cuts a training set with a length.
func (r *run) planSized() error {
	n := int64(r.train.Len())
	if n == 0 {
		return checkpointer.Refuse("trainer: the training set has 0 samples: want at least one")
	}
	if r.sampler != nil {
		r.sampler = nameSampler(r.sampler)
		if n = r.sampler.Len(); n <= 0 {
			return fmt.Errorf("trainer: the sampler has %d samples an epoch: want at least 1", n)
		}
	}
	r.samples = n
	order, err := r.order(n)
	if err != nil {
		return err
	}
	r.windows, err = r.acc.Windows(r.ctx, r.checked(r.train), order, 0)
	if err == nil && r.windows.MicroBatches() == 0 {
		err = checkpointer.Refuse("trainer: nothing to train on: the data have %s, a batch has %d, and "+
			"dataloader_drop_last drops incomplete batches", quantity.Of(n, "sample"), r.args.PerDeviceTrainBatchSize)
	}
	return err
}

// ownSampler is the program's, whose panics name it.
type ownSampler struct{ samplers.Sampler }

const whoseSampler = "the sampler passed to WithSampler"

func (s ownSampler) Len() (n int64) {
	blaming(whoseSampler, func() { n = s.Sampler.Len() })
	return n
}

func (s ownSampler) At(epoch, i int64) (at int64) {
	blaming(whoseSampler, func() { at = s.Sampler.At(epoch, i) })
	return at
}

// seededSampler is an ownSampler with a seed.
type seededSampler struct {
	ownSampler
	samplers.Seeder
}

// nameSampler makes panics of the program's sampler name it.
func nameSampler(s samplers.Sampler) samplers.Sampler {
	switch s := s.(type) {
	case *samplers.DistributedSampler, ownSampler, seededSampler:
		return s
	case samplers.Seeder:
		return seededSampler{ownSampler{s.(samplers.Sampler)}, s}
	}
	return ownSampler{s}
}

// order returns the order of n training samples: the program's own, or the one that the arguments name. Lengths are
// grouped by whole optimizer steps over all ranks, so the order does not depend on the number of ranks.
func (r *run) order(n int64) (samplers.Sampler, error) {
	if r.sampler != nil {
		return r.sampler, nil
	}
	switch r.args.TrainSamplingStrategy {
	case args.SamplingRandom:
		if r.args.DataSharding == args.ShardingTorch {
			return samplers.NewDistributedSampler(n, samplers.DistributedSamplerOptions{
				NumReplicas: 1, Shuffle: true, Seed: r.args.SamplerSeed()})
		}
		return samplers.NewRandom(n, r.args.SamplerSeed()), nil
	case args.SamplingGroupByLength:
		layout, err := r.acc.Layout()
		if err != nil {
			return nil, err
		}
		lengths, err := data.Lengths(r.train, r.args.LengthColumnName)
		if err != nil {
			return nil, fmt.Errorf("trainer: train_sampling_strategy %s: %w", args.SamplingGroupByLength, err)
		}
		group := layout.BatchSize * int(layout.MicroBatches())
		generator := samplers.Seekable
		if r.args.DataSharding != args.ShardingLockstep { // groups the share of one rank
			group = layout.BatchSize * layout.AccumulationSteps
		}
		if r.args.DataSharding == args.ShardingTorch {
			generator = samplers.Torch
		}
		return samplers.NewLengthGroupedSampler(lengths, group, r.args.SamplerSeed(), generator)
	}
	return samplers.NewSequential(n), nil
}

// prepare spreads the model over the ranks and creates optimizer and schedule.
func (r *run) prepare() error {
	if err := r.spread(r.newOptimizer); err != nil {
		return err
	}
	return r.makeSchedule()
}

// spread spreads the model over the ranks.
func (r *run) spread(newOptimizer accelerate.OptimizerFunc) error {
	var units []nn.Module
	if m, ok := r.model.(models.Recomputable); ok {
		units = m.RecomputeUnits()
	}
	if err := r.acc.Prepare(r.ctx, r.model, newOptimizer, units...); err != nil {
		return err
	}
	r.acc.ZeroGrad() // a run that failed, or its caller, may have left gradients
	return nil
}

// newOptimizer creates the optimizer of this rank's parameters.
func (r *run) newOptimizer(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
	groups, err := r.groups(params)
	if err != nil {
		return nil, err
	}
	if r.opt, err = r.optimizer(c, groups); err != nil {
		return nil, err
	}
	r.opt.SetHalfUpdate(optim.HalfUpdate(r.args.HalfUpdate), r.args.Seed)
	if r.args.EMADecay > 0 {
		if r.opt.Averages() {
			return nil, fmt.Errorf("trainer: ema_decay is %g, but the optimizer %s averages weights by itself: want 0",
				r.args.EMADecay, r.opt.Name())
		}
		r.opt.SetAverage(r.args.EMADecay)
	}
	return r.opt, r.checkRates()
}

// optimizer creates the optimizer that the arguments name, or the user's.
func (r *run) optimizer(c *tensor.Ctx, groups []*optim.Group) (*optim.Optimizer, error) {
	a := r.args
	if r.newOptim != nil {
		var own *optim.Optimizer
		err := called("WithOptimizer", func() error {
			own = r.newOptim(c, groups)
			return nil
		})
		if err == nil && own == nil {
			err = errors.New("trainer: the function passed to WithOptimizer returned no optimizer")
		}
		return own, err
	}
	return namedOptimizer(a, r.steps.MaxSteps, c, groups)
}

// namedOptimizer creates the optimizer that the arguments name, for a run of maxSteps.
func namedOptimizer(a *args.TrainingArguments, maxSteps int64, c *tensor.Ctx,
	groups []*optim.Group) (*optim.Optimizer, error) {
	own, err := a.OptimSettings()
	if err != nil {
		return nil, err
	}
	shared := map[string]any{"adam_beta1": a.AdamBeta1, "adam_beta2": a.AdamBeta2, "adam_epsilon": a.AdamEpsilon,
		"warmup_steps": a.NumWarmupSteps(int(maxSteps))}
	cfg, err := optim.ByName(string(a.Optim), shared, own)
	if err != nil {
		return nil, fmt.Errorf("trainer: %w", err)
	}
	return cfg.New(c, groups), nil
}

// checkRates refuses groups of an own optimizer that were given no learning rate and would never learn.
func (r *run) checkRates() error {
	rates := r.opt.BaseLRs()
	if len(rates) == 0 {
		return errors.New("trainer: the optimizer has no parameter groups")
	}
	for i, lr := range rates {
		switch {
		case !finite(lr) || lr < 0:
			return fmt.Errorf("trainer: parameter group %d of the optimizer has learning rate %g: want a finite "+
				"number of at least 0", i, lr)
		case lr == 0 && r.args.LearningRate != 0 && len(r.opt.Groups()[i].Params) > 0:
			return fmt.Errorf("trainer: parameter group %d of the optimizer has learning rate 0: want its own rate "+
				"or learning_rate (%g), or no gradients for its parameters", i, r.args.LearningRate)
		}
	}
	return nil
}

// epochHasSteps tells whether the current epoch has steps left.
func (r *run) epochHasSteps() bool {
	return r.windows.Epoch() <= r.progress.Epoch
}

func (r *run) close() {
	if err := r.settle(true); err != nil { // of a run that a panic of the end has left
		r.log.Warn("a checkpoint could not be written", "err", err)
	}
	r.thawAfter(endOfRun)
	r.hashes.close()
	r.overflow.end()
	r.windows.Close()
	r.release()
}

// info says what is about to run.
func (r *run) info() *callbacks.RunInfo {
	total, _ := r.args.TotalTrainBatchSize(r.acc.DataRanks().WorldSize()) // plan has checked it
	info := &callbacks.RunInfo{
		Device: r.acc.Device().Name(), Kernels: r.acc.Kernels(), Threads: r.acc.Device().Workers(),
		Ranks:      r.acc.WorldSize(),
		Sharding:   r.acc.DescribeSharding(),
		Parameters: int64(nn.NumParameters(r.model)), Samples: r.samples, Steps: r.steps.MaxSteps,
		FromStep: r.state.GlobalStep, Resumed: r.checkpoint,
		BatchSize: r.args.PerDeviceTrainBatchSize, TotalBatch: total,
	}
	if info.Ranks > 1 {
		info.Mesh = r.acc.Mesh().Drawing()
	}
	if t := r.progress.Time; t.Until > 0 {
		info.Seconds = t.Limit - (t.Until - r.progress.Seconds)
	}
	var dtypes []string
	for _, p := range r.acc.Params() {
		info.Trainable += int64(p.Tensor.Numel())
		dtypes = append(dtypes, p.Tensor.DType().String())
	}
	slices.Sort(dtypes)
	parameters := strings.Join(slices.Compact(dtypes), "+")
	info.Precision = parameters
	switch {
	case r.args.BF16:
		info.Precision = "bf16 autocast of " + parameters
		info.DTypes = tensor.OpDTypes(tensor.BFloat16) + "; parameters " + parameters
	case r.args.FP16:
		info.Precision = "fp16 autocast of " + parameters
		info.DTypes = tensor.OpDTypes(tensor.Float16) + "; parameters " + parameters
	}
	return info
}

// announce logs what is about to run, for a run that is not displayed: a display says it in its first line.
func (r *run) announce(i *callbacks.RunInfo) {
	level := slog.LevelInfo
	if r.display != nil || !r.acc.IsMain() {
		level = slog.LevelDebug
	}
	if i.DTypes != "" {
		r.log.Log(r.ctx, level, "mixed precision", "dtypes", i.DTypes)
	}
	line := []any{"device", i.Device, "kernels", i.Kernels, "threads", i.Threads, "ranks", i.Ranks}
	if i.Mesh != "" {
		line = append(line, "mesh", i.Mesh)
	}
	r.log.Log(r.ctx, level, "training", append(line, "precision", i.Precision,
		"parameters", i.Parameters, "trainable", i.Trainable, "samples", i.Samples, "steps", i.Steps, "from_step",
		i.FromStep, "resumed", i.Resumed,
		"batch", i.BatchSize, "total_batch", i.TotalBatch)...)
}

func finite(xs ...float64) bool {
	return !slices.ContainsFunc(xs, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
}
