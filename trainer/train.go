package trainer

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Result is what a training run came to.
type Result struct {
	GlobalStep   int64              // optimizer steps done, those before a resume included
	TrainingLoss float64            // mean over all loss terms of the run
	Metrics      map[string]float64 // train_loss, train_runtime, train_samples_per_second, …
}

// ErrInterrupted is returned, wrapped with the context's cause, by a Train whose context
// ended: the step under way was finished and, with save_on_interrupt, a checkpoint written.
var ErrInterrupted = errors.New("trainer: interrupted")

// NonfiniteError is returned under nonfinite_loss raise.
type NonfiniteError struct {
	Step           int64 // the optimizer step that was left out, from 1
	Loss, GradNorm float64
}

func (e *NonfiniteError) Error() string {
	return fmt.Sprintf("trainer: step %d: loss %g, gradient norm %g: not finite; the weights are as before the step", e.Step, e.Loss, e.GradNorm)
}

// Train is TrainContext without a deadline.
func (t *Trainer) Train() (*Result, error) { return t.TrainContext(context.Background()) }

// TrainContext trains until max_steps, num_train_epochs or max_train_seconds is reached, a
// callback stops it, or ctx ends (see ErrInterrupted). With resume_from_checkpoint it
// goes on from there. The result is not nil if training began.
func (t *Trainer) TrainContext(ctx context.Context) (*Result, error) {
	if t.err != nil {
		return nil, t.err
	}
	r, err := t.begin(ctx)
	if err != nil {
		return nil, errors.Join(err, t.callbacks.Close())
	}
	defer r.close()
	err = r.loop(ctx)
	var end error
	if err == nil || errors.Is(err, ErrInterrupted) {
		end = r.end()
	}
	return r.result(), errors.Join(err, end, t.callbacks.Close())
}

// loop goes through epochs and steps, and does after each what the callbacks ask for.
func (r *run) loop(ctx context.Context) error {
	t := r.Trainer
	if err := t.fire(callbacks.TrainBegin); err != nil {
		return err
	}
	if t.args.EvalOnStart && t.state.GlobalStep == 0 {
		if err := r.evaluate(ctx); err != nil {
			return err
		}
	}
	for ; r.epoch < r.steps.Epochs && !t.control.ShouldTrainingStop; r.epoch++ {
		if err := r.seekEpoch(ctx); err != nil {
			return err
		}
		if err := t.fire(callbacks.EpochBegin); err != nil {
			return err
		}
		for more := true; more && !t.control.ShouldEpochStop && !t.control.ShouldTrainingStop; {
			var err error
			if more, err = r.step(); err != nil {
				return err
			}
			if err := r.afterStep(ctx); err != nil {
				return err
			}
		}
		if err := t.fire(callbacks.EpochEnd); err != nil {
			return err
		}
		if err := r.act(ctx); err != nil {
			return err
		}
	}
	return nil
}

// afterStep does what step_end asked for, and what an interrupt does.
func (r *run) afterStep(ctx context.Context) error {
	t := r.Trainer
	interrupted := ctx.Err() != nil
	if err := t.acc.Agree(&interrupted); err != nil {
		return err
	}
	if interrupted {
		return r.interrupt(ctx)
	}
	r.limitTime()
	return r.act(ctx)
}

// limitTime ends the run as at max_steps once max_train_seconds are used up.
func (r *run) limitTime() {
	t := r.Trainer
	if limit := t.args.MaxTrainSeconds; limit > 0 && r.progress.Seconds >= limit && t.state.GlobalStep < t.state.MaxSteps && !t.control.ShouldTrainingStop {
		t.log.Info("max_train_seconds reached", "seconds", limit, "step", t.state.GlobalStep, "max_steps", t.state.MaxSteps)
		t.control.ShouldTrainingStop = true
		t.control.ShouldEvaluate = t.control.ShouldEvaluate || t.args.EvalStrategy == args.StrategySteps
		t.control.ShouldSave = t.control.ShouldSave || t.args.SaveStrategy == args.StrategySteps
	}
}

// act logs, evaluates and saves as Control says, after the ranks have agreed on it.
func (r *run) act(ctx context.Context) error {
	t, c := r.Trainer, &r.Trainer.control
	if err := t.acc.Agree(&c.ShouldTrainingStop, &c.ShouldEpochStop, &c.ShouldSave, &c.ShouldEvaluate, &c.ShouldLog); err != nil {
		return err
	}
	if c.ShouldLog {
		if err := r.logStep(); err != nil {
			return err
		}
	}
	if c.ShouldEvaluate {
		if err := r.evaluate(ctx); err != nil {
			return err
		}
	}
	if c.ShouldSave {
		return r.save(context.WithoutCancel(ctx))
	}
	return nil
}

// interrupt saves if asked to and ends the run.
func (r *run) interrupt(ctx context.Context) error {
	t := r.Trainer
	t.control.ShouldTrainingStop = true
	err := fmt.Errorf("%w after step %d: %w", ErrInterrupted, t.state.GlobalStep, context.Cause(ctx))
	if t.args.SaveOnInterrupt {
		return errors.Join(err, r.save(context.WithoutCancel(ctx)))
	}
	return err
}

// end writes the final record, loads the best model if asked to, and says goodbye.
func (r *run) end() error {
	t := r.Trainer
	if err := t.record(r.finalRecord()); err != nil {
		return err
	}
	if err := r.loadBest(); err != nil {
		return err
	}
	return t.fire(callbacks.TrainEnd)
}

// guard turns the engine's panics into errors that name the step.
func (r *run) guard(f func() error) error {
	var err error
	if p := tensor.Try(func() { err = f() }); p != nil {
		return fmt.Errorf("trainer: step %d, rank %d: %w", r.state.GlobalStep+1, r.acc.Rank(), p)
	}
	return err
}
