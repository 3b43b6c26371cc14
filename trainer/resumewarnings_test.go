// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/vfs"
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
