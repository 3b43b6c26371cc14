// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// A folder that several models are saved into, in any number of files, holds the last.
func TestMaxShardSize(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	for i, c := range []struct {
		size  string
		split bool
	}{{"1KB", true}, {"4KB", true}, {"50GB", false}, {"1KB", true}, {"500", true}} {
		m := newGPT2(t, 0)
		c0 := tensor.NewCtx(tensor.CPU()).NoGrad()
		for _, p := range nn.Walk(m).Parameters() {
			tensor.ScaleInto(c0, p.Tensor, float64(i+1))
		}
		a := lineArgs(func(a *args.TrainingArguments) { a.MaxShardSize = c.size })
		tr := newTrainer(nil, m, a, trainer.WithTrainData(texts(8)))
		require.NoError(t, tr.SaveModel(dir))
		found, err := filepath.Glob(filepath.Join(dir, "model*.safetensors"))
		require.NoError(t, err)
		require.Equal(t, c.split, len(found) > 1, "%s: %v", c.size, found)
		_, err = os.Stat(filepath.Join(dir, "model.safetensors.index.json"))
		require.Equal(t, c.split, err == nil)
		again, err := models.LoadPretrained(tensor.CPU(), dir)
		require.NoError(t, err)
		state := nn.Walk(again).State()
		for k, p := range nn.Walk(m).State() {
			require.Equal(t, tensor.ReadBytes(c0, p.Tensor), tensor.ReadBytes(c0, state[k].Tensor), p.Name)
		}
	}
}

// A run whose checkpoints have their weights in several files resumes from them.
func TestResumeFromWeightsInSeveralFiles(t *testing.T) {
	fsys := vfs.NewMem()
	train := func(change func(a *args.TrainingArguments)) models.Model {
		m := newGPT2(t, 0.2)
		a := lineArgs(change, func(a *args.TrainingArguments) {
			a.MaxShardSize, a.SaveStrategy, a.SaveSteps, a.MaxSteps = "1KB", args.StrategySteps, 3, 8
		})
		_, err := newTrainer(fsys, m, a, trainer.WithTrainData(texts(30))).Train()
		require.NoError(t, err)
		return m
	}
	whole := train(func(*args.TrainingArguments) {})
	_, err := fsys.Stat(checkpointPath(3) + "/model.safetensors.index.json")
	require.NoError(t, err)
	resumed := train(resumeFrom(3))
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	state := nn.Walk(resumed).State()
	for k, p := range nn.Walk(whole).State() {
		require.Equal(t, tensor.ReadBytes(c, p.Tensor), tensor.ReadBytes(c, state[k].Tensor), p.Name)
	}
}
