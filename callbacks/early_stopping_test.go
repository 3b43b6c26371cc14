// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
)

func TestEarlyStopping(t *testing.T) {
	nan := math.NaN()
	for name, c := range map[string]struct {
		stop    callbacks.EarlyStopping
		metric  string
		greater bool
		losses  []float64
		want    int // evaluations until the run ends, of 8
		reason  string
	}{
		"never worse": {callbacks.EarlyStopping{}, "loss", false, []float64{8, 7, 6, 5, 4, 3, 2, 1},
			8, ""},
		"patience 1, the default": {callbacks.EarlyStopping{}, "loss", false, []float64{8, 7, 7, 5}, 3,
			"no eval_loss below 7.0000 in 1 evaluation"},
		"patience 2 is in a row": {callbacks.EarlyStopping{Patience: 2}, "loss", false,
			[]float64{5, 6, 4, 4.5, 4, 3}, 5, "no eval_loss below 4.0000 in 2 evaluations"},
		"threshold must be exceeded": {callbacks.EarlyStopping{Threshold: 0.5}, "loss", false, []float64{5, 4.5},
			2, "no eval_loss below 5.0000 by more than 0.5 in 1 evaluation"},
		"small steps still move the best": {callbacks.EarlyStopping{Patience: 2, Threshold: 0.5}, "loss", false,
			[]float64{5, 4.7, 4.4, 0}, 3, "no eval_loss below 4.7000 by more than 0.5 in 2 evaluations"},
		"NaN is a failure": {callbacks.EarlyStopping{Patience: 2}, "loss", false, []float64{5, nan, nan}, 3,
			"no eval_loss below 5.0000 in 2 evaluations"},
		"no metric watched: eval_loss": {callbacks.EarlyStopping{Patience: 2}, "", false, []float64{5, 6, 4, 4.5, 4, 3},
			5, "no eval_loss below 4.0000 in 2 evaluations"},
		"greater is better": {callbacks.EarlyStopping{}, "loss", true, []float64{5, 6, 6}, 3,
			"no eval_loss above 6.0000 in 1 evaluation"},
		"a metric that does not exist": {callbacks.EarlyStopping{}, "accuracy", false, []float64{5}, 8, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := args.Default("out")
			a.EvalStrategy, a.NumTrainEpochs, a.MetricForBestModel, a.GreaterIsBetter = args.StrategyEpoch, 8, c.metric,
				&c.greater
			l := loop{args: a, microBatches: 2, evalLosses: c.losses,
				handler: callbacks.NewHandler(quiet, 0, &callbacks.Flow{}, &c.stop)}
			l.run(t)
			require.Equal(t, c.want, l.evaluations)
			want := callbacks.StopReason{}
			if c.reason != "" {
				want = callbacks.StopReason{Kind: callbacks.StopCallback, Callback: "EarlyStoppingCallback",
					Detail: c.reason}
			}
			require.Equal(t, want, l.control.StopReason)
		})
	}
}

func TestEarlyStoppingSettings(t *testing.T) {
	h := callbacks.NewHandler(quiet, 0, &callbacks.Flow{}, &callbacks.EarlyStopping{Patience: -1, Threshold: -2})
	require.EqualError(t, fire(h, callbacks.TrainBegin), "callback EarlyStoppingCallback at train_begin: "+
		"eval_strategy is no: want steps or epoch: early stopping needs evaluations\npatience is -1: want 0 or "+
		"more\nthreshold is -2: want 0 or more")
}

// The count continues after a resume.
func TestEarlyStoppingState(t *testing.T) {
	a := args.Default("out")
	evaluate := func(s *callbacks.EarlyStopping, loss float64) bool {
		e := &callbacks.Event{Args: a, State: &callbacks.State{GlobalStep: 1}, Control: &callbacks.Control{},
			Metrics: map[string]float64{"eval_loss": loss}}
		require.NoError(t, s.OnEvaluate(e))
		return e.Control.ShouldTrainingStop
	}
	first := &callbacks.EarlyStopping{Patience: 3}
	for _, loss := range []float64{2, 3, 3} {
		require.False(t, evaluate(first, loss))
	}
	second := &callbacks.EarlyStopping{Patience: 3}
	require.NoError(t, callbacks.NewHandler(quiet, 0,
		second).ImportStates(callbacks.NewHandler(quiet, 0, first).ExportStates(&callbacks.Control{}),
		&callbacks.Control{}))
	require.True(t, evaluate(second, 2.5))
	for _, bad := range []map[string]any{{}, {"early_stopping_patience_counter": -1.0},
		{"early_stopping_patience_counter": 1.0, "best": "low"}} {
		require.Error(t, second.ImportState(callbacks.Exported{Attributes: bad}))
	}
}
