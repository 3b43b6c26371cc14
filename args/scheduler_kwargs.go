// SPDX-License-Identifier: Apache-2.0

package args

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
)

// kwargRule says what one key of lr_scheduler_kwargs may hold.
type kwargRule struct {
	texts []string // a text out of these; otherwise a number
	ok    func(v float64) bool
	want  string
}

var (
	anyNonNegative = kwargRule{ok: func(v float64) bool { return v >= 0 }, want: "a number ≥ 0"}
	anyPositive    = kwargRule{ok: func(v float64) bool { return v > 0 }, want: "a number > 0"}
	unitRatio      = kwargRule{ok: func(v float64) bool { return v >= 0 && v <= 1 }, want: "a number in [0, 1]"}
	wholeSteps     = kwargRule{ok: func(v float64) bool {
		return v >= 0 && v <= maxExact && v == math.Trunc(v)
	}, want: "a whole number ≥ 0"}
	wholeCycles = kwargRule{ok: func(v float64) bool {
		return v >= 1 && v <= maxExact && v == math.Trunc(v)
	}, want: "a whole number ≥ 1"}
	warmupName = kwargRule{texts: []string{"linear", "log"}}
	curveName  = kwargRule{texts: []string{"linear", "cosine", "1-sqrt"}}
)

// schedulerKwargs lists the keys of lr_scheduler_kwargs by schedule, where it has
// any.
var schedulerKwargs = map[SchedulerType]map[string]kwargRule{
	SchedulerConstantWithWarmup: {"warmup_type": warmupName},
	SchedulerLinear:             {"warmup_type": warmupName},
	SchedulerCosine:             {"num_cycles": anyNonNegative},
	SchedulerCosineWithRestarts: {"num_cycles": anyNonNegative},
	SchedulerPolynomial:         {"lr_end": anyNonNegative, "power": anyNonNegative},
	SchedulerInverseSqrt:        {"timescale": anyPositive},
	SchedulerCosineWithMinLR: {"num_cycles": anyNonNegative, "min_lr": anyNonNegative,
		"min_lr_rate": anyNonNegative},
	SchedulerCosineWarmupWithMinLR: {"num_cycles": anyNonNegative, "min_lr": anyNonNegative,
		"min_lr_rate":    anyNonNegative,
		"warmup_lr_rate": unitRatio},
	SchedulerWarmupStableDecay: {"num_decay_steps": wholeSteps, "num_stable_steps": wholeSteps,
		"warmup_type": curveName,
		"decay_type":  curveName, "min_lr_ratio": unitRatio, "num_cycles": anyNonNegative},
	SchedulerWarmupLR:      {"warmup_type": warmupName, "warmup_min_lr": anyNonNegative},
	SchedulerWarmupDecayLR: {"warmup_type": warmupName, "warmup_min_lr": anyNonNegative, "total_num_steps": wholeSteps},
	SchedulerWarmupCosineLR: {"warmup_type": warmupName, "warmup_min_ratio": unitRatio, "cos_min_ratio": unitRatio,
		"total_num_steps": wholeSteps},
}

// polynomialEnd is HuggingFace's default of lr_end.
const polynomialEnd = 1e-7

// SchedulerNumber is a number of LRSchedulerKwargs, or fallback where it is not
// given.
func (a *TrainingArguments) SchedulerNumber(key string, fallback float64) float64 {
	if v, ok := number(a.LRSchedulerKwargs[key]); ok {
		return v
	}
	return fallback
}

// SchedulerText is a text of LRSchedulerKwargs, or fallback where it is not given.
func (a *TrainingArguments) SchedulerText(key, fallback string) string {
	if v, ok := a.LRSchedulerKwargs[key].(string); ok {
		return v
	}
	return fallback
}

// number reads any Go number, since programs write integers into the map too.
func number(v any) (float64, bool) {
	rv := reflect.ValueOf(v)
	switch {
	case rv.CanInt():
		return float64(rv.Int()), true
	case rv.CanUint():
		return float64(rv.Uint()), true
	case rv.CanFloat():
		return rv.Float(), true
	}
	return 0, false
}

// scheduleFault says what was wanted of lr_scheduler_kwargs, or nothing.
// withRate allows comparing with the learning rate.
func (a *TrainingArguments) scheduleFault(withRate bool) (want string) {
	rules := schedulerKwargs[a.LRSchedulerType]
	for _, key := range slices.Sorted(maps.Keys(a.LRSchedulerKwargs)) {
		rule, known := rules[key]
		if !known {
			return unknownKwarg(a.LRSchedulerType, key, slices.Sorted(maps.Keys(rules)))
		}
		if want := rule.fault(key, a.LRSchedulerKwargs[key]); want != "" {
			return want
		}
	}
	return a.scheduleRequirement(withRate)
}

func unknownKwarg(schedule SchedulerType, key string, keys []string) string {
	if len(keys) == 0 {
		return fmt.Sprintf("none, since %s has no settings of its own", schedule)
	}
	return fmt.Sprintf("keys from %s for %s, not %s", strings.Join(keys, ", "), schedule, key)
}

func (r kwargRule) fault(key string, value any) string {
	if r.texts != nil {
		if text, ok := value.(string); !ok || !slices.Contains(r.texts, text) {
			return fmt.Sprintf("%s to be one of %s", key, strings.Join(r.texts, ", "))
		}
		return ""
	}
	if v, ok := number(value); !ok || !finite(v) || !r.ok(v) {
		return key + " to be " + r.want
	}
	return ""
}

// scheduleRequirement holds what a schedule needs beyond single values.
func (a *TrainingArguments) scheduleRequirement(withRate bool) string {
	_, hasMin := a.LRSchedulerKwargs["min_lr"]
	_, hasRate := a.LRSchedulerKwargs["min_lr_rate"]
	_, hasDecay := a.LRSchedulerKwargs["num_decay_steps"]
	lr := a.LearningRate
	switch a.LRSchedulerType {
	case SchedulerCosineWithMinLR, SchedulerCosineWarmupWithMinLR:
		if hasMin == hasRate {
			return fmt.Sprintf("either min_lr or min_lr_rate for %s", a.LRSchedulerType)
		}
	case SchedulerWarmupStableDecay:
		if !hasDecay {
			return "num_decay_steps for warmup_stable_decay"
		}
	case SchedulerPolynomial:
		if end := a.SchedulerNumber("lr_end", polynomialEnd); withRate && end >= lr {
			return fmt.Sprintf("lr_end (%g) to be below learning_rate (%g)", end, lr)
		}
	}
	return ""
}
