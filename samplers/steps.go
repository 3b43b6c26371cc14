// SPDX-License-Identifier: Apache-2.0

package samplers

import (
	"errors"
	"fmt"
	"math"
)

// Steps is how long a training run is, in HuggingFace's terms. Step always means optimizer step.
type Steps struct {
	MicroBatches    int64 // per epoch, over all ranks; 0 if unknown
	PerStep         int64 // micro-batches per full step, over all ranks: accumulation steps × world size
	UpdatesPerEpoch int64 // optimizer steps per epoch; MaxSteps if the length is unknown
	MaxSteps        int64 // optimizer steps of the whole run
	// epochs begun, the last perhaps cut short by MaxSteps; math.MaxInt64 if the length is unknown
	Epochs int64
}

// UpdatesPerEpoch returns the number of optimizer steps in an epoch of microBatches micro-batches, perStep of which
// make a full step: max(⌈microBatches/perStep⌉, 1). An epoch's ragged tail is a separate step.
func UpdatesPerEpoch(microBatches, perStep int64) int64 {
	return max(ceilDiv(microBatches, perStep), 1)
}

// PlanSteps does HuggingFace's step arithmetic for epochs of microBatches micro-batches (Batch.Len) with perStep of
// them per step (WindowLayout.MicroBatches). maxSteps > 0 decides alone, and the data is gone through as often as that
// needs; otherwise the run has ⌈epochs × updates per epoch⌉ steps. It is an error if neither is positive.
func PlanSteps(microBatches, perStep int64, epochs float64, maxSteps int64) (Steps, error) {
	var faults []error
	if microBatches < 0 {
		faults = append(faults, fmt.Errorf("samplers: micro-batches per epoch is %d: want 0 or more", microBatches))
	}
	if perStep < 1 {
		faults = append(faults, fmt.Errorf("samplers: micro-batches per step is %d: want at least 1", perStep))
	}
	if maxSteps <= 0 && !(epochs > 0 && epochs < math.MaxInt64) {
		faults = append(faults,
			fmt.Errorf("samplers: max_steps is %d and num_train_epochs is %v: want one of them above 0", maxSteps,
				epochs))
	}
	if err := errors.Join(faults...); err != nil {
		return Steps{}, err
	}
	p := Steps{MicroBatches: microBatches, PerStep: perStep, UpdatesPerEpoch: UpdatesPerEpoch(microBatches, perStep)}
	if maxSteps > 0 {
		p.MaxSteps, p.Epochs = maxSteps, ceilDiv(maxSteps, p.UpdatesPerEpoch)
		return p, nil
	}
	steps := math.Ceil(epochs * float64(p.UpdatesPerEpoch))
	if steps >= math.MaxInt64 {
		return Steps{}, fmt.Errorf("samplers: num_train_epochs %v × %d steps per epoch is too large",
			epochs, p.UpdatesPerEpoch)
	}
	p.MaxSteps, p.Epochs = int64(steps), int64(math.Ceil(epochs))
	return p, nil
}

// PlanUnsized does the step arithmetic for data of unknown length, which needs maxSteps: the run is one epoch without
// end, and the epoch that logs show is the fraction of maxSteps that is done.
func PlanUnsized(perStep, maxSteps int64) (Steps, error) {
	if perStep < 1 {
		return Steps{}, fmt.Errorf("samplers: micro-batches per step is %d: want at least 1", perStep)
	}
	if maxSteps < 1 {
		return Steps{}, fmt.Errorf("samplers: max_steps is %d: want at least 1: the training data has no length",
			maxSteps)
	}
	return Steps{PerStep: perStep, UpdatesPerEpoch: maxSteps, MaxSteps: maxSteps, Epochs: math.MaxInt64}, nil
}

// EpochAt returns the epochs done after step optimizer steps, as logs show it: whole epochs plus the fraction of the
// present epoch's micro-batches that is done.
func (p Steps) EpochAt(step int64) float64 {
	epoch, within := step/p.UpdatesPerEpoch, step%p.UpdatesPerEpoch
	if p.MicroBatches == 0 {
		return float64(epoch) + float64(within)/float64(p.UpdatesPerEpoch)
	}
	return float64(epoch) + float64(within*p.PerStep)/float64(p.MicroBatches)
}

// ResumeAt returns the epoch that a run resumed after step optimizer steps continues in, and how many of that epoch's
// steps are done.
func (p Steps) ResumeAt(step int64) (epoch, done int64) {
	return step / p.UpdatesPerEpoch, step % p.UpdatesPerEpoch
}
