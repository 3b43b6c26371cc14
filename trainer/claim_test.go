// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer"
)

func TestOneRunAtATimeHasTheOutputFolder(t *testing.T) {
	disk := vfs.NewMem()
	saves := func(a *args.TrainingArguments) { a.SaveStrategy, a.SaveSteps = args.StrategySteps, 6 }
	samples := trainer.WithTrainData(source(points(64)))
	var second, saved error
	var first *trainer.Trainer
	first = newTrainer(disk, newMLP(t, 1, 1), lineArgs(saves), samples,
		on(callbacks.StepBegin, func(e *callbacks.Event) error {
			if e.State.GlobalStep == 3 {
				_, second = newTrainer(disk, newMLP(t, 1, 1), lineArgs(saves), samples).Train()
				saved = first.SaveModel("./" + out)
			}
			return nil
		}))
	_, err := first.Train()
	require.NoError(t, err)
	require.NoError(t, saved, "its own files are the run's to write")
	var held *checkpoint.HeldError
	require.ErrorAs(t, second, &held)
	requireOneError(t, second, "output_dir", "is in use by process")

	_, err = newTrainer(disk, newMLP(t, 1, 1),
		lineArgs(saves, func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "out/none" }), samples).Train()
	require.Error(t, err)
	_, err = newTrainer(disk, newMLP(t, 1, 1),
		lineArgs(saves, func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "last" }), samples).Train()
	require.NoError(t, err, "a run that could not begin leaves the folder to others")
}

func TestNewRunInAUsedFolderWantsToBeTold(t *testing.T) {
	disk := vfs.NewMem()
	samples := trainer.WithTrainData(source(points(64)))
	train := func(set ...func(*args.TrainingArguments)) error {
		saves := func(a *args.TrainingArguments) {
			a.SaveStrategy, a.SaveSteps, a.SaveTotalLimit = args.StrategySteps, 8, new(2)
		}
		_, err := newTrainer(disk, newMLP(t, 1, 1), lineArgs(append([]func(*args.TrainingArguments){saves}, set...)...),
			samples).Train()
		return err
	}
	require.NoError(t, train())
	requirePermanent(t, train())
	requireOneError(t, train(), "holds checkpoints of another run (checkpoint-24)", "resume_from_checkpoint last",
		"overwrite_output_dir")
	require.NoError(t, train(func(a *args.TrainingArguments) { a.SaveStrategy = args.StrategyNo }),
		"who saves nothing needs no leave")
	require.NoError(t, train(func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "last" }))

	// The first run's checkpoints are renamed, and the oldest of them go as the second one's come.
	require.NoError(t, train(func(a *args.TrainingArguments) {
		a.OverwriteOutputDir, a.SaveSteps, a.MaxSteps = true, 4, 16
	}))
	entries, err := disk.ReadDir(out)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, []string{"LATEST", "checkpoint-12", "checkpoint-16"}, names)
	require.NoError(t, train(func(a *args.TrainingArguments) {
		a.OverwriteOutputDir, a.SaveSteps, a.MaxSteps = true, 40, 4
	}))
	entries, err = disk.ReadDir(out)
	require.NoError(t, err)
	require.Len(t, entries, 3)
	require.Equal(t, "checkpoint-16.replaced-", entries[1].Name()[:len("checkpoint-16.replaced-")])
	require.Equal(t, "checkpoint-4", entries[2].Name())

	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1),
		lineArgs(func(a *args.TrainingArguments) { a.SaveStrategy, a.SaveSteps = args.StrategySteps, 8 }), samples)
	for range 2 {
		_, err := tr.Train()
		require.NoError(t, err, "a trainer's folder is its own")
	}
}

// The advice for a folder that transformers' Trainer wrote is what works, not each other's error.
func TestFolderOfTransformers(t *testing.T) {
	disk := vfs.NewMem()
	folder := filepath.Join(out, "checkpoint-500")
	require.NoError(t, vfs.MkdirAll(disk, folder))
	for _, name := range []string{"model.safetensors", "optimizer.pt", "trainer_state.json", "training_args.bin"} {
		require.NoError(t, vfs.WriteFile(disk, filepath.Join(folder, name), []byte("theirs")))
	}
	train := func(set func(*args.TrainingArguments)) error {
		a := lineArgs(func(a *args.TrainingArguments) { a.SaveStrategy, a.SaveSteps = args.StrategySteps, 8 }, set)
		_, err := newTrainer(disk, newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(64)))).Train()
		return err
	}
	err := train(func(*args.TrainingArguments) {})
	requireOneError(t, err, "holds checkpoints of another program (checkpoint-500)", "model_name_or_path "+folder)
	require.NotContains(t, err.Error(), "resume_from_checkpoint")
	for _, from := range []string{"last", folder} {
		err = train(func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = from })
		requireOneError(t, err, "this is a checkpoint of transformers", "--model_name_or_path")
	}
	require.NoError(t, train(func(a *args.TrainingArguments) { a.OverwriteOutputDir = true }))
	text, err := vfs.ReadFile(disk, filepath.Join(folder, "optimizer.pt"), 100)
	require.NoError(t, err)
	require.Equal(t, "theirs", string(text))
}

func TestResumeOnOtherDataOrTokenizerIsRefused(t *testing.T) {
	disk := vfs.NewMem()
	tokenizer := func(text string) trainer.Option {
		return trainer.WithParts(checkpoint.BytesPart("tokenizer.json", []byte(text)),
			checkpoint.BytesPart("notes.txt", []byte(text)))
	}
	saves := func(a *args.TrainingArguments) { a.SaveStrategy, a.SaveSteps = args.StrategySteps, 12 }
	resumes := func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "out/checkpoint-12" }
	allowed := func(a *args.TrainingArguments) { a.ResumeOnOtherData = true }
	other := points(64)
	other[0].Labels++
	run := func(list data.Slice[point], tok string, set ...func(*args.TrainingArguments)) (string, error) {
		log := &messages{}
		_, err := newTrainer(disk, newMLP(t, 1, 1), lineArgs(append([]func(*args.TrainingArguments){saves}, set...)...),
			trainer.WithTrainData(source(list)),
			tokenizer(tok), trainer.WithLogger(slog.New(slog.NewTextHandler(log, nil)))).Train()
		return log.String(), err
	}
	_, err := run(points(64), "a")
	require.NoError(t, err)
	_, err = run(other, "a", resumes)
	requireOneError(t, err, "out/checkpoint-12", "the training data", "resume_on_other_data")
	_, err = run(points(64), "b", resumes)
	requireOneError(t, err, "out/checkpoint-12", "changed since the checkpoint: tokenizer.json:")
	log, err := run(other, "b", resumes, allowed)
	require.NoError(t, err)
	require.Contains(t, log, "tokenizer.json")
	require.Contains(t, log, "the training data")
	log, err = run(points(64), "a", resumes, func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "last" })
	requireOneError(t, err, "the training data", "tokenizer.json")
	require.NotContains(t, log, "changed=")
}
