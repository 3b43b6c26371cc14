// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// trace runs a loop of epochs of microBatches each and gives what happened. change sets the arguments; the default is
// to do nothing.
func trace(t *testing.T, microBatches int64, change func(*args.TrainingArguments), more ...callbacks.Callback) *tracer {
	a := args.Default("out")
	a.LoggingStrategy, a.SaveStrategy = args.StrategyNo, args.StrategyNo
	a.NumTrainEpochs = 2
	change(a)
	tr := &tracer{}
	l := loop{args: a, microBatches: microBatches,
		handler: callbacks.NewHandler(quiet, 0, append([]callbacks.Callback{&callbacks.Flow{}, tr}, more...)...)}
	l.run(t)
	return tr
}

func TestEventOrder(t *testing.T) {
	step := "step_begin pre_optimizer_step optimizer_step step_end "
	two := "step_begin substep_end pre_optimizer_step optimizer_step step_end "
	for name, c := range map[string]struct {
		microBatches int64
		change       func(*args.TrainingArguments)
		want         string
	}{
		"nothing asked": {2, func(*args.TrainingArguments) {},
			"init_end train_begin epoch_begin " + step + step + "epoch_end epoch_begin " + step + step +
				"epoch_end log train_end"},
		"accumulation with a ragged tail": {3, func(a *args.TrainingArguments) {
			a.GradientAccumulationSteps, a.NumTrainEpochs = 2, 1
		},
			"init_end train_begin epoch_begin " + two + step + "epoch_end log train_end"},
		"everything at every step": {1, func(a *args.TrainingArguments) {
			a.LoggingStrategy, a.EvalStrategy, a.SaveStrategy = args.StrategySteps, args.StrategySteps,
				args.StrategySteps
			a.LoggingSteps, a.SaveSteps = 1, 1
		}, "init_end train_begin epoch_begin " + step + "log log evaluate save epoch_end epoch_begin " + step +
			"log log evaluate save epoch_end log train_end"},
		"everything at every epoch": {2, func(a *args.TrainingArguments) {
			a.LoggingStrategy, a.EvalStrategy, a.SaveStrategy = args.StrategyEpoch, args.StrategyEpoch,
				args.StrategyEpoch
			a.NumTrainEpochs = 1
		}, "init_end train_begin epoch_begin " + step + step + "epoch_end log log evaluate save log train_end"},
		"max_steps ends in an epoch": {3, func(a *args.TrainingArguments) { a.MaxSteps = 2 },
			"init_end train_begin epoch_begin " + step + step + "epoch_end log train_end"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, trace(t, c.microBatches, c.change).String()) })
	}
}

func TestFlowSteps(t *testing.T) {
	steps := func(log, eval, save float64) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) {
			a.LoggingStrategy, a.EvalStrategy, a.SaveStrategy = args.StrategySteps, args.StrategySteps,
				args.StrategySteps
			a.LoggingSteps, a.EvalSteps, a.SaveSteps = log, &eval, save
			a.MaxSteps = 10
		}
	}
	for name, c := range map[string]struct {
		change          func(*args.TrainingArguments)
		log, eval, save []int64
	}{
		"intervals, and a last evaluation and checkpoint off the boundary": {steps(3, 4, 4), []int64{3, 6, 9},
			[]int64{4, 8, 10}, []int64{4, 8, 10}},
		"on the boundary the last ones come once": {steps(5, 5, 5), []int64{5, 10}, []int64{5, 10}, []int64{5, 10}},
		"ratios are of max_steps, rounded up": {steps(0.25, 0.5, 0.5), []int64{3, 6, 9}, []int64{5, 10},
			[]int64{5, 10}},
		"logging_first_step": {func(a *args.TrainingArguments) { steps(4, 5, 5)(a); a.LoggingFirstStep = true },
			[]int64{1, 4, 8}, []int64{5, 10}, []int64{5, 10}},
		"eval_delay is the first step that may": {func(a *args.TrainingArguments) {
			steps(5, 2, 5)(a)
			a.EvalDelay = 4
		},
			[]int64{5, 10}, []int64{4, 6, 8, 10}, []int64{5, 10}},
		"eval_delay holds the last one off too": {func(a *args.TrainingArguments) {
			steps(5, 4, 5)(a)
			a.EvalDelay = 11
		},
			[]int64{5, 10}, nil, []int64{5, 10}},
		"intervals beyond the run": {steps(50, 50, 50), nil, []int64{10}, []int64{10}},
	} {
		t.Run(name, func(t *testing.T) {
			tr := trace(t, 4, c.change)
			require.Equal(t, c.log, tr.train, "log")
			require.Equal(t, c.eval, tr.steps[callbacks.Evaluate], "evaluate")
			require.Equal(t, c.save, tr.steps[callbacks.Save], "save")
			require.EqualValues(t, 10, tr.steps[callbacks.TrainEnd][0])
		})
	}
}

func TestFlowEpochs(t *testing.T) {
	tr := trace(t, 3, func(a *args.TrainingArguments) {
		a.LoggingStrategy, a.EvalStrategy, a.SaveStrategy = args.StrategyEpoch, args.StrategyEpoch, args.StrategyEpoch
		a.NumTrainEpochs, a.EvalDelay = 3, 2
	})
	require.Equal(t, []int64{3, 6, 9}, tr.train)
	require.Equal(t, []int64{6, 9}, tr.steps[callbacks.Evaluate])
	require.Equal(t, []int64{3, 6, 9}, tr.steps[callbacks.Save])
}

func TestFlowSaveBestIsNotFlows(t *testing.T) {
	tr := trace(t, 3, func(a *args.TrainingArguments) { a.SaveStrategy, a.SaveSteps = args.StrategyBest, 1 })
	require.Empty(t, tr.steps[callbacks.Save])
}

// A callback that asks for everything at every event shows which flags each event clears.
func TestFlagsAreCleared(t *testing.T) {
	h := callbacks.NewHandler(quiet, 0)
	for _, k := range callbacks.Kinds() {
		c := callbacks.Control{ShouldTrainingStop: true, ShouldEpochStop: true, ShouldSave: true, ShouldEvaluate: true,
			ShouldLog: true}
		require.NoError(t, h.Fire(k, &callbacks.Event{Control: &c}))
		want := callbacks.Control{ShouldTrainingStop: true, ShouldEpochStop: true, ShouldSave: true,
			ShouldEvaluate: true, ShouldLog: true}
		switch k {
		case callbacks.TrainBegin:
			want.ShouldTrainingStop = false
		case callbacks.EpochBegin:
			want.ShouldEpochStop = false
		case callbacks.StepBegin:
			want.ShouldSave, want.ShouldEvaluate, want.ShouldLog = false, false, false
		case callbacks.Log:
			want.ShouldLog = false
		case callbacks.Evaluate:
			want.ShouldEvaluate = false
		case callbacks.Save:
			want.ShouldSave = false
		}
		require.Equal(t, want, c, "%s", k)
	}
}

func TestKinds(t *testing.T) {
	require.Len(t, callbacks.Kinds(), 15)
	require.NotContains(t, callbacks.Kinds(), callbacks.Kind("push_begin"))
}

// stopper ends the first epoch at step 2 and the run at step 5.
type stopper struct{ callbacks.Base }

func (stopper) OnStepEnd(e *callbacks.Event) error {
	e.Control.ShouldEpochStop = e.State.GlobalStep == 2
	e.Control.ShouldTrainingStop = e.State.GlobalStep == 5
	return nil
}

func TestCallbackStops(t *testing.T) {
	tr := trace(t, 4, func(a *args.TrainingArguments) { a.NumTrainEpochs = 4 }, stopper{})
	require.Equal(t, []int64{0, 2}, tr.steps[callbacks.EpochBegin])
	require.Equal(t, []int64{2, 5}, tr.steps[callbacks.EpochEnd])
	require.Equal(t, []int64{5}, tr.steps[callbacks.TrainEnd])
	require.Equal(t, 2, strings.Count(tr.String(), "epoch_end"))
}
