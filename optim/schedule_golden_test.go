// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
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
