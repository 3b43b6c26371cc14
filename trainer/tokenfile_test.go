// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/trainer"
)

// tokenFile writes a file of n token ids below vocab and opens it.
func tokenFile(t *testing.T, n, vocab int) (string, *data.TokenFile) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "corpus.bin")
	w, err := data.CreateTokenFile(path, vocab)
	require.NoError(t, err)
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((i*i + 5) % vocab)
	}
	require.NoError(t, w.Write(ids))
	require.NoError(t, w.Close())
	f, err := data.OpenTokenFile(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return path, f
}

// tokenRun is 24 steps of a GPT-2 on blocks of a stream.
func tokenRun(t *testing.T, tokens data.Tokens) recipe {
	t.Helper()
	blocks, err := data.TrainBlocks(tokens, 6)
	require.NoError(t, err)
	return recipe{
		model: func(t testing.TB) models.Model { return newGPT2(t, 0) },
		train: data.NewSource(blocks, data.CausalLM(0)),
		set:   func(a *args.TrainingArguments) { a.MaxSteps, a.SaveSteps, a.LearningRate = 12, 100, 1e-2 },
	}
}

// A token file that is cut short under a run ends the run with an error that names it. What was trained is saved, and
// a run that goes on once the file is whole again ends with the bits of one that nothing happened to.
func TestTokenFileCutShort(t *testing.T) {
	path, file := tokenFile(t, 6*64, vocabulary)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	run := tokenRun(t, file)
	uninterrupted, m := run.trainer(t, vfs.NewMem(), nil)
	_, err = uninterrupted.Train()
	require.NoError(t, err)
	want := weights(m)
	for _, workers := range []int{0, 2} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			disk := vfs.NewMem()
			r := run
			r.opts = func() []trainer.Option {
				return []trainer.Option{on(callbacks.StepEnd, func(e *callbacks.Event) error {
					if e.State.GlobalStep == 3 {
						return os.Truncate(path, 40)
					}
					return nil
				})}
			}
			loading := func(a *args.TrainingArguments) { a.DataloaderNumWorkers = workers }
			tr, _ := r.trainer(t, disk, loading)
			res, err := tr.Train()
			require.NoError(t, os.WriteFile(path, whole, 0o600))
			require.ErrorContains(t, err, "data: token file "+path+": it has 40 bytes: want ")
			require.ErrorContains(t, err, fmt.Sprintf("trainer: step %d: ", res.GlobalStep+1))
			require.GreaterOrEqual(t, res.GlobalStep, int64(3))
			require.Less(t, res.GlobalStep, int64(12))
			again, m := run.trainer(t, disk, func(a *args.TrainingArguments) {
				loading(a)
				a.ResumeFromCheckpoint = checkpointPath(res.GlobalStep)
			})
			_, err = again.Train()
			require.NoError(t, err)
			require.Equal(t, want, weights(m))
		})
	}
}

// An id that the model does not have is an error that names the file and the position in it, in training and in an
// evaluation.
func TestTokenFileBeyondTheVocabulary(t *testing.T) {
	path, file := tokenFile(t, 6*64, vocabulary+1)
	ids := make([]int32, file.Len())
	require.NoError(t, file.ReadTokens(ids, 0))
	want := fmt.Sprintf("data: token %d of %s has id 13: want 0 to 12: the model's vocabulary has 13 tokens",
		slices.Index(ids, vocabulary), path)
	tr, _ := tokenRun(t, file).trainer(t, vfs.NewMem(), func(a *args.TrainingArguments) {
		a.TrainSamplingStrategy = args.SamplingSequential
	})
	_, err := tr.Train()
	require.ErrorContains(t, err, want)
	_, err = tr.Evaluate()
	require.ErrorContains(t, err, want)
}
