// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/optim"
)

// The learning rates of transformers' own schedules (testdata/schedules.py).
func TestSchedulesAgainstTransformers(t *testing.T) {
	text, err := os.ReadFile("testdata/schedules.json")
	require.NoError(t, err)
	type schedule struct {
		Type          string
		LR            float64
		Warmup, Total int64
		Kwargs        map[string]any
		Rates         []float64
	}
	var golden struct{ Cases, Refused []schedule }
	require.NoError(t, json.Unmarshal(text, &golden))
	seen := map[string]bool{}
	for _, c := range golden.Cases {
		got, err := optim.NewSchedule(c.Type, c.Warmup, c.Total, c.LR, c.Kwargs)
		require.NoError(t, err, "%+v", c)
		for step, want := range c.Rates {
			require.InDelta(t, want, c.LR*got.Factor(int64(step)), 1e-14*c.LR, "step %d of %+v", step, c)
		}
		seen[c.Type] = true
	}
	require.Len(t, seen, len(optim.ScheduleNames())-3, "the others are DeepSpeed's")
	// transformers divides by zero at the end of a warm-up that fills the run; here the run is at its end then.
	for _, c := range golden.Refused {
		require.True(t, c.Type == "polynomial" && c.Warmup == c.Total, "%+v", c)
		got, err := optim.NewSchedule(c.Type, c.Warmup, c.Total, c.LR, c.Kwargs)
		require.NoError(t, err)
		end, ok := c.Kwargs["lr_end"].(float64)
		if !ok {
			end = 1e-7
		}
		require.InDelta(t, end, c.LR*got.Factor(c.Total), 1e-18)
	}
}

// 100 random settings of each of transformers' schedules (testdata/random_schedules.py).
func TestRandomSchedulesAgainstTransformers(t *testing.T) {
	f, err := os.Open("testdata/random_schedules.json.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	var golden struct {
		Cases []struct {
			Type          string
			LR            float64
			Warmup, Total int64
			Kwargs        map[string]any
			Steps         []int64
			Rates         []float64
		}
	}
	require.NoError(t, json.NewDecoder(z).Decode(&golden))
	seen := map[string]int{}
	for _, c := range golden.Cases {
		s, err := optim.NewSchedule(c.Type, c.Warmup, c.Total, c.LR, c.Kwargs)
		require.NoError(t, err, "%+v", c)
		for i, step := range c.Steps {
			require.InDelta(t, c.Rates[i], c.LR*s.Factor(step), 1e-13*c.LR, "step %d of %+v", step, c)
		}
		seen[c.Type]++
	}
	require.Len(t, seen, len(optim.ScheduleNames())-3, "the others are DeepSpeed's")
	for name, n := range seen {
		require.Equal(t, 100, n, name)
	}
}

// The learning rates of DeepSpeed's own schedulers (testdata/deepspeed_schedules.py).
func TestSchedulesAgainstDeepSpeed(t *testing.T) {
	text, err := os.ReadFile("testdata/deepspeed_schedules.json")
	require.NoError(t, err)
	var golden struct {
		Cases []struct {
			Type          string
			LR            float64
			Warmup, Total int64
			Kwargs        map[string]any
			Rates         []float64
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	require.Len(t, golden.Cases, 60)
	for _, c := range golden.Cases {
		got, err := optim.NewSchedule(c.Type, c.Warmup, c.Total, c.LR, c.Kwargs)
		require.NoError(t, err, "%+v", c)
		for step, want := range c.Rates {
			require.InDelta(t, want, c.LR*got.Factor(int64(step)), 1e-14*c.LR, "step %d of %+v", step, c)
		}
	}
}
