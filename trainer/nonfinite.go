// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"cmp"
	"fmt"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/tensor"
)

// NonfiniteError is returned by a run that ended because a loss or gradient norm was not finite: under nonfinite_loss
// raise at once, under stop after the run's last evaluation, checkpoint and record.
type NonfiniteError struct {
	Step           int64 // the skipped optimizer step, counted from 1
	Loss, GradNorm float64
	Checkpoint     string // the newest one of the run, "" if there is none
	// Parameter was not finite before the step, the first of the run; "" if all were, and in later steps.
	Parameter string
}

// Permanent says that a launcher need not start the run again: it would meet the same numbers.
func (*NonfiniteError) Permanent() bool { return true }

func (e *NonfiniteError) Error() string {
	text := fmt.Sprintf("trainer: step %d: loss %g, gradient norm %g: not finite; the weights are as before the step",
		e.Step, e.Loss, e.GradNorm)
	if e.Parameter != "" {
		text += fmt.Sprintf(", and were not finite then either: %s has NaN or infinities (a sharded run that failed "+
			"leaves NaN for the shards of other ranks): want reloaded weights", e.Parameter)
	}
	if e.Checkpoint != "" {
		text += "; last checkpoint: " + e.Checkpoint
	}
	return text
}

// nonfinite counts and reports a skipped step, and does what nonfinite_loss says.
func (r *run) nonfinite(stats *callbacks.StepStats) error {
	r.progress.Nonfinite++
	step := r.state.GlobalStep + 1
	r.jobLog().Warn("loss or gradient is not finite: the step is skipped", "step", step, "loss", stats.Loss,
		"grad_norm", stats.GradNorm, "nonfinite_steps", r.progress.Nonfinite, "policy", string(r.args.NonfiniteLoss))
	r.lastNonfinite = &NonfiniteError{Step: step, Loss: stats.Loss, GradNorm: stats.GradNorm, Checkpoint: r.checkpoint}
	if r.state.GlobalStep == r.resumed.GlobalStep {
		var err error
		if r.lastNonfinite.Parameter, err = r.findNonfinite(); err != nil {
			return err
		}
	}
	if r.args.NonfiniteLoss == args.NonfiniteRaise {
		r.acc.ZeroGrad()
		return r.lastNonfinite
	}
	return nil
}

// findNonfinite names a parameter that is not finite on some rank, "" if there is none. It is collective.
func (r *run) findNonfinite() (name string, err error) {
	c := r.acc.Ctx().NoGrad()
	for _, p := range r.acc.Trained() { // of a sharded model this rank's part
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			if !finite(tensor.Item(c, tensor.Sum(c, p.Tensor, nil, false))) {
				name = p.Name
			}
			return nil
		})
		if name != "" {
			break
		}
	}
	names, err := r.acc.DataRanks().GatherBytes(r.ctx, []byte(name))
	for _, n := range names {
		name = cmp.Or(name, string(n))
	}
	return name, err
}
