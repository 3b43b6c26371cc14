// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// values are all parameters, in the order of their names in the model.
func values(m models.Model) (list []float64) {
	for _, p := range nn.NamedParameters(m) {
		c := tensor.NewCtx(p.Device()).NoGrad()
		list = append(list, tensor.ToSlice[float64](c, tensor.Cast(c, p.Tensor, tensor.Float64))...)
	}
	return list
}

// Evaluations, checkpoints and the final model have the average of the weights, computed here in float64, and training
// goes on as without it.
func TestAverageOfWeights(t *testing.T) {
	const decay = 0.8
	train := func(decay float64, ranks int) (steps, evaluated [][]float64, final map[string][]byte) {
		m := newGPT2(t, 0.1)
		steps = append(steps, values(m))
		a := rankArgs(ranks)
		a.MaxSteps, a.EMADecay, a.SaveStrategy = 8, decay, args.StrategyNo
		a.EvalStrategy, a.EvalSteps = args.StrategySteps, new(2.0)
		tr := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(raggedTexts(51)),
			trainer.WithEvalData(raggedTexts(5)),
			on(callbacks.StepEnd, func(*callbacks.Event) error { steps = append(steps, values(m)); return nil }),
			on(callbacks.Evaluate, func(*callbacks.Event) error {
				evaluated = append(evaluated, values(m))
				return nil
			}))
		_, err := tr.Train()
		require.NoError(t, err)
		return steps, append(evaluated, values(m)), weights(m)
	}
	plain, _, _ := train(0, 1)
	steps, evaluated, final := train(decay, 1)
	require.Equal(t, plain, steps, "training itself does not see the average")
	mean, n := append([]float64{}, steps[0]...), 0
	for i, at := range steps[1:] {
		for j, x := range at {
			mean[j] = decay*mean[j] + (1-decay)*x
		}
		if (i+1)%2 == 0 {
			require.InDeltaSlice(t, mean, evaluated[n], 1e-6, "step %d", i+1)
			n++
		}
	}
	require.Equal(t, 4, n)
	require.InDeltaSlice(t, mean, evaluated[n], 1e-6)
	require.NotEqual(t, steps[8], evaluated[n])
	for _, ranks := range []int{2, 4} {
		_, _, got := train(decay, ranks)
		require.Equal(t, final, got, "%d ranks", ranks)
	}
}

// A resumed run ends with the bits of one that was not interrupted, its average too, whatever the dtype.
func TestAverageOfWeightsIsResumed(t *testing.T) {
	for _, dt := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		r := recipe{train: texts(24), model: func(t testing.TB) models.Model { return newGPT2As(t, 0.1, dt) },
			set: func(a *args.TrainingArguments) { a.EMADecay, a.MaxSteps, a.LearningRate = 0.9, 9, 0.01 }}
		disk := vfs.NewMem()
		tr, m := r.trainer(t, disk, nil)
		_, err := tr.Train()
		require.NoError(t, err)
		want := weights(m)
		for _, step := range []int64{1, 5} {
			fork := disk.CrashClone(nil)
			tr, m := r.trainer(t, fork, resumeFrom(step))
			_, err := tr.Train()
			require.NoError(t, err)
			require.Equal(t, want, weights(m), "%v from step %d", dt, step)
			require.Equal(t, contents(t, disk, 9), contents(t, fork, 9))
		}
	}
}

// The advice for schedule-free optimizers, which need no schedule, is none for an average beside the schedule.
func TestAverageOfWeightsKeepsTheSchedule(t *testing.T) {
	for optim, advised := range map[args.Optim]bool{args.OptimAdamWFused: false, "schedule_free_adamw": true} {
		var log messages
		a := rankArgs(1)
		if a.MaxSteps, a.Optim = 1, optim; !advised {
			a.EMADecay = 0.9
		}
		_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(raggedTexts(51)),
			trainer.WithEvalData(raggedTexts(5)), trainer.WithLogger(log.logger())).Train()
		require.NoError(t, err)
		require.Equal(t, advised, strings.Contains(log.String(), "a schedule-free optimizer averages"), "%s", optim)
	}
}

// Ranks that share the model average what they own: evaluations, checkpoints and the final model have the bits of one
// rank, and so do runs that are resumed on other ranks.
func TestAverageOfShardedWeights(t *testing.T) {
	set := func(a *args.TrainingArguments) {
		a.EMADecay, a.MaxSteps = 0.8, 6
		fourSteps(a)
	}
	one := trainModel(t, newGPT2(t, 0.1), vfs.NewMem(), 1, set)
	for name, shard := range shardings {
		ranks := max(2, leastRanks(name))
		t.Run(name, func(t *testing.T) {
			many := trainModel(t, newGPT2(t, 0.1), vfs.NewMem(), ranks, set, shard)
			require.Equal(t, one.weights, many.weights)
			require.Equal(t, one.history, many.history)
			if !testing.Short() {
				again := trainModel(t, newGPT2(t, 0.1), many.disk.CrashClone(nil), 1, set,
					func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = checkpointPath(4) })
				require.Equal(t, one.weights, again.weights, "resumed on one rank")
			}
			again := trainModel(t, newGPT2(t, 0.1), one.disk.CrashClone(nil), ranks, set, shard,
				func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = checkpointPath(2) })
			require.Equal(t, one.weights, again.weights, "resumed on several")
		})
	}
}

func TestAverageOfWeightsIsRefused(t *testing.T) {
	for want, set := range map[string]func(a *args.TrainingArguments){
		"pp_size 2":       func(a *args.TrainingArguments) { a.PPSize = 2 },
		"local_sgd_steps": func(a *args.TrainingArguments) { a.LocalSGDSteps = 2 },
	} {
		a := rankArgs(2)
		a.EMADecay, a.MaxSteps = 0.9, 2
		set(a)
		_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(raggedTexts(51)),
			trainer.WithEvalData(raggedTexts(5))).Train()
		require.ErrorContains(t, err, "ema_decay", want)
		require.ErrorContains(t, err, want)
	}
}

// Checkpoints with the best metrics and those of every n-th step stay beside the newest; a resume counts the same.
func TestCheckpointsThatAreKept(t *testing.T) {
	scores := []float64{0.5, 0.9, 0.1, 0.8, 0.7, 0.2, 0.6, 0.85}
	run := func(disk vfs.FS, steps int, set func(a *args.TrainingArguments)) {
		r := recipe{set: func(a *args.TrainingArguments) {
			a.MaxSteps, a.EvalStrategy, a.EvalSteps = steps, args.StrategySteps, new(1.0)
			a.MetricForBestModel = "score"
			set(a)
		}}
		n := 0
		r.opts = func() []trainer.Option {
			return []trainer.Option{on(callbacks.StepEnd, func(e *callbacks.Event) error {
				n = int(e.State.GlobalStep)
				return nil
			}), trainer.WithMetrics(trainer.LossMetric(func(trainer.EvalLoss) map[string]float64 {
				return map[string]float64{"score": scores[n-1]}
			}))}
		}
		tr, _ := r.trainer(t, disk, nil)
		_, err := tr.Train()
		require.NoError(t, err)
	}
	for _, c := range []struct {
		best, every int
		limit       *int
		greater     bool
		want        []int64
	}{
		{best: 2, greater: true, want: []int64{2, 8}},
		{best: 3, greater: false, want: []int64{1, 3, 6, 8}},
		{every: 3, want: []int64{3, 6, 8}},
		{best: 1, every: 4, greater: true, limit: new(1), want: []int64{2, 4, 8}},
		{best: 2, limit: new(4), greater: false, want: []int64{3, 6, 7, 8}},
	} {
		for _, async := range []bool{false, true} {
			disk := vfs.NewMem()
			set := func(a *args.TrainingArguments) {
				a.SaveKeepBest, a.SaveKeepEvery, a.SaveTotalLimit = c.best, c.every, c.limit
				a.GreaterIsBetter, a.AsyncSave = &c.greater, async
			}
			if c.best == 0 {
				run(disk, 8, set)
			} else {
				run(disk, 5, set)
				run(disk, 8, func(a *args.TrainingArguments) { set(a); a.ResumeFromCheckpoint = "last" })
			}
			entries, err := disk.ReadDir(out)
			require.NoError(t, err)
			var got []int64
			for _, e := range entries {
				var step int64
				if n, _ := fmt.Sscanf(e.Name(), "checkpoint-%d", &step); n == 1 {
					got = append(got, step)
				}
			}
			require.ElementsMatch(t, c.want, got, "best %d, every %d, limit %v", c.best, c.every, c.limit)
		}
	}
}

// Tokens are counted with their padding, or as the attention mask has them, on any number of ranks.
func TestTokensWithoutPadding(t *testing.T) {
	tokens := 0
	for _, s := range sequences(48) {
		tokens += len(s)
	}
	count := map[args.TokensSeen]int64{}
	for _, ranks := range []int{1, 2} {
		for _, kind := range []args.TokensSeen{args.TokensSeenNo, args.TokensSeenAll, args.TokensSeenNonPadding} {
			a := rankArgs(ranks)
			a.NumTrainEpochs, a.IncludeNumInputTokensSeen, a.SaveStrategy = 1, kind, args.StrategyNo
			a.EvalStrategy, a.LoggingSteps = args.StrategyNo, 1
			tr := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(raggedTexts(48)))
			_, err := tr.Train()
			require.NoError(t, err)
			count[kind] = tr.State().NumInputTokensSeen
			logged, ok := tr.State().LogHistory[0].Number("num_input_tokens_seen")
			require.Equal(t, kind != args.TokensSeenNo, ok)
			require.Equal(t, ok, logged > 0)
		}
		require.EqualValues(t, tokens, count[args.TokensSeenNonPadding])
		require.Greater(t, count[args.TokensSeenAll], count[args.TokensSeenNonPadding])
		require.Zero(t, count[args.TokensSeenNo])
	}
}
