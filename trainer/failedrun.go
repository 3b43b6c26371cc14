// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
)

// FailedRunError is returned by methods of a trainer after a run that failed, if they need what that run took away: the
// whole weights, of which each rank had a part, or the other ranks.
type FailedRunError struct {
	Step       int64  // that failed, counted from 1; 0 if no step did
	Checkpoint string // the newest of the run, "" if there is none
	Err        error  // why it failed
	weights    bool   // they are not whole; else the ranks are not connected
}

func (e *FailedRunError) Error() string {
	what := "an earlier call"
	if e.Step > 0 {
		what = fmt.Sprintf("step %d of an earlier run", e.Step)
	}
	resume := "want reloaded weights (models.LoadWeights)"
	if e.Checkpoint != "" {
		resume = fmt.Sprintf("want a run that resumes (resume_from_checkpoint %s), or reloaded weights "+
			"(models.LoadWeights)", e.Checkpoint)
	}
	lost := "the weights are incomplete, since each rank had a part of them: " + resume
	if !e.weights {
		lost = "the ranks are no longer connected: want a restart of the program, with resume_from_checkpoint to " +
			"continue"
		if e.Checkpoint != "" {
			lost += " from " + e.Checkpoint
		}
	}
	return fmt.Sprintf("trainer: %s failed (%s), and %s", what, strings.TrimPrefix(e.Err.Error(), "trainer: "), lost)
}

// Unwrap gives Err.
func (e *FailedRunError) Unwrap() error { return e.Err }

// errOtherFailed is the cause where nothing on this rank has said so.
var errOtherFailed = errors.New("another rank failed")

// connected returns an error if the other ranks are gone.
func (t *Trainer) connected() error {
	if g := t.acc.Ranks.Group(); g != nil && g.Err() != nil {
		return t.afterFailure(false, g.Err())
	}
	return nil
}

// whole returns an error if the weights are not.
func (t *Trainer) whole() error {
	if t.acc.IsMain() && t.acc.Incomplete() { // the other ranks take them from rank 0
		return t.afterFailure(true, nil)
	}
	return nil
}

// ready returns an error if the ranks cannot compute with the model. They take rank 0's parameters, which the caller
// may have changed, unless each still has its part.
func (t *Trainer) ready(ctx context.Context) error {
	if err := t.connected(); err != nil {
		return err
	}
	if err := t.whole(); err != nil {
		return err
	}
	if t.acc.Shards() != nil {
		return nil
	}
	return t.acc.SyncParameters(context.WithoutCancel(ctx), t.model)
}

func (t *Trainer) afterFailure(weights bool, cause error) error {
	e := &FailedRunError{weights: weights, Err: cause}
	if t.failed != nil {
		e.Step, e.Checkpoint, e.Err = t.failed.Step, t.failed.Checkpoint, t.failed.Err
	}
	e.Err = cmp.Or(e.Err, errOtherFailed)
	return e
}
