// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/samplers"
)

// mostEmptySteps is how many steps in a row may have no loss terms.
const mostEmptySteps = 100

// empties counts the steps of which no micro-batch, of any rank, has a loss term: all labels are -100. The optimizer
// and the schedule leave them out.
type empties struct {
	Steps int64 `json:"steps"`
	Row   int64 `json:"in_a_row"` // at the end of the steps so far
	Epoch bool  `json:"epoch"`    // all steps of the epoch so far, at least one
}

func (e *empties) count(w samplers.Window, empty bool) {
	e.Epoch = empty && (e.Epoch || w.Number == 0)
	if !empty {
		e.Row = 0
		return
	}
	e.Steps++
	e.Row++
}

// EmptyStepsError is returned by a run if an epoch, or 100 steps in a row, had no loss term. All ranks return it, since
// each step counts the terms of all of them.
type EmptyStepsError struct {
	Step int64 // the last of the steps, counted from 1
	Row  int64 // steps in a row without a loss term
	// Epoch is the epoch, counted from 1, that had no loss term; 0 if the steps in a row are the reason.
	Epoch int64
}

// Permanent says that a launcher need not start the run again: it would meet the same labels.
func (*EmptyStepsError) Permanent() bool { return true }

func (e *EmptyStepsError) Error() string {
	what := fmt.Sprintf("%d steps in a row", e.Row)
	if e.Epoch > 0 {
		what = fmt.Sprintf("all steps of epoch %d", e.Epoch)
	}
	return fmt.Sprintf("trainer: step %d: %s have no loss term: want labels that are not -100 (check what the "+
		"collator masks, and whether texts are cut before their answer), or a loss function that counts its terms",
		e.Step, what)
}

// checkEmpty reports steps without a loss term, which train nothing, and ends the run after too many of them.
func (r *run) checkEmpty(w samplers.Window) error {
	e := r.progress.Empty
	if e.Row == 0 {
		return nil
	}
	if e.Steps == 1 || e.Row == mostEmptySteps/10 {
		r.jobLog().Warn("the step has no loss term (all labels are -100): the optimizer and the schedule leave it out",
			"step", r.state.GlobalStep, "in_a_row", e.Row, "empty_steps", e.Steps)
	}
	switch {
	case e.Epoch && w.LastOfEpoch:
		return &EmptyStepsError{Step: r.state.GlobalStep, Row: e.Row, Epoch: w.Epoch + 1}
	case e.Row >= mostEmptySteps:
		return &EmptyStepsError{Step: r.state.GlobalStep, Row: e.Row}
	}
	return nil
}
