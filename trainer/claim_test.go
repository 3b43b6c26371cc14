package trainer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer"
)

func TestOneRunAtATimeHasTheOutputFolder(t *testing.T) {
	disk := vfs.NewMem()
	saves := func(a *args.TrainingArguments) { a.SaveStrategy, a.SaveSteps = args.StrategySteps, 6 }
	data := trainer.WithTrainData(source(points(64)))
	var second, saved error
	var first *trainer.Trainer
	first = newTrainer(disk, newMLP(t, 1, 1), lineArgs(saves), data, on(callbacks.StepBegin, func(e *callbacks.Event) error {
		if e.State.GlobalStep == 3 {
			_, second = newTrainer(disk, newMLP(t, 1, 1), lineArgs(saves), data).Train()
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

	_, err = newTrainer(disk, newMLP(t, 1, 1), lineArgs(saves, func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "out/none" }), data).Train()
	require.Error(t, err)
	_, err = newTrainer(disk, newMLP(t, 1, 1), lineArgs(saves, func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "last" }), data).Train()
	require.NoError(t, err, "a run that could not begin leaves the folder to others")
}
