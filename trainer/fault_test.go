// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/internal/vfs/errorfs"
	"github.com/lockstep-ml/lockstep/trainer"
)

// faultRun is 6 steps with checkpoints at 2, 4 and 6, of which one stays.
func faultRun(a *args.TrainingArguments) {
	a.MaxSteps, a.SaveSteps, a.SaveTotalLimit = 6, 2, new(1)
}

// TestEachFileOperationFailsInTurn lets every operation of a training run's checkpoints fail
// once, and from then on: the run ends with one clear error or none, what is loaded
// afterwards is whole, and the resumed run ends as if nothing had happened.
func TestEachFileOperationFailsInTurn(t *testing.T) {
	r := recipe{set: faultRun}
	tr, _ := r.trainer(t, vfs.NewMem(), nil)
	_, err := tr.Train()
	require.NoError(t, err)
	want := weights(tr.Model())
	faults := []struct {
		name   string
		inject func(n int) (errorfs.Injector, func() bool)
		cause  error
	}{
		{"EIO once", func(n int) (errorfs.Injector, func() bool) {
			return errorfs.Nth(n, nil, errorfs.ErrIO)
		}, errorfs.ErrIO},
		{"full disk", func(n int) (errorfs.Injector, func() bool) {
			return errorfs.From(n, errorfs.Kind.Changes, errorfs.ErrNoSpace)
		}, errorfs.ErrNoSpace},
	}
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			failed, stride := 0, 1
			if testing.Short() {
				stride = 7
			}
			for n := 1; ; n += stride {
				when := fmt.Sprintf("operation %d", n)
				disk := vfs.NewMem()
				inject, reached := fault.inject(n)
				tr, _ := r.trainer(t, errorfs.Wrap(disk, inject), nil)
				res, err := tr.Train()
				if res == nil { // it did not begin: output_dir could not be made or locked
					require.Error(t, err, when)
					res = &trainer.Result{}
				}
				if err != nil {
					failed++
					require.ErrorIs(t, err, fault.cause, when)
					require.ErrorContains(t, err, "trainer: ", when)
					require.NotContains(t, err.Error(), "goroutine ", when)
				}
				requireGoesOn(t, disk, r, want, res.GlobalStep, when)
				if !reached() {
					require.NoError(t, err)
					require.Equal(t, want, weights(tr.Model()))
					break
				}
			}
			require.Greater(t, failed, 5)
		})
	}
}

// requireGoesOn checks that the newest checkpoint is whole and no older than the save
// before the one that failed, and that a resume from it ends with the wanted weights.
func requireGoesOn(t *testing.T, disk *vfs.Mem, r recipe, want map[string][]byte, reachedStep int64, when string) {
	ck, err := (&checkpoint.Store{Dir: out, FS: disk, Log: quiet}).Latest(context.Background())
	if errors.Is(err, checkpoint.ErrNone) {
		require.LessOrEqual(t, reachedStep, int64(2), when)
		return
	}
	require.NoError(t, err, when)
	require.GreaterOrEqual(t, ck.Step, reachedStep-2, when)
	tr, m := r.trainer(t, disk, func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = "last" })
	_, err = tr.Train()
	require.NoError(t, err, when)
	require.Equal(t, want, weights(m), when)
}

func TestFullDiskIsOneClearError(t *testing.T) {
	disk := vfs.NewMem()
	writes := func(k errorfs.Kind) bool { return k == errorfs.Write }
	total := 0
	count := func(op errorfs.Op) error {
		if op.Kind == errorfs.Write {
			total++
		}
		return nil
	}
	r := recipe{set: faultRun}
	tr, _ := r.trainer(t, errorfs.Wrap(vfs.NewMem(), count), nil)
	_, err := tr.Train()
	require.NoError(t, err)
	inject, _ := errorfs.From(total/2, writes, errorfs.ErrShortWrite) // in the second of three checkpoints
	tr, _ = r.trainer(t, errorfs.Wrap(disk, inject), nil)
	res, err := tr.Train()
	requireOneError(t, err, "trainer: saving "+checkpointPath(4), "no space left on device")
	require.EqualValues(t, 4, res.GlobalStep)
	entries, err := disk.ReadDir(out)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, "LATEST checkpoint-2", strings.Join(names, " "), "the older checkpoint, and nothing half written")
}

// TestReadOnlyFolder trains into a folder that cannot be made: its parent is a file.
func TestReadOnlyFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	into := filepath.Join(file, "out")
	tr, _ := recipe{set: faultRun}.trainer(t, nil, func(a *args.TrainingArguments) { a.OutputDir = into })
	res, err := tr.Train()
	requireOneError(t, err, "trainer: output_dir", file)
	require.Nil(t, res, "before any step")
	for _, err := range []error{tr.SaveModel(""), tr.SaveState(),
		tr.SaveMetrics("train", map[string]float64{"loss": 1})} {
		requireOneError(t, err, file)
	}
}

func TestFailingPart(t *testing.T) {
	disk := vfs.NewMem()
	broken := checkpoint.BytesPart("../tokenizer.json", nil)
	tr := newTrainer(disk, newMLP(t, 1, 1), lineArgs(faultRun, func(a *args.TrainingArguments) {
		a.SaveStrategy = args.StrategySteps
	}),
		trainer.WithTrainData(source(points(64))), trainer.WithParts(broken))
	_, err := tr.Train()
	requireOneError(t, err, "trainer: saving", "../tokenizer.json")
	requireOneError(t, tr.SaveModel(""), "../tokenizer.json")
}
