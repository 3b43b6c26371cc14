// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/args"
)

// Scaler is the loss scaling of fp16: gradients are multiplied by a power of two on their way through float16, whose
// smallest numbers they would fall below, and divided by it in the optimizer's step. It follows
// torch.amp.GradScaler: a step whose gradients overflow is skipped and halves the scale, and some steps without
// overflow in a row double it. All ranks decide alike, since they see the same gradients.
type Scaler struct {
	Scale   float64 `json:"scale"`
	Good    int     `json:"good_steps"` // in a row since the scale changed
	Skipped int64   `json:"skipped_steps"`

	interval int
}

// newScaler is nil without fp16.
func newScaler(a *args.TrainingArguments) *Scaler {
	if !a.FP16 {
		return nil
	}
	return &Scaler{Scale: a.FP16InitialScale, interval: a.FP16GrowthInterval}
}

// factor is what losses are multiplied by; 1 for a nil Scaler.
func (s *Scaler) factor() float64 {
	if s == nil {
		return 1
	}
	return s.Scale
}

// The scale stays within these, where float32 gradients neither vanish nor overflow by it alone.
const (
	minScale = 1.0 / (1 << 32)
	maxScale = 1 << 64
)

// update takes note of a step: overflow says that its gradients were not finite, so that it was skipped.
func (s *Scaler) update(overflow bool) {
	if overflow {
		s.Scale, s.Good = math.Max(s.Scale/2, minScale), 0
		s.Skipped++
		return
	}
	if s.Good++; s.Good >= s.interval {
		s.Scale, s.Good = math.Min(s.Scale*2, maxScale), 0
	}
}

// Restore sets the state that a checkpoint holds.
func (s *Scaler) Restore(state Scaler) error {
	if fraction, _ := math.Frexp(state.Scale); fraction != 0.5 || state.Scale < minScale || state.Scale > maxScale ||
		state.Good < 0 || state.Skipped < 0 {
		return fmt.Errorf("accelerate: a loss scale of %g after %d good steps: want a power of two from %g to %g",
			state.Scale, state.Good, minScale, float64(maxScale))
	}
	s.Scale, s.Good, s.Skipped = state.Scale, state.Good, state.Skipped
	return nil
}
