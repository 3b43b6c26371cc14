// SPDX-License-Identifier: Apache-2.0

package trainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/catalog"
	"github.com/lockstep-ml/lockstep/optim"
)

// schedulerState is scheduler.json, with the state of a schedule that follows a metric. Of a schedule that is a
// function of the step, what is saved lets a reader, and a resume, check it.
type schedulerState[State any] struct {
	Type     string    `json:"lr_scheduler_type"`
	LastStep int64     `json:"last_step"`
	LastLR   float64   `json:"last_lr"`  // of the first group
	BaseLRs  []float64 `json:"base_lrs"` // of all groups, before the schedule
	State    State     `json:"state,omitempty"`
}

// makeSchedule creates the schedule that the arguments name, or the user's.
func (r *run) makeSchedule() (err error) {
	a, total := r.args, r.steps.MaxSteps
	warmup := int64(a.NumWarmupSteps(int(total)))
	if r.newSched != nil {
		err := called("WithSchedule", func() error {
			r.schedule = r.newSched(warmup, total)
			return nil
		})
		if err == nil && r.schedule == nil {
			err = errors.New("trainer: the function passed to WithSchedule returned no schedule")
		}
		return err
	}
	if warms := a.LRSchedulerType != args.SchedulerConstant && !a.FollowsMetric(); !warms && a.WarmupSteps > 0 {
		r.warnNoWarmup()
	}
	constant := a.LRSchedulerType == args.SchedulerConstant || a.LRSchedulerType == args.SchedulerConstantWithWarmup
	if a.EMADecay == 0 && r.opt.Averages() && !constant { // ema_decay averages too, and needs the schedule
		r.jobLog().Warn("a schedule-free optimizer averages weights instead of lowering the learning rate: want "+
			"lr_scheduler_type constant", "optim", a.Optim, "lr_scheduler_type", a.LRSchedulerType)
	}
	if a.FollowsMetric() {
		r.byMetric, err = optim.NewMetricSchedule(string(a.LRSchedulerType), r.opt.BaseLRs(), a.LRSchedulerKwargs)
		r.warnMetric()
	} else {
		r.schedule, err = optim.NewSchedule(string(a.LRSchedulerType), warmup, total, a.LearningRate,
			a.LRSchedulerKwargs)
	}
	return err
}

// warnNoWarmup warns that warmup_steps has no effect, unless the optimizer warms up by itself.
func (r *run) warnNoWarmup() {
	row, _ := catalog.OptimizerNamed(string(r.args.Optim))
	if _, warmsUp := row.Arguments.Lookup("warmup_steps"); warmsUp {
		return
	}
	kind := string(r.args.LRSchedulerType)
	r.jobLog().Warn("lr_scheduler_type "+kind+" has no warm-up, as in HuggingFace: warmup_steps has no effect; "+
		"constant_with_warmup has one", "warmup_steps", r.args.WarmupSteps)
}

// warnMetric warns of settings that HuggingFace takes too, and that hardly anyone means.
func (r *run) warnMetric() {
	a := r.args
	row, _ := catalog.ScheduleNamed(string(a.LRSchedulerType))
	values := row.Settings.Fill(a.LRSchedulerKwargs)
	if greater := a.BestIsGreater(); greater != (values.Text("mode") == "max") {
		r.jobLog().Warn("the schedule's mode and greater_is_better disagree on which metric is better", "mode",
			values.Text("mode"), "metric_for_best_model", a.BestMetric(), "greater_is_better", greater)
	}
	least, _ := values.Numbers("min_lr", 1)
	if len(least) == 1 && a.LearningRate < least[0] {
		r.jobLog().Warn("learning_rate is below the schedule's min_lr: the schedule never lowers it", "learning_rate",
			a.LearningRate, "min_lr", least[0])
	}
}

// setRates sets the learning rates of the step to come.
func (r *run) setRates() error {
	if r.byMetric != nil {
		r.opt.SetRates(r.byMetric.Rates())
		return nil
	}
	factor := r.factor()
	if !finite(factor) || factor < 0 {
		return fmt.Errorf("the schedule's factor is %g: want a finite number of at least 0", factor)
	}
	r.opt.ScaleLR(factor)
	return nil
}

// learningRate is that of the step to come, of the first group, as HuggingFace logs it.
func (r *run) learningRate() float64 {
	if r.byMetric != nil {
		return r.byMetric.Rates()[0]
	}
	return r.opt.BaseLRs()[0] * r.factor()
}

// observe lets a schedule that follows a metric see rank 0's, so that all ranks continue at the same rates. An
// evaluation before the first step does not count.
func (r *run) observe(metric float64) error {
	if r.byMetric == nil || r.state.GlobalStep == 0 {
		return nil
	}
	if err := r.acc.AgreeAt(r.ctx, &metric); err != nil {
		return fmt.Errorf("trainer: %w", err)
	}
	before := r.byMetric.Rates()
	r.byMetric.Observe(metric)
	if now := r.byMetric.Rates(); !slices.Equal(before, now) {
		level := slog.LevelDebug
		if catalog.Values(r.args.LRSchedulerKwargs).On("verbose") {
			level = slog.LevelInfo
		}
		r.jobLog().Log(r.ctx, level, "the schedule changed the learning rates", "step", r.state.GlobalStep, "metric",
			metric, "before", before, "now", now)
	}
	return nil
}

// scheduleToSave is the schedule as a checkpoint has it.
func (r *run) scheduleToSave() any {
	kind := string(r.args.LRSchedulerType)
	if r.newSched != nil {
		kind = "custom"
	}
	return schedulerState[optim.MetricSchedule]{kind, r.state.GlobalStep, r.learningRate(), r.opt.BaseLRs(), r.byMetric}
}

// restoreSchedule restores the state of a schedule that has one. It warns if the groups of the program's own optimizer
// have other base learning rates than those that the checkpoint was saved under. The program's count. A change of
// learning_rate has been told with the arguments.
func (r *run) restoreSchedule(ck *checkpoint.Checkpoint) error {
	var saved schedulerState[json.RawMessage]
	if err := ck.ReadJSON(schedulerFile, &saved); err != nil {
		return err
	}
	if now := r.opt.BaseLRs(); r.newOptim != nil && saved.BaseLRs != nil && !slices.Equal(saved.BaseLRs, now) {
		r.jobLog().Warn("resuming with changed learning rates of the optimizer's groups: the result will differ from "+
			"that of an uninterrupted run", "checkpoint", saved.BaseLRs, "now", now)
	}
	if r.byMetric == nil || saved.Type != string(r.args.LRSchedulerType) {
		return nil
	}
	if err := json.Unmarshal(saved.State, r.byMetric); err != nil {
		return fmt.Errorf("%s: state: %w", schedulerFile, err)
	}
	return nil
}

// factor is what the schedule multiplies the rates of the next step by.
func (r *run) factor() (x float64) {
	if r.newSched == nil {
		return r.schedule.Factor(r.scheduled())
	}
	blaming("the schedule of WithSchedule", func() { x = r.schedule.Factor(r.scheduled()) })
	return x
}
