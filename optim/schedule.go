// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/internal/catalog"
)

// Schedule is the course of the learning rate over a run: the learning rate of a step is the base learning rate times
// Factor.
//
// step is the number of optimizer steps done before, so a run's first step has step 0. Factor is pure: a schedule has
// no state to save, and resuming is asking for a later step.
type Schedule interface {
	Factor(step int64) float64
}

// ScheduleFunc makes a function a Schedule.
type ScheduleFunc func(step int64) float64

// Factor calls the function.
func (f ScheduleFunc) Factor(step int64) float64 { return f(step) }

// schedules has the constructor of every schedule under HuggingFace's name for it (lr_scheduler_type), or DeepSpeed's.
var schedules = map[string]func(*scheduleSpec) Schedule{
	"constant":                  newConstant,
	"constant_with_warmup":      newConstantWithWarmup,
	"linear":                    newLinear,
	"cosine":                    newCosine,
	"cosine_with_restarts":      newCosineWithRestarts,
	"polynomial":                newPolynomial,
	"inverse_sqrt":              newInverseSqrt,
	"cosine_with_min_lr":        newCosineWithMinLR,
	"cosine_warmup_with_min_lr": newCosineWarmupWithMinLR,
	"warmup_stable_decay":       newWarmupStableDecay,
	"WarmupLR":                  newDeepSpeedWarmup,
	"WarmupDecayLR":             newDeepSpeedWarmupDecay,
	"WarmupCosineLR":            newDeepSpeedWarmupCosine,
}

func init() {
	made := slices.Sorted(slices.Values(append(ScheduleNames(), sortedKeys(metricSchedules)...)))
	if names := catalog.ScheduleNames(); !slices.Equal(slices.Sorted(slices.Values(names)), made) {
		panic(fmt.Sprintf("optim: the schedules are %q, and the rows in internal/catalog %q", made, names))
	}
}

// ScheduleNames returns the names that NewSchedule knows, sorted.
func ScheduleNames() []string { return sortedKeys(schedules) }

// NewSchedule makes a schedule of HuggingFace's by its name (lr_scheduler_type), with the formulas of transformers'
// optimization module, or one of DeepSpeed's by the name of its class, with the formulas of its lr_schedules.
//
// warmup is the number of warm-up steps w and total the number T of steps in the run; neither is negative. In all
// schedules that warm up, the factor of a step s < w is s/w, so that the first step has learning rate 0;
// cosine_warmup_with_min_lr, warmup_stable_decay and DeepSpeed's differ. baseLR is the learning rate that the factor
// multiplies; only schedules that end at an absolute learning rate read it. kwargs (lr_scheduler_kwargs; may be nil)
// are the schedule's own settings, which docs/arguments.md lists with their defaults. The values are Go or JSON numbers
// and strings; nil counts as not given. cosine_with_min_lr and cosine_warmup_with_min_lr require one of min_lr and
// min_lr_rate, and warmup_stable_decay num_decay_steps. Where they are not given, timescale is warmup (10000 if that is
// 0), num_stable_steps is total − warmup − num_decay_steps, and total_num_steps is total.
//
// The error lists every fault: an unknown name or key, a value of a wrong type or out of range.
func NewSchedule(name string, warmup, total int64, baseLR float64, kwargs map[string]any) (Schedule, error) {
	row, known := catalog.ScheduleNamed(name)
	if row.ByMetric {
		return nil, fmt.Errorf("optim: schedule %s follows a metric of evaluations, not the steps: want "+
			"NewMetricSchedule", name)
	}
	if !known {
		return nil, fmt.Errorf("optim: schedule is %q: want one of %s", name, strings.Join(ScheduleNames(), ", "))
	}
	var faults []error
	require := func(ok bool, format string, a ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("optim: schedule "+name+": "+format, a...))
		}
	}
	require(warmup >= 0, "warm-up is %d steps: want 0 or more", warmup)
	require(total >= 0, "total is %d steps: want 0 or more", total)
	require(baseLR >= 0 && !math.IsInf(baseLR, 1), "base learning rate is %v: want a finite number of 0 or more",
		baseLR)
	for _, want := range row.Wants(kwargs, baseLR) {
		require(false, "the settings are %v: want %s", kwargs, want)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return schedules[name](&scheduleSpec{warmup: warmup, total: total, baseLR: baseLR,
		Values: row.Settings.Fill(kwargs)}), nil
}

// newConstant: 1.
func newConstant(*scheduleSpec) Schedule {
	return ScheduleFunc(func(int64) float64 { return 1 })
}

// newConstantWithWarmup: 1 after the warm-up.
func newConstantWithWarmup(spec *scheduleSpec) Schedule {
	return afterShapedWarmup(spec, func(int64) float64 { return 1 })
}

// newLinear: falls from 1 at the end of the warm-up to 0 at the end of the run, and stays there.
func newLinear(spec *scheduleSpec) Schedule {
	w, total := spec.warmup, spec.total
	return afterShapedWarmup(spec, func(step int64) float64 {
		return max(0, float64(total-step)/float64(max(1, total-w)))
	})
}

// newInverseSqrt: 1/√((s + ts − w)/ts) with timescale ts: 1 at the end of the warm-up, then falling for ever.
func newInverseSqrt(spec *scheduleSpec) Schedule {
	w := float64(spec.warmup)
	timescale := w
	if w == 0 {
		timescale = 10000
	}
	timescale = spec.Number("timescale", timescale)
	return afterWarmup(spec.warmup, func(step int64) float64 {
		return 1 / math.Sqrt((float64(step)+timescale-w)/timescale)
	})
}

// afterWarmup rises linearly from 0 at step 0 and hands over to rest from step w on.
func afterWarmup(w int64, rest ScheduleFunc) ScheduleFunc {
	return func(step int64) float64 {
		if step < w {
			return float64(step) / float64(max(1, w))
		}
		return rest(step)
	}
}

// afterShapedWarmup is afterWarmup or, with the setting warmup_type log, DeepSpeed's warm-up: log(s+1)/log(w).
func afterShapedWarmup(spec *scheduleSpec, rest ScheduleFunc) Schedule {
	w := spec.warmup
	if spec.Text("warmup_type") == "linear" {
		return afterWarmup(w, rest)
	}
	return ScheduleFunc(func(step int64) float64 {
		if step < w {
			return math.Log(float64(step+1)) / math.Log(float64(max(2, w)))
		}
		return rest(step)
	})
}

// scheduleSpec is what NewSchedule was asked for: checked, with the defaults of settings that have one.
type scheduleSpec struct {
	catalog.Values
	warmup, total int64
	baseLR        float64
}

// number is a setting that is there, or else NaN.
func (s *scheduleSpec) number(key string) float64 { return s.Number(key, math.NaN()) }

// steps is a number of steps, or missing.
func (s *scheduleSpec) steps(key string, missing int64) int64 {
	return int64(s.Number(key, float64(missing)))
}
