// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/accelerate/profile"
)

// watch makes the profiler that the arguments ask for. Without one r.prof stays nil, and all it does is nothing.
func (r *run) watch() {
	if r.args.Profile == "" {
		return
	}
	r.prof = profile.New(profile.Options{
		Dir: r.args.Profile, Rank: r.acc.Rank(), SkipFirst: r.args.ProfileSkipFirst, Active: r.args.ProfileSteps,
		Log: r.log,
	})
	r.unlisten = r.acc.Trace().Listen(r.prof.Span)
}

// profileStep tells the profiler of a step. With the last one a pipeline's timeline is written beside the profile.
func (r *run) profileStep() error {
	done := r.prof.Done()
	if err := r.prof.Step(); err != nil || done || !r.prof.Done() {
		return err
	}
	line, err := r.acc.Timeline(r.ctx)
	if line != nil {
		err = line.Write(filepath.Join(r.args.Profile, fmt.Sprintf("pipeline_rank%d", r.acc.Rank())))
		r.log.Info("step of the pipeline", "schedule", line.Measured.Schedule.Name,
			"seconds", line.Measured.Time, "idle", line.Measured.Idle(),
			"predicted_seconds", line.Predicted.Time, "predicted_idle", line.Predicted.Idle())
	}
	return err
}

// region begins a span of the run's own, which the returned function ends.
func (r *run) region(name string) (end func()) { return r.acc.Trace().Region(r.acc.Rank(), name) }

// endProfile writes a profile whose steps have not all come.
func (r *run) endProfile(err error) error {
	if r.prof == nil {
		return err
	}
	r.unlisten()
	return errors.Join(err, r.prof.Close())
}
