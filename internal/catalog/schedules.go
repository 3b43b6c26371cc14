// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"slices"
	"strings"
)

// Schedule is a row of Schedules.
type Schedule struct {
	Name string // HuggingFace's value of lr_scheduler_type, or the name of DeepSpeed's class
	// ByMetric: the schedule follows a metric of evaluations in place of the steps.
	ByMetric bool
	// Settings are those of lr_scheduler_kwargs.
	Settings Settings
	// Want completes the phrase "want …" if the settings do not fit each other or the learning rate lr, which is NaN
	// where it is not known; nil: they always do. given has the defaults too.
	Want func(given Values, lr float64) string
}

// Schedules is the table of all learning-rate schedules. Each has a constructor in package optim.
var Schedules = []Schedule{
	{Name: "constant"},
	{Name: "constant_with_warmup", Settings: Settings{{"warmup_type", "linear", rises}}},
	{Name: "linear", Settings: Settings{{"warmup_type", "linear", rises}}},
	{Name: "cosine", Settings: Settings{{"num_cycles", 0.5, NonNegative}}},
	{Name: "cosine_with_restarts", Settings: Settings{{"num_cycles", 1.0, NonNegative}}},
	{Name: "polynomial", Settings: Settings{{"lr_end", 1e-7, NonNegative}, {"power", 1.0, NonNegative}},
		Want: wantLowEnd},
	{Name: "inverse_sqrt", Settings: Settings{{"timescale", nil, Positive}}},
	{Name: "cosine_with_min_lr", Settings: minLR, Want: wantMinLR},
	{Name: "cosine_warmup_with_min_lr", Settings: append(minLR, Setting{"warmup_lr_rate", nil, UnitRatio}),
		Want: wantMinLR},
	{Name: "warmup_stable_decay", Settings: Settings{{"num_decay_steps", nil, Count}, {"num_stable_steps", nil, Count},
		{"warmup_type", "linear", curves}, {"decay_type", "cosine", curves}, {"min_lr_ratio", 0.0, UnitRatio},
		{"num_cycles", 0.5, NonNegative}}, Want: wantDecaySteps},
	{Name: "reduce_lr_on_plateau", ByMetric: true, Settings: Settings{{"mode", "min", modes},
		{"factor", 0.1, DecayRate}, {"patience", 10.0, Count}, {"threshold", 1e-4, NonNegative},
		{"threshold_mode", "rel", thresholds}, {"cooldown", 0.0, Count}, {"min_lr", 0.0, Rates},
		{"eps", 1e-8, NonNegative}}},
	{Name: "greedy", ByMetric: true, Settings: Settings{{"mode", "min", modes}, {"factor", 0.95, Share},
		{"patience", 10.0, Count}, {"threshold", 1e-6, NonNegative}, {"threshold_mode", "abs", thresholds},
		{"cooldown", 0.0, Count}, {"warmup", 0.0, Count}, {"min_lr", 1e-3, Rates}, {"max_lr", 1.0, Rates},
		{"eps", 1e-8, NonNegative}, {"verbose", false, Switch}, {"smooth", false, Switch},
		{"window_size", 50.0, PositiveInt}, {"reset_start", 500.0, Count}}},

	{Name: "WarmupLR", Settings: warmupLR, Want: wantWarmupMinLR},
	{Name: "WarmupDecayLR", Settings: append(warmupLR, Setting{"total_num_steps", nil, Count}), Want: wantWarmupMinLR},
	{Name: "WarmupCosineLR", Settings: Settings{{"warmup_min_ratio", 0.0, UnitRatio},
		{"cos_min_ratio", 0.0001, UnitRatio}, {"warmup_type", "log", rises}, {"total_num_steps", nil, Count}}},
}

// Rules and settings that several schedules share.
var (
	rises      = oneOf("linear", "log")
	curves     = oneOf("linear", "cosine", "1-sqrt")
	modes      = oneOf("min", "max")
	thresholds = oneOf("rel", "abs")
	minLR      = Settings{{"min_lr", nil, NonNegative}, {"min_lr_rate", nil, NonNegative},
		{"num_cycles", 0.5, NonNegative}}
	warmupLR = Settings{{"warmup_min_lr", 0.0, NonNegative}, {"warmup_type", "log", rises}}
)

func wantLowEnd(given Values, lr float64) string {
	if end := given.Number("lr_end", 0); end >= lr {
		return fmt.Sprintf("lr_end (%g) to be below learning_rate (%g)", end, lr)
	}
	return ""
}

func wantMinLR(given Values, lr float64) string {
	switch {
	case (given["min_lr"] == nil) == (given["min_lr_rate"] == nil):
		return "either min_lr or min_lr_rate"
	case given["min_lr"] != nil && lr == 0:
		return "min_lr_rate in place of min_lr, as learning_rate is 0,"
	}
	return ""
}

func wantDecaySteps(given Values, _ float64) string {
	if given["num_decay_steps"] == nil {
		return "num_decay_steps"
	}
	return ""
}

func wantWarmupMinLR(given Values, lr float64) string {
	if least := given.Number("warmup_min_lr", 0); least != 0 && lr == 0 {
		return "warmup_min_lr to be 0, as learning_rate is,"
	}
	return ""
}

// ScheduleNames lists the values of lr_scheduler_type, in the table's order.
func ScheduleNames() (names []string) {
	for _, s := range Schedules {
		names = append(names, s.Name)
	}
	return names
}

// ScheduleNamed finds a row.
func ScheduleNamed(name string) (s Schedule, ok bool) {
	i := slices.IndexFunc(Schedules, func(s Schedule) bool { return s.Name == name })
	if i < 0 {
		return s, false
	}
	return Schedules[i], true
}

// Wants completes the phrase "want …" for each fault of the settings. lr is the learning rate; NaN: it is not known.
func (s Schedule) Wants(given Values, lr float64) []string {
	wants := s.Settings.Wants(s.Name, given)
	if s.Want != nil && len(wants) == 0 {
		if want := s.Want(s.Settings.Fill(given), lr); want != "" {
			wants = append(wants, want+" for "+s.Name)
		}
	}
	return wants
}

// ScheduleUsage lists the settings of all schedules that have any.
func ScheduleUsage() string {
	var words []string
	for _, s := range Schedules {
		if len(s.Settings) > 0 {
			words = append(words, s.Name+": "+s.Settings.usage())
		}
	}
	return strings.Join(words, "; ")
}
