// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// openResume opens the checkpoint to resume from, nil for a new run, and reconciles the
// arguments with those of the checkpoint.
func (r *run) openResume(ctx context.Context) (*checkpoint.Checkpoint, error) {
	var ck *checkpoint.Checkpoint
	var err error
	if r.acc.IsMain() {
		if ck, err = r.findResume(ctx); err != nil {
			return nil, err
		}
	}
	if ck, err = r.shareResume(ctx, ck); ck == nil || err != nil {
		return nil, err
	}
	if !ck.Has(progressFile) {
		return nil, fmt.Errorf("trainer: %s holds only a model (save_only_model): a run cannot resume from it", ck.Path)
	}
	if err := r.settleArgs(ck); err != nil {
		return nil, fmt.Errorf("trainer: resume from %s: %w", ck.Path, err)
	}
	return ck, nil
}

// findResume opens the checkpoint to resume from, nil for a new run.
func (r *run) findResume(ctx context.Context) (*checkpoint.Checkpoint, error) {
	path, last := r.args.ResumePath()
	ck, err := r.ownCheckpoint(ctx)
	switch {
	case err != nil:
		return nil, err
	case ck != nil: // a restart continues where it was
	case path == "" && !last:
		return nil, nil
	case last:
		ck, err = r.store.Latest(ctx)
	default:
		ck, err = r.storeAt(filepath.Dir(path)).Open(ctx, filepath.Base(path))
	}
	if err != nil {
		return nil, fmt.Errorf("trainer: resume_from_checkpoint = %s: %w", r.args.ResumeFromCheckpoint, err)
	}
	return ck, nil
}

// shareResume opens the checkpoint that rank 0 found on the other ranks. If each rank
// searched by itself, it could find a different one: a launcher on another host has its
// own number, and a shared folder may show new files a little later.
func (r *run) shareResume(ctx context.Context, found *checkpoint.Checkpoint) (*checkpoint.Checkpoint, error) {
	var mine []byte
	if found != nil {
		mine = []byte(found.Path)
	}
	all, err := r.acc.GatherBytes(r.ctx, mine)
	if err != nil {
		return nil, err
	}
	path := string(all[0])
	if r.acc.IsMain() || path == "" {
		return found, nil
	}
	ck, err := r.storeAt(filepath.Dir(path)).Open(ctx, filepath.Base(path))
	if err != nil {
		return nil,
			fmt.Errorf("trainer: rank %d cannot open the checkpoint that rank 0 resumes from: want the same output "+
				"folder on all hosts: %w", r.acc.Rank(), err)
	}
	return ck, nil
}

// ownCheckpoint is the newest checkpoint that this very job wrote before its launcher
// restarted it; nil if it has not been restarted, or had written none.
func (r *run) ownCheckpoint(ctx context.Context) (*checkpoint.Checkpoint, error) {
	job, restarted := r.acc.Job()
	if !restarted || job == "" {
		return nil, nil
	}
	ck, err := r.store.Latest(ctx)
	if errors.Is(err, checkpoint.ErrNone) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("trainer: restart of job %s: %w", job, err)
	}
	var saved progress
	if !ck.Has(progressFile) {
		return nil, nil
	}
	if err := ck.ReadJSON(progressFile, &saved); err != nil {
		return nil, err
	}
	if saved.Job != job {
		return nil, nil
	}
	return ck, nil
}

// layoutKeys decide how the training stream is cut and gradients are added. A resumed run
// keeps them on any number of ranks; otherwise its bits and its samples would differ.
var layoutKeys = []string{"per_device_train_batch_size", "gradient_accumulation_steps", "global_train_batch_size",
	"deterministic_ranks", "data_sharding", "accelerator_config"}

// recordKeys are the arguments by which a run logs, evaluates and saves: they change no weights, but which checkpoint
// is the best and which steps are on record.
var recordKeys = []string{"logging_strategy", "logging_steps", "eval_strategy", "eval_steps", "save_strategy",
	"save_steps"}

// settleArgs compares the arguments with those of the checkpoint. Arguments that cut the
// training stream are taken from the checkpoint; every other difference that changes
// numbers is allowed and logged.
func (r *run) settleArgs(ck *checkpoint.Checkpoint) error {
	text, err := ck.ReadPart(argsFile)
	if err != nil {
		return err
	}
	old, err := args.FromJSON(text)
	if err != nil {
		return fmt.Errorf("%s: %w", argsFile, err)
	}
	a := r.args.Clone()
	for _, d := range old.Diff(a) {
		switch {
		case slices.Contains(layoutKeys, d.Key):
			r.log.Warn("resume keeps the checkpoint's value", "key", d.Key, "checkpoint", d.Old, "ignored", d.New)
		case d.Key == "num_train_epochs" && old.MaxSteps > 0 && a.MaxSteps == old.MaxSteps:
			// max_steps decides
		case slices.Contains(recordKeys, d.Key):
			r.log.Warn("resuming with a changed setting: the run logs, evaluates or saves at other steps than before",
				"key", d.Key, "checkpoint", d.Old, "now", d.New)
		case d.Fixed:
			r.log.Warn("resuming with a changed setting: the result will differ from that of an uninterrupted run",
				"key", d.Key, "checkpoint", d.Old, "now", d.New)
		}
	}
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = old.PerDeviceTrainBatchSize, old.GradientAccumulationSteps
	a.GlobalTrainBatchSize, a.DeterministicRanks = old.GlobalTrainBatchSize, old.DeterministicRanks
	a.DataSharding, a.AcceleratorConfig = old.DataSharding, old.AcceleratorConfig
	if err := r.keepLeaves(ck, a); err != nil {
		return err
	}
	if err := a.Validate(); err != nil {
		return fmt.Errorf("%s: %w", argsFile, err)
	}
	*r.args = *a
	return nil
}

// keepLeaves keeps the number of micro-batches of an optimizer step on a different number
// of ranks: each rank then accumulates more or fewer of them.
func (r *run) keepLeaves(ck *checkpoint.Checkpoint, a *args.TrainingArguments) error {
	var saved progress
	if err := ck.ReadJSON(progressFile, &saved); err != nil {
		return err
	}
	if err := saved.check(); err != nil {
		return err
	}
	if s, ok := a.BatchSharding(); ok && s.Split {
		return nil // the ranks share each micro-batch, however many they are
	}
	world := r.acc.Data().Size()
	perRank, err := a.AccumulationSteps(world)
	if err == nil && (saved.Leaves == 0 || int64(perRank*world) == saved.Leaves) {
		return nil
	}
	a.GlobalTrainBatchSize, a.GradientAccumulationSteps = a.PerDeviceTrainBatchSize*int(saved.Leaves), 1
	perRank, err = a.AccumulationSteps(world)
	if err != nil {
		return fmt.Errorf("a step of the run has %d micro-batches, which %d ranks cannot share evenly: %w",
			saved.Leaves, world, err)
	}
	r.log.Warn("resuming on a different number of ranks keeps the micro-batches of a step", "micro_batches",
		saved.Leaves, "ranks", world, "accumulation", perRank)
	return nil
}

// The largest numbers of a progress.json, far above those of any run and far below where sums overflow.
const (
	maxLeaves = 1 << 20
	maxEpoch  = 1 << 30
	maxCount  = 1 << 53
)

// check refuses numbers that no run writes, before memory is taken for them.
func (p *progress) check() error {
	for _, n := range []struct {
		name string
		v    int64
		most int64
	}{
		{"leaves", p.Leaves, maxLeaves}, {"epoch", p.Epoch, maxEpoch},
		{"samples", p.Samples, maxCount}, {"tokens", p.Tokens, maxCount},
		{"nonfinite_steps", p.Nonfinite, maxCount}, {"empty_steps.steps", p.Empty.Steps, maxCount},
		{"empty_steps.in_a_row", p.Empty.Row, maxCount}, {"loss.steps", p.Loss.Steps, maxCount},
		{"unlogged.steps", p.Unlogged.Steps, maxCount},
	} {
		if n.v < 0 || n.v > n.most {
			return fmt.Errorf("%s: %s = %d: want 0 to %d", progressFile, n.name, n.v, n.most)
		}
	}
	for name, sum := range map[string]lossSum{"loss": p.Loss, "unlogged": p.Unlogged} {
		if sum.Count < 0 || sum.Count > maxCount {
			return fmt.Errorf("%s: %s.count = %g: want 0 to %d", progressFile, name, sum.Count, maxCount)
		}
	}
	for name, seconds := range map[string]float64{"train_seconds": p.Seconds, "time.limit": p.Time.Limit,
		"time.until": p.Time.Until, "time.warm": p.Time.Warm} {
		if seconds < 0 {
			return fmt.Errorf("%s: %s = %g: want at least 0", progressFile, name, seconds)
		}
	}
	return nil
}

// restore restores a checkpoint: position in the stream, weights, optimizer, counters and
// callbacks. It refuses what it can before it changes anything.
func (r *run) restore(ck *checkpoint.Checkpoint) error {
	saved, err := r.restorePlace(ck)
	if err != nil {
		return err
	}
	if err := r.checkData(ck); err != nil {
		return err
	}
	r.compareEnvironment(ck)
	var opt optimizerState
	if err := ck.ReadJSON(optimizerFile, &opt); err != nil {
		return err
	}
	if opt.Name != r.opt.Name() {
		return fmt.Errorf("it was saved by optimizer %q, this run has %q", opt.Name, r.opt.Name())
	}
	if err := r.compareRates(ck); err != nil {
		return err
	}
	if err := r.readModel(ck); err != nil {
		return err
	}
	if err := r.restoreOptimizer(ck, opt); err != nil {
		return err
	}
	if err := r.restoreHook(ck); err != nil {
		return err
	}
	if err := r.callbacks.ImportStates(saved.StatefulCallbacks, &r.control); err != nil {
		return err
	}
	r.adopt(saved, ck)
	if r.args.IgnoreDataSkip {
		if err := r.rewindEpoch(); err != nil {
			return err
		}
	}
	r.log.Info("resumed", "checkpoint", ck.Path, "step", r.state.GlobalStep, "epoch", r.state.Epoch, "position",
		r.windows.Position())
	return nil
}

// compareEnvironment says where a run goes on with other devices, or with other versions of their libraries.
func (r *run) compareEnvironment(ck *checkpoint.Checkpoint) {
	if was, now := r.progress.Environment, accelerate.EnvironmentOf(r.acc); r.acc.IsMain() && !now.Same(was) {
		r.log.Warn("resuming on other devices or versions: bits may differ from those of an uninterrupted run",
			"checkpoint", ck.Path, "saved", was, "now", now)
	}
}

// compareRates warns if the groups of the program's own optimizer have other base learning rates than
// those that the checkpoint was saved under. The program's count. A change of learning_rate
// has been told with the arguments.
func (r *run) compareRates(ck *checkpoint.Checkpoint) error {
	if r.newOptim == nil {
		return nil
	}
	var saved schedulerState
	if err := ck.ReadJSON(schedulerFile, &saved); err != nil {
		return err
	}
	if now := r.opt.BaseLRs(); saved.BaseLRs != nil && !slices.Equal(saved.BaseLRs, now) {
		r.log.Warn("resuming with changed learning rates of the optimizer's groups: the result will differ from that "+
			"of an uninterrupted run", "checkpoint", saved.BaseLRs, "now", now)
	}
	return nil
}

// restorePlace reads counters and position, and seeks to the position.
func (r *run) restorePlace(ck *checkpoint.Checkpoint) (*callbacks.State, error) {
	var rng rngState
	for name, v := range map[string]any{rngFile: &rng, progressFile: &r.progress} {
		if err := ck.ReadJSON(name, v); err != nil {
			return nil, err
		}
	}
	if s := r.acc.Scaler(); s != nil {
		var saved accelerate.Scaler
		if err := ck.ReadJSON(scalerFile, &saved); err != nil {
			return nil, err
		}
		if err := s.Restore(saved); err != nil {
			return nil, fmt.Errorf("%s: %w", scalerFile, err)
		}
	}
	if rng.Generator != generator {
		return nil, fmt.Errorf("%s: the random number generator is %q: want %q", rngFile, rng.Generator, generator)
	}
	if err := r.windows.restore(func(place any) error { return ck.ReadJSON(samplerFile, place) }); err != nil {
		return nil, fmt.Errorf("the training set or its order has changed: %w", err)
	}
	text, err := ck.ReadPart(stateFile)
	if err != nil {
		return nil, err
	}
	state, err := callbacks.StateFromJSON(text)
	if err == nil && state.GlobalStep != ck.Step {
		err = fmt.Errorf("%s: global_step = %d, but the checkpoint is of step %d", stateFile, state.GlobalStep, ck.Step)
	}
	return state, err
}

// adopt makes the saved state the run's, except for what depends on the arguments.
func (r *run) adopt(saved *callbacks.State, ck *checkpoint.Checkpoint) {
	planned := r.state
	saved.MaxSteps, saved.NumTrainEpochs = planned.MaxSteps, planned.NumTrainEpochs
	saved.LoggingSteps, saved.EvalSteps, saved.SaveSteps = planned.LoggingSteps, planned.EvalSteps, planned.SaveSteps
	saved.TrainBatchSize = planned.TrainBatchSize
	if best, dir := saved.BestModelCheckpoint,
		filepath.Dir(ck.Path); best != nil && !sameFolder(dir, r.args.OutputDir) {
		path := filepath.Join(dir, filepath.Base(*best)) // beside the checkpoint, not in output_dir
		saved.BestModelCheckpoint = &path
	}
	r.Trainer.state = saved
	r.saved[saved.GlobalStep] = sameFolder(filepath.Dir(ck.Path), r.args.OutputDir)
	c := r.control
	r.owed = owed{evaluate: c.ShouldEvaluate, save: c.ShouldEvaluate && c.ShouldSave}
	r.owed.epochEnd = !r.progress.EpochEnded && saved.GlobalStep > 0 &&
		(c.ShouldEpochStop || !r.epochHasSteps() || saved.GlobalStep >= saved.MaxSteps)
	r.control = callbacks.Control{}
}

func sameFolder(a, b string) bool {
	absA, errA := filepath.Abs(a)
	absB, errB := filepath.Abs(b)
	return errA == nil && errB == nil && absA == absB
}

// restoreOptimizer reads the optimizer's state into the tensors that it has.
func (r *run) restoreOptimizer(ck *checkpoint.Checkpoint, head optimizerState) (err error) {
	set, err := ck.OpenTensors(optimizerTensors)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	c := r.acc.Ctx().NoGrad()
	saved := map[string]optim.Saved{}
	for _, name := range set.Names() {
		e, _ := set.Lookup(name)
		at, shape, mine := r.stateOf(e.Placement())
		if !mine {
			continue
		}
		saved[name] = optim.Saved{DType: e.DType, Shape: shape,
			Read: func(into *tensor.Tensor) (tensor.Census, error) {
				section, err := e.Section(at)
				if err != nil {
					return tensor.Census{}, err
				}
				return tensor.WriteFrom(c, into, e.DType, section)
			}}
	}
	steps := head.Steps
	if r.acc.Shards() != nil {
		steps = maps.Clone(steps)
		maps.DeleteFunc(steps, func(name string, _ int64) bool {
			at, ok := r.acc.Shards().Placement(name)
			return ok && at.BoxNumel() > 0 && at.Numel() == 0
		})
	}
	if p := tensor.Try(func() { err = r.opt.ReadState(head.Name, steps, saved) }); p != nil {
		return p
	}
	c.Sync()
	return err
}

// stateOf is what this rank has of a saved tensor of the optimizer's, and the shape of that; mine is false if it has
// nothing. All that is not cut is every rank's.
func (r *run) stateOf(saved tensor.Placement) (at tensor.Placement, shape []int, mine bool) {
	shards := r.acc.Shards()
	if shards == nil {
		return saved, saved.Shape, true
	}
	at, ok := shards.Placement(saved.Name[:max(0, strings.LastIndexByte(saved.Name, '.'))])
	if !ok || tensor.WholePlacement(saved.Name, at.Shape...).Numel() != saved.Numel() {
		return saved, saved.Shape, true // the optimizer finds what is wrong with it
	}
	return at.Of(saved.Name, saved.Shape...), []int{at.Numel()}, at.Numel() > 0
}

// loadWeights fills m from a checkpoint.
func loadWeights(ck *checkpoint.Checkpoint, m models.Model) error {
	set, err := ck.OpenTensors(models.WeightsBase)
	if err != nil {
		return err
	}
	defer set.Close()
	return models.ReadWeights(set, m)
}

// loadBest loads the best checkpoint's weights if asked to.
func (r *run) loadBest() error {
	if !r.args.LoadBestModelAtEnd {
		return nil
	}
	best := r.state.BestModelCheckpoint
	if best == nil {
		r.log.Warn("load_best_model_at_end: no checkpoint was saved at the best evaluation: the last weights are kept")
		return nil
	}
	store := r.store
	if filepath.Base(*best) != *best {
		store = r.storeAt(filepath.Dir(*best))
	}
	ck, err := store.Open(context.Background(), filepath.Base(*best))
	if err != nil {
		return fmt.Errorf("trainer: load_best_model_at_end: %w", err)
	}
	if err := r.readModel(ck); err != nil {
		return fmt.Errorf("trainer: load_best_model_at_end: %s: %w", ck.Path, err)
	}
	r.log.Info("loaded the best model", "checkpoint", ck.Path, "metric", r.args.BestMetric(), "value",
		*r.state.BestMetric)
	return nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
