// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Trainer trains, evaluates and saves one model. It belongs to one goroutine.
type Trainer struct {
	args  *args.TrainingArguments
	model models.Model
	acc   *accelerate.Accelerator
	store *checkpoint.Store
	log   *slog.Logger
	given bool // log is the program's own

	train      data.Source         // nil where stream is set
	stream     data.IterableSource // the training set without a length
	evals      []evalSet
	loss       LossFunc
	metrics    []Metric
	compute    ComputeMetricsFunc
	logits     LogitsFunc
	generator  GenerateFunc
	sampler    samplers.Sampler
	parts      []checkpoint.Part
	adapter    models.Adapter // what is trained and saved of the model; nil: all of it
	user       []callbacks.Callback
	first      []callbacks.Callback // the trainer's own, before the user's
	last       []callbacks.Callback // the display, after them
	display    io.Writer            // nil: none
	options    []accelerate.Option  // what the model's parts compute in, and how it is spread
	ranks      []accelerate.Option  // where they compute, and how they are arranged
	sharing    int                  // ranks of this process on this rank's device
	newOptim   OptimizerFunc
	newSched   ScheduleFunc
	stepFunc   StepFunc
	dataloader DataloaderFunc
	logFunc    LogFunc
	figures    []string        // that outputs have beside the loss
	busy       bool            // the ranks are at work: see every
	running    *run            // from train_begin to train_end
	trained    bool            // output_dir is this trainer's
	failed     *FailedRunError // why the last run failed; nil: it did not

	newModel    func() (models.Model, error)
	staysSpread bool       // see WithSpreadModel
	replicas    []*Trainer // the other ranks of this process; empty on them
	callbacks   *callbacks.Handler
	state       *callbacks.State
	control     callbacks.Control
	fsys        vfs.FS // of checkpoints; nil is the operating system's
	now         func() time.Time
	err         error // of construction; Train returns it
}

// LossFunc computes a loss instead of the model's own: the SUM of the batch's loss terms,
// and their number. Where terms have weights it is the sum of these, if the mean is to be the weighted one. A mean over
// the batch has count 1. Before its first step a run compares the loss of some samples with those of their halves, in
// evaluation mode: a mean that counts several terms is an error. Under bf16 and fp16 logits may have the lower dtype: a
// loss of package nn takes them as they are.
type LossFunc func(c *nn.Ctx, out models.Output, b *data.Batch) (sum *tensor.Tensor, count float64)

// LogitsFunc replaces the logits of a batch before metrics and Predict get them: HuggingFace's
// preprocess_logits_for_metrics. Logits that the model computes in bfloat16 or float16 come as float32. Predict needs
// one row for each sample.
type LogitsFunc func(c *nn.Ctx, logits *tensor.Tensor, b *data.Batch) *tensor.Tensor

// OptimizerFunc makes an optimizer instead of the one that the arguments name. groups are the parameters that decay and
// those that do not, at learning_rate, and those to which param_groups and layerwise_lr_decay give other rates. It may
// make other groups: each keeps the learning rate that it has here, and the schedule multiplies it.
type OptimizerFunc func(c *tensor.Ctx, groups []*optim.Group) *optim.Optimizer

// ScheduleFunc makes a schedule instead of the one that the arguments name. warmup is the number of warm-up steps
// (warmup_steps), and total that of the run.
type ScheduleFunc func(warmup, total int64) optim.Schedule

// Option passes Go values to the trainer: data, callbacks, functions. Plain settings,
// which are printed, saved and restored, are fields of args.TrainingArguments instead.
type Option func(*Trainer)

// WithTrainData sets the training set.
func WithTrainData(src data.Source) Option { return func(t *Trainer) { t.train = src } }

// WithEvalData sets the evaluation set; its metrics are eval_loss and so on.
func WithEvalData(src data.Source) Option { return WithNamedEvalData("", src) }

// WithNamedEvalData adds one of several evaluation sets; its metrics are
// eval_<name>_loss and so on.
func WithNamedEvalData(name string, src data.Source) Option {
	return func(t *Trainer) { t.evals = append(t.evals, evalSet{name: name, src: src}) }
}

// evalSet is an evaluation set with the name that its metrics carry.
type evalSet struct {
	name   string
	src    data.Source         // nil where stream is set
	stream data.IterableSource // a set without a length
	key    string              // of EvaluateOn: what its metrics begin with
}

// prefix is what the set's metrics begin with.
func (s evalSet) prefix() string {
	switch {
	case s.key != "":
		return strings.TrimSuffix(s.key, "_") + "_"
	case s.name != "":
		return "eval_" + s.name + "_"
	}
	return "eval_"
}

// empty is the error of a set without samples.
func (s evalSet) empty() error {
	name := strings.TrimSuffix(s.prefix(), "_")
	return fmt.Errorf("trainer: evaluation set %q is empty: want at least one sample", cmp.Or(s.name, s.key, name))
}

// WithLoss replaces the model's loss.
func WithLoss(f LossFunc) Option { return func(t *Trainer) { t.loss = f } }

// WithComputeMetrics computes metrics of every evaluation from the predictions of all its samples: HuggingFace's
// compute_metrics. WithMetrics is for metrics that see the batches one by one.
func WithComputeMetrics(f ComputeMetricsFunc) Option { return func(t *Trainer) { t.compute = f } }

// WithMetrics adds metrics to every evaluation.
func WithMetrics(m ...Metric) Option {
	return func(t *Trainer) { t.metrics = append(t.metrics, m...) }
}

// WithLogitsForMetrics replaces the model's logits for metrics and Predict, by their argmax for instance, so that
// predictions of a large vocabulary take less memory. The loss is not affected.
func WithLogitsForMetrics(f LogitsFunc) Option { return func(t *Trainer) { t.logits = f } }

// WithSampler sets the order of the training samples instead of train_sampling_strategy, for example to draw some
// samples more often than others. An epoch has as many samples as the sampler. All ranks, and a resumed run, must pass
// an equal one.
func WithSampler(s samplers.Sampler) Option { return func(t *Trainer) { t.sampler = s } }

// WithCallbacks adds callbacks; they run after the built-in ones.
func WithCallbacks(c ...callbacks.Callback) Option {
	return func(t *Trainer) { t.user = append(t.user, c...) }
}

// WithOptimizer replaces the optimizer that the arguments name.
func WithOptimizer(f OptimizerFunc) Option { return func(t *Trainer) { t.newOptim = f } }

// WithSchedule replaces the schedule that the arguments name. It is called when a run begins or resumes. Its factors
// must depend only on the step, so that a resumed run continues at the same rate. For a schedule that follows a metric
// set lr_scheduler_type.
func WithSchedule(f ScheduleFunc) Option { return func(t *Trainer) { t.newSched = f } }

// WithParts adds files, such as a tokenizer's, to every checkpoint and to the final
// model.
func WithParts(p ...checkpoint.Part) Option {
	return func(t *Trainer) {
		for _, part := range p {
			if write := part.Write; write != nil {
				part.Write = func(w io.Writer) (err error) {
					blaming("part "+part.Name+" of WithParts", func() { err = write(w) })
					return err
				}
			}
			t.parts = append(t.parts, part)
		}
	}
}

// WithSidecars adds the files of a saved model that training leaves unchanged (models.Pretrained) to every checkpoint
// and to the final model.
func WithSidecars(files ...models.Sidecar) Option {
	return func(t *Trainer) {
		for _, f := range files {
			t.parts = append(t.parts, checkpoint.BytesPart(f.Name, f.Data))
		}
	}
}

// WithAdapter makes checkpoints and the final model those of an adapter of the model (package models/lora), of a few
// megabytes, in place of the whole model. A model with an adapter needs it, and a resumed run the same model below.
func WithAdapter(a models.Adapter) Option { return func(t *Trainer) { t.adapter = a } }

// WithSpreadModel leaves a model that is spread over processes (fsdp, zero_stage, tp_size, pp_size) spread when
// training ends. With tp_size or pp_size no rank ever has memory for all of it; with fsdp full_shard a deferred model
// takes a rank's shard and some units. Evaluate, Predict and SaveModel then work on the parts: all ranks call them.
// Other code reads weights from what SaveModel has written; Train gathers the model before it starts over. Ranks that
// are goroutines of this trainer (num_replicas) get the whole model all the same, as do those of a model that is not
// spread.
func WithSpreadModel() Option { return func(t *Trainer) { t.staysSpread = true } }

// WithDisplay shows the run on w: short lines and a progress bar if it is a terminal, else
// lines of "key value" pairs. The default is os.Stderr; nil shows nothing, and the log has the
// facts of the run's beginning and of its early end instead. A program that writes to the
// same terminal meanwhile does so through callbacks.TerminalOf.
func WithDisplay(w io.Writer) Option {
	if f, ok := w.(*os.File); ok && f == nil {
		w = nil
	}
	return func(t *Trainer) { t.display = w }
}

// WithModelInit sets the function that creates the model of each additional rank in this
// process (num_replicas), for models that nn.Clone cannot copy. The parameters are then
// set to those of the first rank.
func WithModelInit(f func() (models.Model, error)) Option { return func(t *Trainer) { t.newModel = f } }

// WithLogger sets the logger; the default is slog.Default(). log_level leaves out messages below it. With the default
// logger it also shows those that the logger would leave out.
func WithLogger(l *slog.Logger) Option {
	return func(t *Trainer) { t.log, t.given = l, l != nil }
}

// WithDevice runs on dev instead of the device that the arguments name. New moves the model there.
func WithDevice(dev *tensor.Device) Option {
	return func(t *Trainer) { t.ranks = append(t.ranks, accelerate.WithDevice(dev)) }
}

// WithSharding shards the model over the ranks, in place of the arguments' sharding: for units of your choice.
func WithSharding(s accelerate.Sharding) Option {
	return func(t *Trainer) { t.options = append(t.options, accelerate.WithSharding(s)) }
}

// WithStrategy trains by a strategy of the program's own: see accelerate.WithStrategy.
func WithStrategy(f strategy.Factory) Option {
	if create := f.New; create != nil {
		f.New = func(j strategy.Job) (s strategy.Strategy, err error) {
			blaming(passedTo("WithStrategy"), func() { s, err = create(j) })
			return s, err
		}
	}
	return func(t *Trainer) { t.options = append(t.options, accelerate.WithStrategy(f)) }
}

// WithDevices assigns devices to the ranks of a host, by names for tensor.OpenDevice, round robin: see
// accelerate.WithDevices. New moves the model to this rank's.
func WithDevices(names ...string) Option {
	return func(t *Trainer) { t.ranks = append(t.ranks, accelerate.WithDevices(names...)) }
}

// WithMesh arranges the ranks along the axes of a mesh: see accelerate.WithMesh, which also says which are built.
func WithMesh(m comm.Mesh) Option {
	return func(t *Trainer) { t.ranks = append(t.ranks, accelerate.WithMesh(m)) }
}

// WithPrecision makes the module of a path, as "transformer.h.0.attn", and all within it compute in its own dtype, in
// training and evaluation: see accelerate.WithPrecision.
func WithPrecision(module string, dt tensor.DType) Option {
	return func(t *Trainer) { t.options = append(t.options, accelerate.WithPrecision(module, dt)) }
}

// New builds a trainer. It returns no error, so that calls can be chained:
// trainer.New(model, a).Train(). If the construction fails, Train, Evaluate and the other
// methods return its error; see Err.
func New(model models.Model, a *args.TrainingArguments, opts ...Option) *Trainer {
	t := &Trainer{args: a, model: model, display: os.Stderr, log: slog.Default(), now: time.Now}
	for i, o := range opts {
		if o == nil {
			t.err = fmt.Errorf("trainer: option %d of New is nil: want no nil option", i+1)
			return t
		}
		o(t)
	}
	t.err = protect(t.build)
	return t
}

func (t *Trainer) build() error {
	if t.model == nil || t.args == nil {
		return errors.New("trainer: New got no model or no arguments: want both")
	}
	if err := t.args.ReadConfigs(); err != nil {
		return err
	}
	if err := t.args.ValidateFor(ProgramFor(t.model)); err != nil {
		return err
	}
	if err := t.checkOptions(); err != nil {
		return err
	}
	if t.args.EvalStrategy != args.StrategyNo && len(t.evals) == 0 {
		return fmt.Errorf("trainer: eval_strategy is %s, but there is no evaluation set: want WithEvalData, or "+
			"eval_strategy no", t.args.EvalStrategy)
	}
	if t.args.EvalOnStart && len(t.evals) == 0 {
		return errors.New("trainer: eval_on_start is set, but there is no evaluation set: want WithEvalData")
	}
	if err := t.buildRanks(); err != nil {
		return err
	}
	if len(t.replicas) > 0 {
		return t.every(context.Background(), func(t *Trainer) error { return t.buildRank() })
	}
	if err := t.buildRank(); err != nil { // other processes must not wait for this one
		return t.every(context.Background(), func(*Trainer) error { return err })
	}
	return nil
}

// buildRank creates the parts of this rank.
func (t *Trainer) buildRank() error {
	t.store = &checkpoint.Store{Dir: t.args.OutputDir, FS: t.fsys, Log: t.log}
	t.state = t.newState(0)
	if err := t.buildCallbacks(); err != nil {
		return err
	}
	return t.callbacks.Fire(callbacks.InitEnd, t.event())
}

// newState is the state of this rank before the first step.
func (t *Trainer) newState(maxSteps int64) *callbacks.State {
	s := callbacks.NewState(t.args, maxSteps)
	s.IsLocalProcessZero, s.IsWorldProcessZero = t.acc.IsLocalMain(), t.acc.IsMain()
	return s
}

// checkOptions rejects nil and duplicate options.
func (t *Trainer) checkOptions() error {
	if t.log == nil {
		t.log = slog.Default()
	}
	if f, ok := t.display.(*os.File); ok { // what is logged may go to the same terminal
		t.log = slog.New(callbacks.TerminalOf(f).Handler(t.log.Handler()))
	}
	if err := t.checkAdapter(); err != nil {
		return err
	}
	if slices.Contains(t.metrics, nil) {
		return errors.New("trainer: WithMetrics got a nil metric")
	}
	if slices.Contains(t.user, nil) {
		return errors.New("trainer: WithCallbacks got a nil callback")
	}
	names := map[string]bool{}
	for _, set := range t.evals {
		if set.src == nil && set.stream == nil {
			return fmt.Errorf("trainer: evaluation set %q has no data: want a source", set.name)
		}
		if names[set.name] {
			return fmt.Errorf("trainer: two evaluation sets have the name %q: want WithNamedEvalData with "+
				"different names", set.name)
		}
		names[set.name] = true
	}
	return t.checkOverrides()
}

// checkAdapter refuses a model with an adapter that nothing saves, and the other way round.
func (t *Trainer) checkAdapter() error {
	adapted := map[string]bool{}
	for _, p := range nn.NamedParameters(t.model) {
		if path := p.Name[:max(0, strings.LastIndexByte(p.Name, '.'))]; p.RequiresGrad() {
			_, _, ok := nn.AdapterOf(path)
			adapted[p.Name] = ok
		}
	}
	if t.adapter != nil {
		for _, a := range t.adapter.Arrays() {
			for _, p := range a.Params {
				if _, ok := adapted[p]; !ok {
					return fmt.Errorf("trainer: WithAdapter: parameter %s is not trained: want an active adapter of "+
						"the model that is trained", p)
				}
				delete(adapted, p)
			}
		}
	}
	for name, ok := range adapted {
		switch {
		case t.adapter != nil:
			return fmt.Errorf("trainer: WithAdapter: %s is trained but is not part of the adapter, so it would not "+
				"be saved",
				name)
		case ok:
			return fmt.Errorf("trainer: %s belongs to an adapter: want WithAdapter, which saves it", name)
		}
	}
	return nil
}

// buildCallbacks puts the callbacks into order.
func (t *Trainer) buildCallbacks() error {
	reporters, err := callbacks.NewReporters(t.args)
	if err != nil {
		return err
	}
	own := []callbacks.Callback{&callbacks.Flow{}, &callbacks.Speed{}, &callbacks.Memory{}}
	t.first, t.last = slices.Concat(own, callbacks.NewDefaults(t.user), reporters), nil
	if t.display != nil {
		t.last = []callbacks.Callback{callbacks.Display(t.args, t.display)}
	}
	t.arrangeCallbacks()
	return nil
}

// event is an Event for the present state.
func (t *Trainer) event() *callbacks.Event {
	e := &callbacks.Event{Args: t.args, State: t.state, Control: &t.control, Model: t.model, Summon: t.acc.Summon,
		Alone: t.acc.Alone, Trace: t.acc.Trace(), Ranks: t.acc}
	if r := t.running; r != nil {
		e.Optimizer, e.Schedule, e.Windows = r.opt, r.schedule, r.windows
	}
	return e
}

// fire tells the callbacks about an event that carries nothing but the state.
func (t *Trainer) fire(k callbacks.Kind) error { return t.callbacks.Fire(k, t.event()) }

// Model is the model being trained.
func (t *Trainer) Model() models.Model { return t.model }

// State is the current state of the run. It belongs to the trainer and must not be
// changed.
func (t *Trainer) State() *callbacks.State { return t.state }

// IsMain reports whether this process has rank 0, the one that logs and saves.
func (t *Trainer) IsMain() bool { return t.err == nil && t.acc.IsMain() }

// Close releases what the trainer still holds after Train, Evaluate and Predict: its group with the ranks of other
// processes. Only ddp_backend mpi needs it, to end MPI; otherwise trainer.New(model, args).Train() is a whole program,
// on one rank as on many. Train itself closes its reporters and releases the output folder and the memory of the
// exchange. The garbage collector closes the group of an unused trainer. The process stays in its job until it ends,
// and further trainers train with the same ranks; all ranks make theirs in the same order.
func (t *Trainer) Close() error {
	if t.acc == nil {
		return nil
	}
	if err := t.idle("Close", closeInstead); err != nil {
		return err
	}
	return t.acc.Close()
}

// Err is the error of construction, if there was one.
func (t *Trainer) Err() error { return t.err }
