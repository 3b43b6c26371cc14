// SPDX-License-Identifier: Apache-2.0

package precision

import (
	"fmt"
	"math"
)

// Scaler is the loss scaling of fp16: gradients are multiplied by a power of two on their way through float16, whose
// smallest numbers they would fall below, and divided by it in the optimizer's step. A step whose gradients overflow is
// skipped and halves the scale; with a hysteresis, the first overflows only skip. Steps without overflow double it. By
// torch.amp.GradScaler's rule as many in a row as the interval has do, counted since the scale changed; by that of
// DeepSpeed's DynamicLossScaler the step behind each interval does, counted since the last overflow. All ranks decide
// alike, since they see the same gradients.
type Scaler struct {
	Scale   float64 `json:"scale"`
	Good    int     `json:"good_steps"` // in a row, counted as the rule does
	Skipped int64   `json:"skipped_steps"`
	Row     int64   `json:"skipped_in_a_row"` // at the end of the steps so far

	// Overflows counts those since the scale grew that did not halve it.
	Overflows int `json:"overflows,omitempty"`

	rule   Rule
	spared bool // the last overflow did not halve the scale, by the hysteresis
}

// Rule is that of a Scaler.
type Rule struct {
	Initial, Least       float64
	Interval, Hysteresis int
	Consecutive          bool // a step without overflow restores the hysteresis
	DeepSpeed            bool // DeepSpeed's rule
}

// LossScaleError reports that gradients overflow at the smallest loss scale, fp16_min_scale.
type LossScaleError struct {
	Scale, Least float64 // of the step, and fp16_min_scale
	Skipped      int64   // steps in a row, this one included
}

// Permanent says that a launcher need not start the run again: it would meet the same gradients.
func (*LossScaleError) Permanent() bool { return true }

func (e *LossScaleError) Error() string {
	return fmt.Sprintf("accelerate: the gradients overflow float16 at loss scale %g, after %d skipped steps in a row, "+
		"and fp16_min_scale is %g: want bf16, a smaller learning rate, or a smaller fp16_min_scale", e.Scale, e.Skipped,
		e.Least)
}

// NewScaler is nil without a rule.
func NewScaler(rule *Rule) *Scaler {
	if rule == nil {
		return nil
	}
	return &Scaler{Scale: rule.Initial, rule: *rule}
}

// Factor is what losses are multiplied by; 1 for a nil Scaler.
func (s *Scaler) Factor() float64 {
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

// Update takes note of a step: overflow says that its gradients were not finite, so that it was skipped.
func (s *Scaler) Update(overflow bool) {
	if overflow {
		s.Good = 0
		s.Skipped++
		s.Row++
		switch s.spared = s.Overflows+1 < s.rule.Hysteresis; {
		case s.spared:
			s.Overflows++
		case !s.exhausted():
			s.Scale /= 2
		}
		return
	}
	s.Row = 0
	if s.rule.Consecutive {
		s.Overflows = 0
	}
	grow := s.rule.DeepSpeed && s.Good > 0 && s.Good%s.rule.Interval == 0
	if s.Good++; !s.rule.DeepSpeed && s.Good >= s.rule.Interval {
		grow, s.Good = true, 0
	}
	if grow {
		s.Scale, s.Overflows = math.Min(s.Scale*2, maxScale), 0
	}
}

// exhausted reports whether the scale cannot be halved.
func (s *Scaler) exhausted() bool { return s.Scale/2 < math.Max(s.rule.Least, minScale) }

// Check returns a *LossScaleError if a step overflowed at a scale that could not be halved; scale is that of the step.
func (s *Scaler) Check(overflow bool, scale float64) error {
	if overflow && s.exhausted() && !s.spared && scale == s.Scale {
		return &LossScaleError{Scale: s.Scale, Least: s.rule.Least, Skipped: s.Row}
	}
	return nil
}

// Restore sets the state that a checkpoint holds.
func (s *Scaler) Restore(state Scaler) error {
	if fraction, _ := math.Frexp(state.Scale); fraction != 0.5 || state.Scale < minScale || state.Scale > maxScale ||
		state.Good < 0 || state.Skipped < 0 || state.Row < 0 || state.Row > state.Skipped ||
		state.Overflows < 0 {
		return fmt.Errorf("accelerate: a loss scale of %g after %d good steps: want a power of two from %g to %g",
			state.Scale, state.Good, minScale, float64(maxScale))
	}
	s.Scale, s.Good, s.Skipped, s.Row, s.Overflows = state.Scale, state.Good, state.Skipped, state.Row, state.Overflows
	return nil
}
