// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/jsonfloat"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// metricCase is a case of testdata/metric_schedules.py.
type metricCase struct {
	Type    string
	LR      []float64
	Kwargs  map[string]any
	Metrics []jsonfloat.Float
	Changes map[int][]float64
}

func metricCases(t *testing.T) (cases []metricCase) {
	text, err := os.ReadFile("testdata/metric_schedules.json")
	require.NoError(t, err)
	golden := struct{ Cases *[]metricCase }{&cases}
	require.NoError(t, json.Unmarshal(text, &golden))
	require.Len(t, cases, 200)
	return cases
}

// The rates of torch's ReduceLROnPlateau and of transformers' GreedyLR, to the last bit, in a run that is saved and
// resumed after every evaluation.
func TestMetricSchedulesAgainstTorchAndTransformers(t *testing.T) {
	for i, c := range metricCases(t) {
		made := func() optim.MetricSchedule {
			s, err := optim.NewMetricSchedule(c.Type, c.LR, c.Kwargs)
			require.NoError(t, err, "%+v", c.Kwargs)
			return s
		}
		s, want := made(), c.LR
		for n, metric := range c.Metrics {
			require.Equal(t, want, s.Rates(), "case %d, before metric %d", i, n)
			s.Observe(float64(metric))
			if changed := c.Changes[n+1]; changed != nil {
				want = changed
			}
			text, err := json.Marshal(s)
			require.NoError(t, err)
			s = made()
			require.NoError(t, json.Unmarshal(text, s), "%s", text)
		}
		require.Equal(t, want, s.Rates())
	}
}

func TestMetricSchedulesRefuse(t *testing.T) {
	rates := []float64{0.1, 0.2}
	for want, kwargs := range map[string]map[string]any{
		"want factor to be a number in [0, 1)":                {"factor": 1},
		"want mode to be one of min, max":                     {"mode": "auto"},
		"min_lr is [1 2 3]: want a number, or one for each o": {"min_lr": []any{1., 2., 3.}},
		"want min_lr to be a number ≥ 0, or a list with one":  {"min_lr": []any{1., -2.}},
		"want patience to be a whole number ≥ 0":              {"patience": []any{1, 2}},
		"want keys from mode, ":                               {"speed": 1},
	} {
		_, err := optim.NewMetricSchedule("reduce_lr_on_plateau", rates, kwargs)
		require.ErrorContains(t, err, want)
	}
	_, err := optim.NewMetricSchedule("linear", rates, nil)
	require.EqualError(t, err,
		`optim: schedule is "linear": want one that follows a metric: greedy, reduce_lr_on_plateau`)
	_, err = optim.NewSchedule("greedy", 0, 10, 0.1, nil)
	require.ErrorContains(t, err, "want NewMetricSchedule")

	for _, name := range []string{"greedy", "reduce_lr_on_plateau"} {
		s, err := optim.NewMetricSchedule(name, rates, nil)
		require.NoError(t, err)
		text, err := json.Marshal(s)
		require.NoError(t, err)
		var state map[string]any
		require.NoError(t, json.Unmarshal(text, &state))
		for key, value := range map[string]any{"last_lr": []any{0.1}, "num_bad_epochs": -1, "cooldown_counter": 0.5,
			"best": "much"} {
			broken := maps.Clone(state)
			broken[key] = value
			text, err := json.Marshal(broken)
			require.NoError(t, err)
			require.Error(t, json.Unmarshal(text, s), "%s: %s", name, text)
			require.Equal(t, rates, s.Rates(), "a state that does not fit changes nothing")
		}
	}
}

func TestSetRates(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	opt := optim.SGD{}.New(c, []*optim.Group{{LR: 0.1}, {LR: 0.2}})
	opt.SetRates([]float64{0.5, 0.25})
	require.Equal(t, []float64{0.1, 0.2}, opt.BaseLRs())
	var rates []float64
	for _, g := range opt.Groups() {
		rates = append(rates, g.LR)
	}
	require.Equal(t, []float64{0.5, 0.25}, slices.Clone(rates))
	require.PanicsWithError(t, "optim.SetRates: 1 rates: want one for each of 2 groups", func() {
		opt.SetRates([]float64{1})
	})
}
