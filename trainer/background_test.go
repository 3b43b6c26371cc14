// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/internal/vfs/errorfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/trainer"
)

// Checkpoints that are written in the background are those that are written at once, byte by byte, also of ranks and of
// a model that they share, and a run resumes from them.
func TestCheckpointsInTheBackground(t *testing.T) {
	for name, set := range map[string]func(a *args.TrainingArguments){
		"1 rank":  func(*args.TrainingArguments) {},
		"2 ranks": func(a *args.TrainingArguments) { a.NumReplicas, a.PerDeviceTrainBatchSize = 2, 4 },
		"gathered": func(a *args.TrainingArguments) {
			a.NumReplicas, a.PerDeviceTrainBatchSize = 2, 4
			gather(a, "full_shard", "auto_wrap")
		},
	} {
		r := recipe{train: texts(24), model: func(t testing.TB) models.Model { return newGPT2(t, 0.1) },
			set: func(a *args.TrainingArguments) { a.MaxSteps = 6; set(a) }}
		later := func(a *args.TrainingArguments) { a.AsyncSave = true }
		disks := map[bool]*vfs.Mem{}
		for _, async := range []bool{false, true} {
			disks[async] = vfs.NewMem()
			tr, _ := r.trainer(t, disks[async], func(a *args.TrainingArguments) { a.AsyncSave = async })
			_, err := tr.Train()
			require.NoError(t, err, name)
		}
		for step := int64(1); step <= 6; step++ {
			requireSameFiles(t, disks[false], disks[true], step, name)
		}
		fork := disks[true].CrashClone(nil)
		tr, _ := r.trainer(t, fork, func(a *args.TrainingArguments) { later(a); resumeFrom(3)(a) })
		_, err := tr.Train()
		require.NoError(t, err, name)
		requireSameFiles(t, disks[false], fork, 6, name)
	}
}

// requireSameFiles compares the checkpoints of two runs, apart from which run wrote them.
func requireSameFiles(t *testing.T, want, got vfs.FS, step int64, name string) {
	a, b := contents(t, want, step), contents(t, got, step)
	for file := range a {
		if progress, ok := a[file].(map[string]any); ok {
			progress["run_id"] = b[file].(map[string]any)["run_id"]
		}
		require.True(t, reflect.DeepEqual(a[file], b[file]), "%s: step %d: %s", name, step, file)
	}
}

// slowDisk calls at before the first file of the checkpoint of a step is written.
func slowDisk(disk vfs.FS, step string, at func() error) vfs.FS {
	begun := false
	return errorfs.Wrap(disk, func(op errorfs.Op) error {
		if op.Kind != errorfs.Create || begun || !strings.Contains(op.Path, step) ||
			!strings.HasSuffix(op.Path, ".safetensors") {
			return nil
		}
		begun = true
		return at()
	})
}

// Training goes on while a checkpoint is written. If the process is killed meanwhile, the one before is the newest.
func TestTrainingGoesOnWhileACheckpointIsWritten(t *testing.T) {
	disk, stepped := vfs.NewMem(), make(chan struct{})
	r := recipe{set: func(a *args.TrainingArguments) { a.MaxSteps, a.SaveSteps, a.AsyncSave = 6, 2, true }}
	var killed *vfs.Mem
	slow := slowDisk(disk, "4", func() error {
		select {
		case <-stepped:
		case <-time.After(time.Minute):
			return errors.New("training waits for the disk")
		}
		killed = disk.CrashClone(nil)
		return nil
	})
	var told []string
	r.opts = func() []trainer.Option {
		return []trainer.Option{on(callbacks.StepEnd, func(e *callbacks.Event) error {
			if e.State.GlobalStep == 5 {
				close(stepped)
			}
			return nil
		}), on(callbacks.Save, func(e *callbacks.Event) error { told = append(told, e.Checkpoint); return nil }),
			on(callbacks.TrainEnd, func(e *callbacks.Event) error { told = append(told, e.Checkpoint); return nil })}
	}
	tr, m := r.trainer(t, slow, nil)
	_, err := tr.Train()
	require.NoError(t, err)
	require.NotNil(t, killed)
	require.Equal(t, []string{"", checkpointPath(2), checkpointPath(4), checkpointPath(6)}, told,
		"callbacks hear of complete checkpoints alone")
	newest := func(disk vfs.FS) int64 {
		ck, err := (&checkpoint.Store{Dir: out, FS: disk, Log: quiet}).Latest(context.Background())
		require.NoError(t, err)
		return ck.Step
	}
	require.EqualValues(t, 6, newest(disk), "a run ends when its last checkpoint is complete")
	require.EqualValues(t, 2, newest(killed))
	r.opts = nil
	again, other := r.trainer(t, killed, func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "last" })
	_, err = again.Train()
	require.NoError(t, err)
	require.Equal(t, weights(m), weights(other))
}

// A disk error ends the run, at a later step or at its end, and names the checkpoint.
func TestDiskErrorsInTheBackground(t *testing.T) {
	for _, step := range []string{"2", "6"} {
		for _, ranks := range []int{1, 2} {
			r := recipe{set: func(a *args.TrainingArguments) {
				a.MaxSteps, a.SaveSteps, a.AsyncSave = 6, 2, true
				a.NumReplicas, a.PerDeviceTrainBatchSize = ranks, 8/ranks
			}}
			tr, _ := r.trainer(t, slowDisk(vfs.NewMem(), step, func() error { return errorfs.ErrIO }), nil)
			res, err := tr.Train()
			require.ErrorIs(t, err, errorfs.ErrIO)
			require.ErrorContains(t, err, "the checkpoint of step "+step+", which was written in the background")
			require.NotNil(t, res)
		}
	}
}

// An interrupted run ends when its checkpoint is complete.
func TestInterruptWaitsForTheCheckpoint(t *testing.T) {
	disk := vfs.NewMem()
	r := recipe{set: func(a *args.TrainingArguments) { a.SaveSteps, a.AsyncSave = 100, true }}
	ctx, cancel := context.WithCancel(context.Background())
	r.opts = func() []trainer.Option {
		return []trainer.Option{on(callbacks.StepEnd, func(e *callbacks.Event) error {
			if e.State.GlobalStep == 3 {
				cancel()
			}
			return nil
		})}
	}
	tr, _ := r.trainer(t, slowDisk(disk, "3", func() error { time.Sleep(20 * time.Millisecond); return nil }), nil)
	_, err := tr.TrainContext(ctx)
	require.ErrorIs(t, err, trainer.ErrInterrupted)
	_, err = disk.Stat(filepath.Join(checkpointPath(3), checkpoint.ManifestFile))
	require.NoError(t, err)
}

func TestAsyncSaveOfPartsIsRefused(t *testing.T) {
	for _, set := range []func(a *args.TrainingArguments){
		func(a *args.TrainingArguments) {
			gather(a, "full_shard")
			a.FSDPStateDictType = args.ShardedStateDict
		},
		func(a *args.TrainingArguments) { a.DDPCommHook = "power_sgd" },
	} {
		a := rankArgs(2)
		a.AsyncSave, a.MaxSteps = true, 2
		set(a)
		_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(raggedTexts(51)),
			trainer.WithEvalData(raggedTexts(5))).Train()
		require.ErrorContains(t, err, "async_save: every rank writes a part of each checkpoint")
	}
}
