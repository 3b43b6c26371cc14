// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// A resume warns about settings that count: not about epochs where max_steps decides, and about other steps of logs,
// evaluations and saves.
func TestResumeWarnsAboutWhatCounts(t *testing.T) {
	disk := vfs.NewMem()
	train := func(set func(*args.TrainingArguments)) string {
		log := &messages{}
		a := lineArgs(func(a *args.TrainingArguments) {
			a.SaveStrategy, a.SaveSteps, a.MaxSteps = args.StrategySteps, 4, 8
		}, set)
		_, err := newTrainer(disk, newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(64))),
			trainer.WithLogger(slog.New(slog.NewTextHandler(log, nil)))).Train()
		require.NoError(t, err)
		return log.String()
	}
	train(func(*args.TrainingArguments) {})
	resumes := func(set func(*args.TrainingArguments)) string {
		return train(func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = out + "/checkpoint-4"; set(a) })
	}
	const other = "resuming with a changed setting"
	require.NotContains(t, resumes(func(a *args.TrainingArguments) { a.NumTrainEpochs = 99 }), other)
	require.Contains(t, resumes(func(a *args.TrainingArguments) { a.LearningRate = 0.5 }), "the result will differ")
	for key, set := range map[string]func(*args.TrainingArguments){
		"logging_steps": func(a *args.TrainingArguments) { a.LoggingSteps = 2 },
		"save_steps":    func(a *args.TrainingArguments) { a.SaveSteps = 8 },
	} {
		text := resumes(set)
		require.Contains(t, text, "logs, evaluates or saves at other steps than before")
		require.Contains(t, text, "key="+key)
	}
	require.NotContains(t, resumes(func(*args.TrainingArguments) {}), other)
}

// tally is a callback with a state.
type tally struct{ callbacks.Base }

func (*tally) ExportState() callbacks.Exported { return callbacks.Exported{} }

func (*tally) ImportState(callbacks.Exported) error { return nil }

// What a resume warns of holds on all ranks, and is logged once.
func TestResumeWarnsOnce(t *testing.T) {
	disk, log := vfs.NewMem(), &messages{}
	train := func(rate float64, set func(*args.TrainingArguments), opts ...trainer.Option) {
		a := lineArgs(func(a *args.TrainingArguments) {
			a.SaveStrategy, a.SaveSteps, a.MaxSteps = args.StrategySteps, 4, 8
			a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.NumReplicas = 8, 2, 2
		}, set)
		_, err := newTrainer(disk, newMLP(t, 1, 1), a, append(opts, trainer.WithTrainData(source(points(64))),
			trainer.WithLogger(log.logger()),
			trainer.WithOptimizer(func(c *tensor.Ctx, groups []*optim.Group) *optim.Optimizer {
				groups[0].LR = rate
				return optim.DefaultAdamW().New(c, groups)
			}))...).Train()
		require.NoError(t, err)
	}
	train(0.25, func(*args.TrainingArguments) {}, trainer.WithCallbacks(&tally{}))
	train(0.5, func(a *args.TrainingArguments) {
		a.ResumeFromCheckpoint, a.NumReplicas, a.PerDeviceTrainBatchSize = out+"/checkpoint-4", 4, 4
		a.WeightDecay, a.LoggingSteps = 0.1, 2
	})
	for _, warning := range []string{"resume keeps the checkpoint's value", "logs, evaluates or saves at other steps",
		"the result will differ from that of an uninterrupted run\" key=weight_decay",
		"learning rates of the optimizer's groups", "on a different number of ranks keeps the micro-batches",
		"has the state of a callback that this run does not have"} {
		require.Equal(t, 1, strings.Count(log.String(), warning), "%s in %s", warning, log)
	}
}
