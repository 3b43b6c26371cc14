// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer"
)

var errCtrlC = errors.New("the user has pressed Ctrl-C")

// interruption cancels a run's context at the n-th event of a kind.
type interruption struct {
	kind callbacks.Kind
	n    int
}

// train runs r on disk until the interruption.
func (i interruption) train(t *testing.T, r recipe, disk vfs.FS, change func(*args.TrainingArguments)) (*trainer.Result,
	*trainer.Trainer, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	seen, opts := 0, r.opts
	r.opts = func() []trainer.Option {
		list := []trainer.Option{on(i.kind, func(*callbacks.Event) error {
			if seen++; seen == i.n {
				cancel(errCtrlC)
			}
			return nil
		})}
		if opts != nil {
			list = append(list, opts()...)
		}
		return list
	}
	tr, _ := r.trainer(t, disk, change)
	res, err := tr.TrainContext(ctx)
	return res, tr, err
}

// TestInterruptedRunGoesOn interrupts a run at every kind of moment; each time the resumed
// run must end with the weights, checkpoints and records of the one that was left alone.
func TestInterruptedRunGoesOn(t *testing.T) {
	run := recipe{set: func(a *args.TrainingArguments) {
		a.SaveSteps, a.LoggingSteps = 12, 3
		a.EvalStrategy, a.EvalSteps, a.LoadBestModelAtEnd, a.EvalOnStart = args.StrategySteps, new(3.0), true, true
		a.PerDeviceEvalBatchSize = 16
	}}
	byEpoch := run
	byEpoch.set = func(a *args.TrainingArguments) {
		a.LoggingStrategy, a.EvalStrategy, a.SaveStrategy = args.StrategyEpoch, args.StrategyEpoch, args.StrategyEpoch
	}
	best := run
	best.set = func(a *args.TrainingArguments) {
		a.EvalStrategy, a.EvalSteps, a.SaveStrategy, a.MetricForBestModel = args.StrategySteps, new(3.0),
			args.StrategyBest, "loss"
	}
	two := run
	two.opts = func() []trainer.Option {
		return []trainer.Option{trainer.WithNamedEvalData("other", source(points(40)))}
	}
	cases := []struct {
		name string
		run  recipe
		interruption
		step int64 // after which it ends
	}{
		{"in step 1", run, interruption{callbacks.StepBegin, 1}, 1},
		{"in the middle of step 10", run, interruption{callbacks.PreOptimizerStep, 10}, 10},
		{"step 3 is logged and evaluated", run, interruption{callbacks.StepEnd, 3}, 3},
		{"the last step of an epoch", run, interruption{callbacks.StepEnd, 8}, 8},
		{"the end of an epoch", run, interruption{callbacks.EpochEnd, 1}, 8},
		{"in the evaluation after step 6", run, interruption{callbacks.PredictionStep, 9}, 6},
		{"in the evaluation after step 12", run, interruption{callbacks.PredictionStep, 17}, 12},
		{"in the last evaluation", run, interruption{callbacks.PredictionStep, 33}, 24},
		{"in the second set's evaluation", two, interruption{callbacks.PredictionStep, 12}, 3},
		{"by epoch, in an evaluation", byEpoch, interruption{callbacks.PredictionStep, 10}, 16},
		{"by epoch, in a step", byEpoch, interruption{callbacks.StepBegin, 12}, 12},
		{"best, in an evaluation", best, interruption{callbacks.PredictionStep, 10}, 6},
		{"while saving", run, interruption{callbacks.Save, 1}, 12},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			whole := vfs.NewMem()
			tr, _ := c.run.trainer(t, whole, nil)
			_, err := tr.Train()
			require.NoError(t, err)

			disk := vfs.NewMem()
			res, cut, err := c.train(t, c.run, disk, nil)
			require.ErrorIs(t, err, trainer.ErrInterrupted)
			require.ErrorIs(t, err, errCtrlC)
			requireOneError(t, err, "trainer: interrupted after step", "Ctrl-C")
			require.Equal(t, c.step, res.GlobalStep)
			require.Equal(t, callbacks.StopReason{Kind: callbacks.StopInterrupted, Detail: errCtrlC.Error()},
				res.StopReason)
			require.Equal(t, c.step, cut.State().GlobalStep)
			require.Contains(t, cut.State().LogHistory[len(cut.State().LogHistory)-1], "train_loss",
				"the end is recorded")
			ck, err := (&checkpoint.Store{Dir: out, FS: disk}).Latest(ctx)
			require.NoError(t, err)
			require.Equal(t, c.step, ck.Step)

			again, _ := c.run.trainer(t, disk, func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "last" })
			_, err = again.Train()
			require.NoError(t, err)
			require.Equal(t, weights(tr.Model()), weights(again.Model()))
			require.Equal(t, steady(tr.State().LogHistory), steady(again.State().LogHistory))
			require.Equal(t, tr.State().BestModelCheckpoint, again.State().BestModelCheckpoint)
			last, err := (&checkpoint.Store{Dir: out, FS: whole}).Latest(ctx)
			require.NoError(t, err)
			want, got := contents(t, whole, last.Step), contents(t, disk, last.Step)
			delete(want["progress.json"].(map[string]any), "run_id")
			delete(got["progress.json"].(map[string]any), "run_id")
			require.Equal(t, want, got)
		})
	}
}

func TestInterruptWithoutSave(t *testing.T) {
	disk := vfs.NewMem()
	res, _, err := interruption{callbacks.StepBegin, 5}.train(t, recipe{}, disk, func(a *args.TrainingArguments) {
		a.SaveStrategy, a.SaveOnInterrupt = args.StrategyNo, false
	})
	require.ErrorIs(t, err, trainer.ErrInterrupted)
	require.EqualValues(t, 5, res.GlobalStep)
	_, err = disk.Stat(out)
	require.Error(t, err, "nothing was written")
}

func TestInterruptBeforeTheFirstStep(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, start := range []bool{false, true} {
		disk := vfs.NewMem()
		tr, m := recipe{}.trainer(t, disk, func(a *args.TrainingArguments) { a.EvalOnStart = start })
		before := weights(m)
		res, err := tr.TrainContext(ctx)
		require.ErrorIs(t, err, trainer.ErrInterrupted)
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, res.GlobalStep)
		require.Equal(t, before, weights(m))
		entries, err := disk.ReadDir(out)
		require.NoError(t, err)
		require.Empty(t, entries, "there is nothing to save")
	}
}

func TestInterruptWhileResuming(t *testing.T) {
	disk := vfs.NewMem()
	tr, _ := recipe{}.trainer(t, disk, nil)
	_, err := tr.Train()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	tr, _ = recipe{}.trainer(t, disk, resumeFrom(5))
	_, err = tr.TrainContext(ctx)
	require.ErrorIs(t, err, trainer.ErrInterrupted)
	require.ErrorIs(t, err, context.Canceled)
}

// An interrupt does not swap the last weights for the best ones.
func TestInterruptLeavesTheLastWeights(t *testing.T) {
	disk := vfs.NewMem()
	_, tr, err := interruption{callbacks.StepEnd, 10}.train(t, recipe{}, disk, func(a *args.TrainingArguments) {
		a.EvalStrategy, a.EvalSteps, a.LoadBestModelAtEnd, a.LearningRate = args.StrategySteps, new(1.0), true, 20
	})
	require.ErrorIs(t, err, trainer.ErrInterrupted)
	require.Less(t, *tr.State().BestGlobalStep, int64(10))
	saved := contents(t, disk, 10)["model.safetensors"].(string)
	for name, bits := range weights(tr.Model()) {
		require.Contains(t, saved, string(bits), name)
	}
}

func TestEvaluateAndPredictEndWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	n := &notebook{}
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs(), trainer.WithEvalData(source(points(64))),
		trainer.WithCallbacks(n), on(callbacks.PredictionStep, func(e *callbacks.Event) error {
			if e.Batch == 3 {
				cancel(errCtrlC)
			}
			require.LessOrEqual(t, e.Batch, int64(3))
			return nil
		}))
	_, err := tr.EvaluateContext(ctx)
	require.ErrorIs(t, err, errCtrlC)
	require.Equal(t, 1, n.closed, "a display takes its bar away")
	_, err = tr.PredictContext(ctx, source(points(8)))
	require.ErrorIs(t, err, errCtrlC)
	require.Equal(t, 2, n.closed)
	require.Empty(t, tr.State().LogHistory)
}

// TestTimeLimit ends a run by max_train_seconds as max_steps would: a last evaluation and
// a checkpoint, no error; a resume under the same limit goes on for as long again.
func TestTimeLimit(t *testing.T) {
	disk := vfs.NewMem()
	limit := func(a *args.TrainingArguments) {
		a.SaveSteps, a.MaxTrainSeconds, a.NumTrainEpochs = 1e6, 0.02, 1e6
		a.EvalStrategy, a.EvalSteps = args.StrategySteps, new(1e6)
	}
	slow := func() []trainer.Option {
		return []trainer.Option{on(callbacks.PreOptimizerStep, func(*callbacks.Event) error {
			time.Sleep(5 * time.Millisecond)
			return nil
		})}
	}
	r := recipe{set: limit, opts: slow}
	tr, _ := r.trainer(t, disk, nil)
	res, err := tr.Train()
	require.NoError(t, err)
	require.Positive(t, res.GlobalStep)
	require.Less(t, res.GlobalStep, int64(5))
	require.Equal(t, callbacks.StopReason{Kind: callbacks.StopTimeLimit, Detail: "max_train_seconds 0.02 reached"},
		res.StopReason)
	ck, err := (&checkpoint.Store{Dir: out, FS: disk}).Latest(ctx)
	require.NoError(t, err)
	require.Equal(t, res.GlobalStep, ck.Step)
	require.True(t, slices.ContainsFunc(tr.State().LogHistory, func(rec callbacks.Record) bool {
		_, ok := rec["eval_loss"]
		return ok
	}))

	tr, _ = r.trainer(t, disk, resumeFrom(res.GlobalStep))
	again, err := tr.Train()
	require.NoError(t, err)
	require.Greater(t, again.GlobalStep, res.GlobalStep)
	require.Equal(t, callbacks.StopTimeLimit, again.StopReason.Kind)
	tr, _ = r.trainer(t, disk, func(a *args.TrainingArguments) {
		resumeFrom(res.GlobalStep)(a)
		a.MaxTrainSeconds, a.NumTrainEpochs, a.MaxSteps = 0, 3, 12
	})
	again, err = tr.Train()
	require.NoError(t, err)
	require.EqualValues(t, 12, again.GlobalStep)
	require.Zero(t, again.StopReason)
}
