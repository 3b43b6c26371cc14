// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// starved is a step that asks for more memory than there is for more than so many samples, from a position in the
// training stream on.
func starved(most int, from int64) trainer.Option {
	return trainer.WithStep(func(c *nn.Ctx, m models.Model, b *data.Batch) (models.Output, float64, error) {
		if c.Training && b.Size > most && b.Position >= from {
			tensor.Zeros(c.Ctx, tensor.Float32, 1<<42)
		}
		return m.Forward(c, b), b.Count, nil
	})
}

// finding is a run with micro-batches of 8 that looks for smaller ones.
func finding(t *testing.T, disk *vfs.Mem, ranks int, opt trainer.Option, set ...func(a *args.TrainingArguments)) (
	*trainer.Trainer, models.Model) {
	a := rankArgs(ranks)
	a.PerDeviceTrainBatchSize, a.AutoFindBatchSize, a.MaxSteps, a.EvalStrategy = 8, true, 6, args.StrategyNo
	for _, f := range set {
		f(a)
	}
	m := newGPT2(t, 0.1)
	return newTrainer(disk, m, a, trainer.WithTrainData(raggedTexts(51)), opt), m
}

// A run whose first step runs out of memory is one that was started with micro-batches that fit, on any number of
// ranks.
func TestBatchSizeIsFound(t *testing.T) {
	want, m := finding(t, vfs.NewMem(), 1, starved(8, 0), func(a *args.TrainingArguments) {
		a.PerDeviceTrainBatchSize, a.AutoFindBatchSize = 2, false
	})
	_, err := want.Train()
	require.NoError(t, err)
	for _, ranks := range []int{1, 2} {
		disk := vfs.NewMem()
		tr, found := finding(t, disk, ranks, starved(2, 0))
		_, err := tr.Train()
		require.NoError(t, err)
		require.Equal(t, weights(m), weights(found), "%d ranks", ranks)
		require.Equal(t, untimed(want.State().LogHistory), untimed(tr.State().LogHistory))
		require.Equal(t, 2, tr.State().TrainBatchSize)

		again, resumed := finding(t, disk.CrashClone(nil), ranks, starved(2, 0), func(a *args.TrainingArguments) {
			a.ResumeFromCheckpoint = checkpointPath(2)
		})
		_, err = again.Train()
		require.NoError(t, err)
		require.Equal(t, weights(m), weights(resumed), "a resume keeps the size that was found")
	}
}

// A run that runs out of memory later goes on with the same samples and the same schedule.
func TestBatchSizeIsFoundLater(t *testing.T) {
	plain, _ := finding(t, vfs.NewMem(), 1, starved(8, 0))
	_, err := plain.Train()
	require.NoError(t, err)
	var bits map[string][]byte
	for _, ranks := range []int{1, 2} {
		tr, m := finding(t, vfs.NewMem(), ranks, starved(4, 51))
		_, err := tr.Train()
		require.NoError(t, err)
		require.Equal(t, 4, tr.State().TrainBatchSize)
		want, got := untimed(plain.State().LogHistory), untimed(tr.State().LogHistory)
		require.Len(t, got, len(want))
		for i := range want {
			require.Equal(t, want[i]["learning_rate"], got[i]["learning_rate"])
			require.InDelta(t, want[i]["epoch"], got[i]["epoch"], 0.05, "epochs count micro-batches")
		}
		if bits == nil {
			bits = weights(m)
		}
		require.Equal(t, bits, weights(m), "%d ranks", ranks)
	}
}

// The memory of a device is what counts: its limit lies between what two and eight samples need.
func TestBatchSizeByMemory(t *testing.T) {
	openDeferred(t)
	dev := deferredDevices["deferred:0"]
	run := func(batch int, find bool) (peak int64, size int, err error) {
		tr, _ := finding(t, vfs.NewMem(), 1, trainer.WithStep(nil), func(a *args.TrainingArguments) {
			a.PerDeviceTrainBatchSize, a.AutoFindBatchSize, a.Device, a.MaxSteps = batch, find, "deferred:0", 2
			a.GlobalTrainBatchSize, a.SaveStrategy = 48, args.StrategyNo
		})
		_, err = tr.Train()
		return dev.MemStats().Peak, tr.State().TrainBatchSize, err
	}
	small, _, err := run(6, false)
	require.NoError(t, err)
	large, _, err := run(48, false)
	require.NoError(t, err)
	require.Greater(t, large, small+small/4)
	require.True(t, dev.SetMemoryLimit(small+(large-small)/4))
	_, _, err = run(48, false)
	var short *tensor.OutOfMemoryError
	require.ErrorAs(t, err, &short)
	require.Positive(t, short.Bytes)
	_, size, err := run(48, true)
	require.NoError(t, err)
	require.Less(t, size, 48)

	require.True(t, dev.SetMemoryLimit(dev.MemStats().InUse+1<<13))
	_, _, err = run(6, true)
	require.ErrorAs(t, err, &short)
}

func TestBatchSearchIsRefusedBesideShards(t *testing.T) {
	tr, _ := finding(t, vfs.NewMem(), 2, starved(8, 0), func(a *args.TrainingArguments) { a.ZeroStage = 1 })
	_, err := tr.Train()
	requireOneError(t, err, "auto_find_batch_size is true", "want false, or a run without fsdp, zero_stage")
}
