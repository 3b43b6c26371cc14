// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// passes runs the passes of a window. Under auto_find_batch_size, passes that run out of memory are tried again with
// the same samples in smaller micro-batches; the window that is returned has them.
func (r *run) passes(w *feed.Window, dataErr error, stats *callbacks.StepStats) (*feed.Window, *accelerate.PendingStep,
	error) {
	u, err := r.forwardBackward(w, dataErr, stats)
	for r.args.AutoFindBatchSize && is[*accelerate.MemoryError](err) {
		samples := w.Samples
		w.Free()
		if err = r.shrink(err); err != nil {
			break
		}
		if w, dataErr = r.windows.Next(); dataErr != nil { // the other ranks learn it in the pass
			w = new(feed.Window)
		} else if w.Samples != samples {
			return w, nil, fmt.Errorf("trainer: step %d: smaller micro-batches have %d samples, those before had %d: "+
				"want a loader that cuts windows by samples, or auto_find_batch_size false", r.state.GlobalStep+1,
				w.Samples, samples)
		}
		u, err = r.forwardBackward(w, dataErr, stats)
	}
	return w, u, err
}

// shrink goes back to the window whose passes ran out of memory and cuts the training stream from there on into smaller
// micro-batches: half as many samples in each, or the next smaller number that divides it, and accordingly more of them
// in a step. Steps, schedule and optimizer stay unchanged. All ranks call it.
func (r *run) shrink(cause error) error {
	a, from := r.args, r.args.PerDeviceTrainBatchSize
	if from == 1 {
		return fmt.Errorf("trainer: step %d, with one sample in a micro-batch: %w", r.state.GlobalStep+1, cause)
	}
	factor := leastDivisor(from)
	if err := r.windows.Undo(); err != nil {
		return errors.Join(cause, err)
	}
	place, steps, samples := r.windows.Place(), r.steps, r.samples
	r.windows.Close()
	a.PerDeviceTrainBatchSize = from / factor
	if a.GlobalTrainBatchSize == 0 || a.GradientAccumulationSteps > 1 {
		a.GradientAccumulationSteps *= factor
	}
	r.jobLog().Warn("out of memory: smaller micro-batches from here on, more of them in a step",
		"step", r.state.GlobalStep+1, "per_device_train_batch_size", a.PerDeviceTrainBatchSize, "was", from)
	r.acc.SetArguments(a)
	if err := r.plan(); err != nil {
		return err
	}
	r.steps, r.samples = steps, samples
	if err := r.windows.Restore(place); err != nil {
		return err
	}
	r.windows.Limit(r.steps.MaxSteps - r.state.GlobalStep)
	r.state.TrainBatchSize = a.PerDeviceTrainBatchSize
	return r.prepareAgain()
}

// prepareAgain readies the ranks for another number of micro-batches, with the optimizer and the loss scale that the
// run has.
func (r *run) prepareAgain() error {
	scale := r.acc.Scaler()
	if err := r.spread(func(*tensor.Ctx, []tensor.Named) (*optim.Optimizer, error) { return r.opt, nil }); err != nil {
		return err
	}
	r.acc.Device().Collect() // what the passes saved for gradients that were not computed
	r.acc.Device().Sync()
	if scale != nil {
		return r.acc.Scaler().Restore(*scale)
	}
	return nil
}

// leastDivisor is the smallest divisor of n above 1.
func leastDivisor(n int) int {
	for d := 2; d*d <= n; d++ {
		if n%d == 0 {
			return d
		}
	}
	return n
}
