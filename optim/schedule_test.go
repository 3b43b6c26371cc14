// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lockstep-ml/lockstep/optim"
)

func rates(t *testing.T, name string, warmup, total int64, lr float64, kwargs map[string]any, n int) []float64 {
	s, err := optim.NewSchedule(name, warmup, total, lr, kwargs)
	require.NoError(t, err)
	out := make([]float64, n)
	for i := range out {
		out[i] = lr * s.Factor(int64(i))
	}
	return out
}

// The learning rates of ten steps at base 10 with two steps of warm-up.
func TestScheduleTellTales(t *testing.T) {
	for _, c := range []struct {
		name   string
		kwargs map[string]any
		want   []float64
	}{
		{"constant", nil, []float64{10, 10, 10, 10, 10, 10, 10, 10, 10, 10}},
		{"constant_with_warmup", nil, []float64{0, 5, 10, 10, 10, 10, 10, 10, 10, 10}},
		{"linear", nil, []float64{0, 5, 10, 8.75, 7.5, 6.25, 5, 3.75, 2.5, 1.25, 0, 0}},
		{"constant_with_warmup", map[string]any{"warmup_type": "log"}, []float64{0, 10, 10, 10}},
		{"linear", map[string]any{"warmup_type": "log"}, []float64{0, 10, 10, 8.75, 7.5}},
		{"cosine", nil, []float64{0, 5, 10, 9.619, 8.535, 6.913, 5, 3.087, 1.464, 0.381, 0}},
		{"cosine_with_restarts", map[string]any{"num_cycles": 2},
			[]float64{0, 5, 10, 8.536, 5, 1.464, 10, 8.536, 5, 1.464, 0, 0}},
		{"polynomial", map[string]any{"power": 2.0, "lr_end": 1e-7},
			[]float64{0, 5, 10, 7.656, 5.625, 3.906, 2.5, 1.406, 0.625, 0.156, 1e-7, 1e-7}},
		{"inverse_sqrt", nil, []float64{0, 5, 10, 8.165, 7.071, 6.325, 5.774, 5.345, 5, 4.714}},
		{"warmup_stable_decay", map[string]any{"num_stable_steps": 2, "num_decay_steps": 3, "min_lr_ratio": 0.1},
			[]float64{1, 5.5, 10, 10, 10, 7.75, 3.25, 1, 1, 1}},
		{"warmup_stable_decay", map[string]any{"num_decay_steps": 4, "decay_type": "linear", "warmup_type": "cosine"},
			[]float64{0, 5, 10, 10, 10, 10, 10, 7.5, 5, 2.5, 0}},
		{"warmup_stable_decay", map[string]any{"num_decay_steps": 4, "decay_type": "1-sqrt", "warmup_type": "1-sqrt"},
			[]float64{0, 2.929, 10, 10, 10, 10, 10, 5, 2.929, 1.340, 0}},
	} {
		got := rates(t, c.name, 2, 10, 10, c.kwargs, len(c.want))
		require.InDeltaSlice(t, c.want, got, 1e-3, "%s %v: %v", c.name, c.kwargs, got)
	}
}

func TestScheduleMinLR(t *testing.T) {
	kwargs := map[string]any{"min_lr": 1e-5}
	ends := rates(t, "cosine_with_min_lr", 2, 10, 0.2, kwargs, 11)
	require.InDelta(t, 0.2, ends[2], 1e-15)
	require.InDelta(t, 1e-5, ends[10], 1e-15)
	ahead := rates(t, "cosine_warmup_with_min_lr", 2, 10, 0.2, kwargs, 10)
	require.InDelta(t, 0.1, ahead[0], 1e-15)
	require.InDelta(t, 0.2, ahead[1], 1e-15)
	require.InDelta(t, 1e-5, ahead[9], 1e-15)
	require.Equal(t, ends, rates(t, "cosine_with_min_lr", 2, 10, 0.2, map[string]any{"min_lr_rate": 5e-5}, 11))
	rate := rates(t, "cosine_warmup_with_min_lr", 3, 10, 1, map[string]any{"min_lr_rate": 0.5, "warmup_lr_rate": 0.2},
		10)
	require.InDeltaSlice(t, []float64{0.2, 0.6, 1}, rate[:3], 1e-15)
	require.InDelta(t, 0.5, rate[9], 1e-15)
}

func TestScheduleInverseSqrtTimescale(t *testing.T) {
	require.InDelta(t, 1/math.Sqrt(2), rates(t, "inverse_sqrt", 0, 10, 1, nil, 10001)[10000], 1e-15,
		"10000 without warm-up")
	require.InDelta(t, 0.5, rates(t, "inverse_sqrt", 3, 10, 1, map[string]any{"timescale": json.Number("4")}, 16)[15],
		1e-15)
}

// Whatever the lengths, a factor is a finite number of at least 0, and at most 1.
func TestScheduleFactorRange(t *testing.T) {
	kwargs := map[string]map[string]any{
		"cosine_with_min_lr":        {"min_lr_rate": 0.1},
		"cosine_warmup_with_min_lr": {"min_lr_rate": 0.1, "warmup_lr_rate": 0.3},
		"warmup_stable_decay":       {"num_decay_steps": 3, "num_stable_steps": 4},
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(optim.ScheduleNames()).Draw(t, "name")
		warmup, total := rapid.Int64Range(0, 20).Draw(t, "warmup"), rapid.Int64Range(0, 20).Draw(t, "total")
		s, err := optim.NewSchedule(name, warmup, total, 0.1, kwargs[name])
		require.NoError(t, err)
		for step := range int64(50) {
			f := s.Factor(step)
			require.True(t, f >= 0 && f <= 1+1e-12, "%s: factor %v at step %d", name, f, step)
		}
	})
}

func TestScheduleErrors(t *testing.T) {
	_, err := optim.NewSchedule("cosin", 0, 1, 1, nil)
	require.EqualError(t, err, `optim: schedule is "cosin": want one of WarmupCosineLR, WarmupDecayLR, WarmupLR, `+
		`constant, constant_with_warmup, cosine, cosine_warmup_with_min_lr, cosine_with_min_lr, `+
		`cosine_with_restarts, inverse_sqrt, linear, polynomial, warmup_stable_decay`)
	for _, c := range []struct {
		name          string
		warmup, total int64
		lr            float64
		kwargs        map[string]any
		want          []string
	}{
		{"constant", -1, -2, math.NaN(), map[string]any{"power": 2}, []string{"warm-up is -1 steps: want 0 or more",
			"total is -2 steps: want 0 or more", "base learning rate is NaN: want a finite number of 0 or more",
			"the settings are map[power:2]: want none, since constant has no settings of its own"}},
		{"cosine", 0, 1, 1, map[string]any{"num_cycles": "two", "cycles": 2}, []string{
			"the settings are map[cycles:2 num_cycles:two]: want keys from num_cycles for cosine, not cycles",
			"the settings are map[cycles:2 num_cycles:two]: want num_cycles to be a number ≥ 0"}},
		{"cosine_with_restarts", 0, 1, 1, map[string]any{"num_cycles": -1},
			[]string{"the settings are map[num_cycles:-1]: want num_cycles to be a number ≥ 0"}},
		{"polynomial", 0, 1, 1e-8, nil,
			[]string{"the settings are map[]: want lr_end (1e-07) to be below learning_rate (1e-08) for polynomial"}},
		{"inverse_sqrt", 0, 1, 1, map[string]any{"timescale": 0},
			[]string{"the settings are map[timescale:0]: want timescale to be a number > 0"}},
		{"cosine_with_min_lr", 0, 1, 1, nil,
			[]string{"the settings are map[]: want either min_lr or min_lr_rate for cosine_with_min_lr"}},
		{"cosine_warmup_with_min_lr", 0, 1, 1, map[string]any{"min_lr": 1, "min_lr_rate": 2}, []string{
			"the settings are map[min_lr:1 min_lr_rate:2]: want either min_lr or min_lr_rate for " +
				"cosine_warmup_with_min_lr"}},
		{"cosine_with_min_lr", 0, 1, 0, map[string]any{"min_lr": 0.1}, []string{"the settings are map[min_lr:0.1]: " +
			"want min_lr_rate in place of min_lr, as learning_rate is 0, for cosine_with_min_lr"}},
		{"WarmupLR", 0, 1, 0, map[string]any{"warmup_min_lr": 0.1}, []string{"the settings are " +
			"map[warmup_min_lr:0.1]: want warmup_min_lr to be 0, as learning_rate is, for WarmupLR"}},
		{"warmup_stable_decay", 0, 1, 1, nil,
			[]string{"the settings are map[]: want num_decay_steps for warmup_stable_decay"}},
		{"warmup_stable_decay", 0, 10, 1, map[string]any{"num_decay_steps": 1.5, "decay_type": "sqrt"}, []string{
			"the settings are map[decay_type:sqrt num_decay_steps:1.5]: want decay_type to be one of linear, cosine, " +
				"1-sqrt", "the settings are map[decay_type:sqrt num_decay_steps:1.5]: want num_decay_steps to be a " +
				"whole number ≥ 0"}},
	} {
		_, err := optim.NewSchedule(c.name, c.warmup, c.total, c.lr, c.kwargs)
		prefix := "optim: schedule " + c.name + ": "
		require.EqualError(t, err, prefix+strings.Join(c.want, "\n"+prefix))
	}
}

// DeepSpeed's warm-up rises as the logarithm of the step: log(s+1)/log(w).
func TestLogarithmicWarmup(t *testing.T) {
	got := rates(t, "constant_with_warmup", 8, 20, 10, map[string]any{"warmup_type": "log"}, 10)
	require.InDeltaSlice(t, []float64{0, 3.333, 5.283, 6.667, 7.740, 8.617, 9.358, 10, 10, 10}, got, 1e-3)
}
