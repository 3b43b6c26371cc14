// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"fmt"
	"maps"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/accelerate/precision"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/trainer/checkpointer"
)

// The largest numbers of a progress.json, far above those of any run and far below where sums overflow.
const (
	maxEpoch = 1 << 30
	maxCount = 1 << 53
)

// check refuses numbers that no run writes, before memory is taken for them.
func (p *progress) check() error {
	for _, n := range []struct {
		name string
		v    int64
		most int64
	}{
		{"epoch", p.Epoch, maxEpoch},
		{"samples", p.Samples, maxCount}, {"tokens", p.Tokens, maxCount},
		{"nonfinite_steps", p.Nonfinite, maxCount}, {"empty_steps.steps", p.Empty.Steps, maxCount},
		{"empty_steps.in_a_row", p.Empty.Row, maxCount}, {"loss.steps", p.Loss.Steps, maxCount},
		{"unlogged.steps", p.Unlogged.Steps, maxCount}, {"loss.counted_steps", p.Loss.Counted, maxCount},
		{"unlogged.counted_steps", p.Unlogged.Counted, maxCount},
	} {
		if n.v < 0 || n.v > n.most {
			return fmt.Errorf("%s: %s = %d: want 0 to %d", checkpointer.ProgressFile, n.name, n.v, n.most)
		}
	}
	sums := maps.Clone(p.Figures)
	if sums == nil {
		sums = figureSums{}
	}
	sums["loss"], sums["unlogged"] = p.Loss, p.Unlogged
	for name, sum := range sums {
		if sum.Count < 0 || sum.Count > maxCount {
			return fmt.Errorf("%s: %s.count = %g: want 0 to %d", checkpointer.ProgressFile, name, sum.Count, maxCount)
		}
	}
	for name, seconds := range map[string]float64{"train_seconds": p.Seconds, "time.limit": p.Time.Limit,
		"time.until": p.Time.Until, "time.warm": p.Time.Warm} {
		if seconds < 0 {
			return fmt.Errorf("%s: %s = %g: want at least 0", checkpointer.ProgressFile, name, seconds)
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
	if err := r.restoreSchedule(ck); err != nil {
		return err
	}
	// as the state was saved; the first step takes the weights of training from it
	if err := r.acc.EvalWeights(r.ctx); err != nil {
		return err
	}
	if err := r.checkpointer().Restore(r.ctx, ck, r.opt); err != nil {
		return err
	}
	if err := r.callbacks.ImportStates(saved.StatefulCallbacks, &r.control); err != nil {
		return err
	}
	r.adopt(saved, ck)
	if r.args.IgnoreDataSkip && r.epochHasSteps() { // the epoch restarts, as in HuggingFace
		if err := r.windows.SeekEpoch(r.progress.Epoch); err != nil {
			return err
		}
	}
	r.log.Info("resumed", "checkpoint", ck.Path, "step", r.state.GlobalStep, "epoch", r.state.Epoch, "position",
		r.windows.Position())
	return nil
}

// compareEnvironment says where a run continues with other devices, or with other versions of their libraries.
func (r *run) compareEnvironment(ck *checkpoint.Checkpoint) {
	if was, now := r.progress.Environment, r.acc.Environment(); !now.Same(was) {
		r.jobLog().Warn("resuming on other devices or versions: bits may differ from those of an uninterrupted run",
			"checkpoint", ck.Path, "saved", was, "now", now)
	}
}

// restorePlace reads counters and position, and seeks to the position.
func (r *run) restorePlace(ck *checkpoint.Checkpoint) (*callbacks.State, error) {
	var rng rngState
	var place feed.Place
	var scale precision.Scaler
	files := map[string]any{rngFile: &rng, checkpointer.ProgressFile: &r.progress, samplerFile: &place}
	if r.acc.Scaler() != nil {
		files[scalerFile] = &scale
	}
	for name, v := range files {
		if err := ck.ReadJSON(name, v); err != nil {
			return nil, err
		}
	}
	if err := r.progress.check(); err != nil {
		return nil, err
	}
	if r.progress.Figures == nil {
		r.progress.Figures = figureSums{}
	}
	r.progress.Loss.complete()
	r.progress.Unlogged.complete()
	if s := r.acc.Scaler(); s != nil {
		if err := s.Restore(scale); err != nil {
			return nil, fmt.Errorf("%s: %w", scalerFile, err)
		}
	}
	if rng.Generator != generator {
		return nil, fmt.Errorf("%s: the random number generator is %q: want %q", rngFile, rng.Generator, generator)
	}
	if err := r.windows.Restore(place); err != nil {
		return nil, fmt.Errorf("the training set or its order has changed: %w", err)
	}
	if err := r.checkPlace(ck.Step); err != nil {
		return nil, fmt.Errorf("%s: %w", checkpointer.ProgressFile, err)
	}
	text, err := ck.ReadPart(checkpointer.StateFile)
	if err != nil {
		return nil, err
	}
	state, err := callbacks.StateFromJSON(text)
	if err == nil && state.GlobalStep != ck.Step {
		err = fmt.Errorf("global_step = %d, but the checkpoint is of step %d", state.GlobalStep, ck.Step)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", checkpointer.StateFile, err)
	}
	return state, nil
}

// checkPlace compares the progress with the place in the data and the step of its checkpoint. A program's own loader
// counts samples and epochs in its own way.
func (r *run) checkPlace(step int64) error {
	if r.dataloader != nil {
		return nil
	}
	p := &r.progress
	if e := r.windows.Epoch(); p.Epoch < e-1 || p.Epoch > e+1 { // the epoch has ended early, or is about to end
		return fmt.Errorf("epoch = %d, but the data are in epoch %d: want a difference of at most 1", p.Epoch, e)
	}
	l := r.windows.Layout()
	if most := step * l.MicroBatches() * int64(l.BatchSize); p.Samples > most {
		return fmt.Errorf("samples = %d: want at most %d, of %d steps with %d micro-batches of %d", p.Samples, most,
			step, l.MicroBatches(), l.BatchSize)
	}
	return nil
}

// adopt makes the saved state the run's, except for what depends on the arguments.
func (r *run) adopt(saved *callbacks.State, ck *checkpoint.Checkpoint) {
	planned := r.state
	saved.MaxSteps, saved.NumTrainEpochs = planned.MaxSteps, planned.NumTrainEpochs
	saved.LoggingSteps, saved.EvalSteps, saved.SaveSteps = planned.LoggingSteps, planned.EvalSteps, planned.SaveSteps
	saved.TrainBatchSize = planned.TrainBatchSize
	saved.IsLocalProcessZero, saved.IsWorldProcessZero = planned.IsLocalProcessZero, planned.IsWorldProcessZero
	dir := filepath.Dir(ck.Path)
	ours := checkpointer.SameFolder(dir, r.args.OutputDir)
	if best := saved.BestModelCheckpoint; best != nil && !ours { // it is beside the checkpoint, not in output_dir
		saved.BestModelCheckpoint = new(filepath.Join(dir, filepath.Base(*best)))
	}
	r.Trainer.state = saved
	r.saved[saved.GlobalStep] = ours
	c := r.control
	r.pending = pending{evaluate: c.ShouldEvaluate, save: c.ShouldEvaluate && c.ShouldSave}
	r.pending.epochEnd = !r.progress.EpochEnded && saved.GlobalStep > 0 &&
		(c.ShouldEpochStop || !r.epochHasSteps() || saved.GlobalStep >= saved.MaxSteps)
	r.control = callbacks.Control{}
}
