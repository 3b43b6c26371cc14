// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/trainer"
)

// worse is a metric that grows from evaluation to evaluation: the first that counts is the best.
type worse struct{ cost float64 }

func (w *worse) Reset() { w.cost++ }

func (*worse) Update(*nn.Ctx, models.Output, *data.Batch) error { return nil }

func (w *worse) Compute(trainer.EvalLoss) map[string]float64 {
	return map[string]float64{"cost": w.cost}
}

// best are arguments of a run that saves and evaluates, and watches cost.
func best(set ...func(*args.TrainingArguments)) *args.TrainingArguments {
	return lineArgs(append([]func(*args.TrainingArguments){func(a *args.TrainingArguments) {
		a.EvalStrategy, a.EvalSteps = args.StrategySteps, new(6.0)
		a.SaveStrategy, a.SaveSteps = args.StrategySteps, 6
		a.MetricForBestModel, a.GreaterIsBetter = "cost", new(false)
	}}, set...)...)
}

func evaluated(w *worse) []trainer.Option {
	src := source(points(64))
	return []trainer.Option{trainer.WithTrainData(src), trainer.WithEvalData(src), trainer.WithMetrics(w)}
}

func TestEvaluationBeforeTheFirstStepIsNoCandidateForTheBest(t *testing.T) {
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1),
		best(func(a *args.TrainingArguments) { a.EvalOnStart, a.LoadBestModelAtEnd = true, true }),
		evaluated(&worse{})...)
	_, err := tr.Train()
	require.NoError(t, err)
	require.EqualValues(t, 6, *tr.State().BestGlobalStep)
	require.EqualValues(t, 2, *tr.State().BestMetric)
	require.Equal(t, "checkpoint-6", *tr.State().BestModelCheckpoint)

	for _, watched := range []bool{true, false} { // with and without metric_for_best_model
		stopping := &callbacks.EarlyStopping{Patience: 2}
		set := func(a *args.TrainingArguments) {
			a.EvalOnStart = true
			if !watched {
				a.MetricForBestModel, a.GreaterIsBetter, a.LearningRate = "", nil, 0 // the loss stays what it is
			}
		}
		tr = newTrainer(vfs.NewMem(), newMLP(t, 1, 1), best(set),
			append(evaluated(&worse{}), trainer.WithCallbacks(stopping))...)
		res, err := tr.Train()
		require.NoError(t, err)
		require.EqualValues(t, 18, res.GlobalStep, "the best at step 6, worse ones at 12 and 18")
	}
}

// save_strategy best saves nothing where the metric never is a number, as in transformers: a warning says so.
func TestMetricThatIsNotFiniteIsNamed(t *testing.T) {
	for _, cost := range []float64{math.NaN(), math.Inf(-1), 0} {
		var log messages
		tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1),
			best(func(a *args.TrainingArguments) { a.SaveStrategy = args.StrategyBest }),
			append(evaluated(&worse{cost: cost}), trainer.WithLogger(log.logger()))...)
		_, err := tr.Train()
		require.NoError(t, err)
		require.Equal(t, cost == 0, tr.State().BestMetric != nil)
		require.Equal(t, cost != 0, strings.Contains(log.String(), "metric_for_best_model is not finite"), "%g", cost)
	}
}

func TestBestCheckpointIsFoundWhereEvaluationsFollowSaves(t *testing.T) {
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1),
		best(func(a *args.TrainingArguments) { a.EvalStrategy, a.SaveSteps = args.StrategyEpoch, 8 }),
		evaluated(&worse{})...)
	_, err := tr.Train()
	require.NoError(t, err)
	require.EqualValues(t, 8, *tr.State().BestGlobalStep)
	require.Equal(t, "checkpoint-8", *tr.State().BestModelCheckpoint,
		"an epoch's evaluation comes after the save of its last step")
}

func TestBestStepIsOneThatCanBeSaved(t *testing.T) {
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1),
		best(func(a *args.TrainingArguments) { a.SaveStrategy = args.StrategyNo }), evaluated(&worse{})...)
	_, err := tr.Train()
	require.NoError(t, err)
	require.EqualValues(t, 1, *tr.State().BestMetric)
	require.Nil(t, tr.State().BestGlobalStep)
	require.Nil(t, tr.State().BestModelCheckpoint)
}

func TestMetricsAreLeftOutUnderPredictionLossOnly(t *testing.T) {
	lossOnly := func(a *args.TrainingArguments) { a.PredictionLossOnly = true }
	w := &worse{}
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs(lossOnly), evaluated(w)...)
	m, err := tr.Evaluate()
	require.NoError(t, err)
	require.Contains(t, m, "eval_loss")
	require.NotContains(t, m, "eval_cost")
	require.Zero(t, w.cost)

	_, err = newTrainer(vfs.NewMem(), newMLP(t, 1, 1), best(lossOnly), evaluated(&worse{})...).Train()
	requireOneError(t, err, "metric_for_best_model", "cost", "want one of eval_loss")
}
