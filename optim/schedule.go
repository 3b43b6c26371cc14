// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
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

// ScheduleNames gives the names that NewSchedule knows, sorted.
func ScheduleNames() []string { return slices.Sorted(maps.Keys(schedules)) }

// NewSchedule makes a schedule of HuggingFace's by its name (lr_scheduler_type), with the formulas of transformers'
// optimization module, or one of DeepSpeed's by the name of its class, with the formulas of its lr_schedules.
//
// warmup is the number of warm-up steps w and total the number T of steps in the run; neither is negative. In all
// schedules that warm up, the factor of a step s < w is s/w, so that the first step has learning rate 0;
// cosine_warmup_with_min_lr, warmup_stable_decay and DeepSpeed's differ as they say. baseLR is the learning rate that
// the factor multiplies; only schedules that end at an absolute learning rate read it. kwargs (lr_scheduler_kwargs; may
// be nil) has these keys:
//
//	constant                   none
//	constant_with_warmup       warmup_type: linear (default), or log as in DeepSpeed
//	linear                     likewise
//	cosine                     num_cycles (0.5)
//	cosine_with_restarts       num_cycles (1)
//	polynomial                 lr_end (1e-7), power (1)
//	inverse_sqrt               timescale (warmup, or 10000 without)
//	cosine_with_min_lr         min_lr or min_lr_rate (one is required), num_cycles (0.5)
//	cosine_warmup_with_min_lr  likewise, and warmup_lr_rate (none)
//	warmup_stable_decay        num_decay_steps (required), num_stable_steps (total − warmup − num_decay_steps),
//	                           warmup_type and decay_type (linear, cosine or 1-sqrt; linear and cosine),
//	                           min_lr_ratio (0), num_cycles (0.5)
//	WarmupLR                   warmup_min_lr (0), warmup_type (log, or linear)
//	WarmupDecayLR              likewise, and total_num_steps (total)
//	WarmupCosineLR             warmup_min_ratio (0), cos_min_ratio (0.0001), warmup_type (log, or linear),
//	                           total_num_steps (total)
//
// The values are Go or JSON numbers and strings; nil counts as not given. The error lists every fault: an unknown name
// or key, a value of a wrong type or out of range.
func NewSchedule(name string, warmup, total int64, baseLR float64, kwargs map[string]any) (Schedule, error) {
	construct, ok := schedules[name]
	if !ok {
		return nil, fmt.Errorf("optim: schedule is %q: want one of %s", name, strings.Join(ScheduleNames(), ", "))
	}
	spec := &scheduleSpec{name: name, warmup: warmup, total: total, baseLR: baseLR, kwargs: kwargs}
	spec.require(warmup >= 0, "warm-up is %d steps: want 0 or more", warmup)
	spec.require(total >= 0, "total is %d steps: want 0 or more", total)
	spec.require(baseLR >= 0 && !math.IsInf(baseLR, 1), "base learning rate is %v: want a finite number of 0 or more",
		baseLR)
	s := construct(spec)
	if err := spec.finish(); err != nil {
		return nil, err
	}
	return s, nil
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
	timescale := spec.number("timescale", math.NaN())
	if math.IsNaN(timescale) {
		if timescale = w; w == 0 {
			timescale = 10000
		}
	}
	spec.require(timescale > 0, "timescale is %v: want above 0", timescale)
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
	if spec.choice("warmup_type", "linear", "linear", "log") == "linear" {
		return afterWarmup(w, rest)
	}
	return ScheduleFunc(func(step int64) float64 {
		if step < w {
			return math.Log(float64(step+1)) / math.Log(float64(max(2, w)))
		}
		return rest(step)
	})
}

// scheduleSpec is what NewSchedule was asked for, and the faults found in it.
type scheduleSpec struct {
	name          string
	warmup, total int64
	baseLR        float64
	kwargs        map[string]any
	known         []string
	faults        []error
}

// require notes a fault unless ok.
func (s *scheduleSpec) require(ok bool, format string, a ...any) {
	if !ok {
		s.faults = append(s.faults, fmt.Errorf("optim: schedule %s: "+format, append([]any{s.name}, a...)...))
	}
}

// given gives the value of a key, and whether there is one.
func (s *scheduleSpec) given(key string) (any, bool) {
	s.known = append(s.known, key)
	v := s.kwargs[key]
	return v, v != nil
}

// number gives the finite number under key, or missing.
func (s *scheduleSpec) number(key string, missing float64) float64 {
	v, ok := s.given(key)
	if !ok {
		return missing
	}
	f, ok := asFloat(v)
	s.require(ok && !math.IsNaN(f) && !math.IsInf(f, 0), "%s is %#v: want a finite number", key, v)
	return f
}

// steps gives the whole number of steps, 0 or more, under key, or missing.
func (s *scheduleSpec) steps(key string, missing int64) int64 {
	v, ok := s.given(key)
	if !ok {
		return missing
	}
	f, ok := asFloat(v)
	s.require(ok && f >= 0 && f <= 1<<53 && f == math.Trunc(f), "%s is %#v: want a whole number of 0 or more", key, v)
	return int64(f)
}

// choice gives the string under key, one of allowed, or the first of them.
func (s *scheduleSpec) choice(key string, missing string, allowed ...string) string {
	v, ok := s.given(key)
	if !ok {
		return missing
	}
	text, _ := v.(string)
	s.require(slices.Contains(allowed, text), "%s is %#v: want one of %s", key, v, strings.Join(allowed, ", "))
	return text
}

// finish gives all faults, unknown keys included.
func (s *scheduleSpec) finish() error {
	for _, key := range slices.Sorted(maps.Keys(s.kwargs)) {
		if len(s.known) == 0 {
			s.require(false, "unknown key %q: want none", key)
		} else {
			s.require(slices.Contains(s.known, key), "unknown key %q: want %s", key, strings.Join(s.known, ", "))
		}
	}
	return errors.Join(s.faults...)
}

func asFloat(v any) (f float64, ok bool) {
	if n, ok := v.(interface{ Float64() (float64, error) }); ok { // json.Number
		f, err := n.Float64()
		return f, err == nil
	}
	switch r := reflect.ValueOf(v); {
	case r.CanFloat():
		return r.Float(), true
	case r.CanInt():
		return float64(r.Int()), true
	case r.CanUint():
		return float64(r.Uint()), true
	}
	return 0, false
}
