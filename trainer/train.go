// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/precision"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Result is the outcome of a training run.
type Result struct {
	GlobalStep   int64              // optimizer steps done, including those before a resume
	TrainingLoss float64            // mean over the loss terms of all steps whose loss was finite
	Metrics      map[string]float64 // train_loss, train_runtime, train_samples_per_second, train_sent_bytes, …

	// StopReason says why the run ended before its last planned step: max_train_seconds, a callback (EarlyStopping), an
	// interrupt, a loss that was not finite. It is the zero value of a run that has done all its steps, or that an
	// error ended.
	StopReason callbacks.StopReason
}

// ErrInterrupted, which is an accelerate.ErrInterrupted, is returned, wrapped with the context's cause, by a Train
// whose context ended. The current step was finished and, with save_on_interrupt, a checkpoint was
// written. A running evaluation was abandoned; a resume starts with it. The weights are the
// last ones, even with load_best_model_at_end.
var ErrInterrupted error = fmt.Errorf("trainer: %w", accelerate.ErrInterrupted)

// Train is TrainContext without a context.
func (t *Trainer) Train() (*Result, error) { return t.TrainContext(context.Background()) }

// TrainContext trains until max_steps, num_train_epochs or max_train_seconds is reached, a
// callback stops it, or ctx ends (see ErrInterrupted). With resume_from_checkpoint it
// continues from that checkpoint. The result is not nil if training started. If the data of a step cannot be read on
// some rank, all ranks save as after an interrupt and return an error that wraps an *accelerate.DataError.
func (t *Trainer) TrainContext(ctx context.Context) (*Result, error) {
	if t.err != nil {
		return nil, t.err
	}
	if err := t.idle("Train", trainInstead); err != nil {
		return nil, err
	}
	return onEvery(ctx, t, func(rank *Trainer) (*Result, error) { return rank.trainRank(ctx) })
}

// trainRank is TrainContext on one rank.
func (t *Trainer) trainRank(ctx context.Context) (*Result, error) {
	if err := t.connected(); err != nil {
		return nil, err
	}
	if t.acc.Shards() != nil { // WithSpreadModel
		if err := t.acc.Unshard(context.WithoutCancel(ctx)); err != nil {
			return nil, fmt.Errorf("trainer: %w", err)
		}
	}
	r, err := t.begin(ctx)
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w before the first step: %w", ErrInterrupted, context.Cause(ctx))
		}
		return nil, errors.Join(err, t.callbacks.Close())
	}
	defer r.close()
	t.running = r
	defer func() { t.running = nil }()
	if err = r.prof.Start(r.ctx, r.acc.Ctx()); err == nil {
		err = r.endProfile(protect(func() error { return r.loop(ctx) }))
	}
	err = errors.Join(err, r.settle(true))
	var end error
	if interrupted := errors.Is(err, ErrInterrupted); err == nil || interrupted {
		end = protect(func() error { return r.end(interrupted) })
	} else if agreed(err) {
		end = protect(r.leaveExchange)
	}
	if t.failed = nil; err != nil && !agreed(err) {
		t.failed = &FailedRunError{Step: r.state.GlobalStep + 1, Checkpoint: r.checkpoint, Err: err}
	}
	if err == nil && r.stopReason.Kind == callbacks.StopNonfinite {
		r.lastNonfinite.Checkpoint = r.checkpoint
		err = r.lastNonfinite
	}
	return r.result(), errors.Join(err, end, t.callbacks.Close())
}

// loop runs epochs and steps, and after each does what the callbacks ask for.
func (r *run) loop(ctx context.Context) error {
	e := r.event()
	e.Run = r.info()
	r.announce(e.Run)
	if err := r.callbacks.Fire(callbacks.TrainBegin, e); err != nil {
		return err
	}
	if err := r.catchUp(ctx); err != nil {
		return err
	}
	for r.progress.Epoch < r.steps.Epochs && !r.control.ShouldTrainingStop {
		if err := r.runEpoch(ctx); err != nil {
			return err
		}
	}
	return nil
}

// catchUp does what comes before the first step: eval_on_start, and work that was due
// when the checkpoint was written.
func (r *run) catchUp(ctx context.Context) error {
	c := &r.control
	r.timeUp = r.timeIsUp()
	c.ShouldTrainingStop = c.ShouldTrainingStop || r.state.GlobalStep >= r.steps.MaxSteps || r.timeUp
	c.ShouldEvaluate = r.pending.evaluate || r.args.EvalOnStart && r.state.GlobalStep == 0
	c.ShouldSave = r.pending.save
	if err := r.act(ctx); err != nil {
		return err
	}
	if r.pending.epochEnd {
		return r.endEpoch(ctx, r.epochHasSteps())
	}
	return nil
}

// runEpoch runs the steps of one epoch, or what is left of them.
func (r *run) runEpoch(ctx context.Context) error {
	if r.windows.Epoch() < r.progress.Epoch { // the one before was stopped early
		if err := r.windows.SeekEpoch(r.progress.Epoch); err != nil {
			return err
		}
	}
	if err := r.fire(callbacks.EpochBegin); err != nil {
		return err
	}
	more := true
	for more && !r.control.ShouldEpochStop && !r.control.ShouldTrainingStop {
		if r.interrupted {
			return r.interrupt(ctx)
		}
		var err error
		if more, err = r.step(); err != nil {
			return err
		}
		if err := r.settle(false); err != nil {
			return err
		}
		r.checkEnd()
		if err := r.act(ctx); err != nil {
			return err
		}
	}
	return r.endEpoch(ctx, more)
}

// endEpoch ends the current epoch; more says that it has steps left. An epoch that is cut
// short by the end of the run continues if the run is resumed.
func (r *run) endEpoch(ctx context.Context, more bool) error {
	if err := r.fire(callbacks.EpochEnd); err != nil {
		return err
	}
	r.progress.EpochEnded = true
	if !more || !r.control.ShouldTrainingStop {
		r.progress.Epoch++
	}
	return r.act(ctx)
}

// checkEnd ends the run as at max_steps if a step was not finite under nonfinite_loss
// stop, or once max_train_seconds are used up.
func (r *run) checkEnd() {
	a, s, c := r.args, r.state, &r.control
	switch {
	case c.ShouldTrainingStop:
		return
	case r.progress.LastStep.Skipped && a.NonfiniteLoss == args.NonfiniteStop:
		c.StopReason = callbacks.StopReason{
			Kind: callbacks.StopNonfinite,
			Detail: fmt.Sprintf("loss or gradient of step %d not finite (nonfinite_loss %s)", s.GlobalStep,
				a.NonfiniteLoss),
		}
	case r.timeIsUp():
		r.timeUp = true
	case r.hashes.finished():
		c.ShouldTrainingStop = true
		c.StopReason = callbacks.StopReason{Kind: callbacks.StopCallback, Detail: "record_until"}
		return
	default:
		return
	}
	c.ShouldTrainingStop = true
	c.ShouldEvaluate = c.ShouldEvaluate || a.EvalStrategy == args.StrategySteps && float64(s.GlobalStep) >= a.EvalDelay
	c.ShouldSave = c.ShouldSave || a.SaveStrategy == args.StrategySteps
}

// act logs, evaluates and saves as Control says, after the ranks have agreed on it. Callbacks that hear of it may ask
// for more, some of them on rank 0 alone: the ranks agree again after each.
func (r *run) act(ctx context.Context) error {
	c := &r.control
	if err := r.agree(ctx); err != nil {
		return err
	}
	for _, work := range []struct {
		due *bool
		do  func(context.Context) error
	}{{&c.ShouldLog, r.logStep}, {&c.ShouldEvaluate, r.evaluate}, {&c.ShouldSave, r.save}} {
		if !*work.due {
			continue
		}
		if err := work.do(ctx); err != nil {
			return err
		}
		if err := r.agree(ctx); err != nil {
			return err
		}
	}
	return nil
}

// agreedReason is why the ranks stop if nothing on this one has said so yet.
func (r *run) agreedReason() callbacks.StopReason {
	switch {
	case r.timeUp:
		return callbacks.StopReason{Kind: callbacks.StopTimeLimit,
			Detail: fmt.Sprintf("max_train_seconds %g reached", r.args.MaxTrainSeconds)}
	case r.state.GlobalStep < r.steps.MaxSteps && r.acc.WorldSize() > 1:
		return callbacks.StopReason{Kind: callbacks.StopOtherRank}
	}
	return callbacks.StopReason{}
}

// agree makes what a callback of any rank asked for hold on all, and the end of any rank's ctx, and gives all ranks
// rank 0's clock: it is the one exchange of a step that is not about data.
func (r *run) agree(ctx context.Context) error {
	c := &r.control
	r.interrupted = r.interrupted || ctx.Err() != nil
	err := r.acc.AgreeAt(r.ctx, &r.progress.Seconds, &c.ShouldTrainingStop, &c.ShouldEpochStop, &c.ShouldSave,
		&c.ShouldEvaluate, &c.ShouldLog, &r.timeUp, &r.interrupted)
	if err == nil && c.ShouldTrainingStop && !c.StopReason.Early() {
		c.StopReason = r.agreedReason()
	}
	return err
}

// interrupt saves if asked to, unless there is nothing new, and ends the run.
func (r *run) interrupt(ctx context.Context) error {
	cause := causeOf(ctx)
	r.control.ShouldTrainingStop = true
	r.control.StopReason = callbacks.StopReason{Kind: callbacks.StopInterrupted}
	if !errors.Is(cause, context.Canceled) || cause.Error() != context.Canceled.Error() {
		r.control.StopReason.Detail = strings.TrimPrefix(cause.Error(), "trainer: ")
	}
	return errors.Join(fmt.Errorf("%w after step %d: %w", ErrInterrupted, r.state.GlobalStep, cause),
		r.saveEarly())
}

// saveEarly saves before a run ends that all ranks agreed to end, if asked to and unless there is nothing new.
func (r *run) saveEarly() error {
	fresh := r.savedAt == r.state.GlobalStep
	if !r.args.SaveOnInterrupt || fresh && !r.args.AsyncSave {
		return nil
	}
	var err error
	if !fresh {
		err = r.save(r.ctx)
	}
	// mpirun and srun kill all ranks when the first has failed: none leaves while another is saving.
	return errors.Join(err, r.settle(true), r.acc.Barrier(r.ctx))
}

// causeOf is the reason why ctx ended, or an error that says that another rank's did.
func causeOf(ctx context.Context) error { return cmp.Or(context.Cause(ctx), errOtherInterrupted) }

// end writes the final record, loads the best model if asked to, and fires the last
// event.
func (r *run) end(interrupted bool) error {
	if err := r.acc.AverageParameters(r.ctx); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	if err := r.acc.EvalWeights(r.ctx); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	r.used = r.memoryMetrics()
	maps.Copy(r.used, r.trafficMetrics())
	if err := r.record(r.finalRecord()); err != nil {
		return err
	}
	if !interrupted {
		if err := r.loadBest(); err != nil {
			return err
		}
	}
	leave := r.leaveExchange
	if r.staysSpread && r.spreadOverProcesses() {
		leave = func() error { r.acc.ZeroGrad(); return nil }
	}
	if err := leave(); err != nil {
		return err
	}
	c := &r.control
	c.StopReason = c.EndReason(r.state.GlobalStep, r.steps.MaxSteps)
	r.stopReason = c.StopReason
	if r.display == nil && c.StopReason.Early() {
		r.log.Info("training stopped early", "step", r.state.GlobalStep, "max_steps", r.steps.MaxSteps,
			"reason", c.StopReason.String())
	}
	e := r.event()
	e.Checkpoint = r.checkpoint
	return r.callbacks.Fire(callbacks.TrainEnd, e)
}

// leaveExchange gives each rank the whole parameters of a model that was spread over the ranks, or lay on disk, and
// takes the gradients out of the memory of their exchange: what a run took is given back without Close.
func (r *run) leaveExchange() error {
	if r.acc.WorldSize() == 1 && r.acc.Shards() == nil && !r.acc.Divided() &&
		r.args.OffloadParams != args.OffloadDisk {
		return nil
	}
	return r.acc.Unshard(r.ctx)
}

// spreadOverProcesses reports whether other processes have parts of the model that this one has not.
func (t *Trainer) spreadOverProcesses() bool {
	return t.acc.Shards() != nil && t.args.NumReplicas <= 1 && t.args.OffloadParams != args.OffloadDisk
}

// agreed reports whether all ranks return such an error and are still in step: it is no failure of one rank, for which
// the others wait.
func agreed(err error) bool {
	return errors.Is(err, ErrInterrupted) || is[*accelerate.DataError](err) || is[*EmptyStepsError](err) ||
		is[*precision.LossScaleError](err) || is[*NonfiniteError](err)
}

// is reports whether an error is, or wraps, one of a type.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// tryStep turns panics of the engine and of the model into errors that name the step.
func (r *run) tryStep(f func() error) (err error) {
	if p := tensor.Recover(func() { err = f() }); p != nil {
		return fmt.Errorf("trainer: step %d, rank %d: %w", r.state.GlobalStep+1, r.acc.Rank(), p)
	}
	return err
}
