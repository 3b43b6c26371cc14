// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// A checkpoint of a run that has gone wrong is not gone on with: neither with weights that are not finite, nor with an
// optimizer's state that would make them so in the next step. Each fault is named, with the tensor.
func TestResumeRefusesWhatIsNotFinite(t *testing.T) {
	for name, c := range map[string]struct {
		tensor string // in the state of the optimizer, or "" for the weights
		value  float64
		want   string
	}{
		"weights NaN":      {"", math.NaN(), "the saved weights are not finite: layers.0.weight has 1 of 1"},
		"weights infinite": {"", math.Inf(-1), "the saved weights are not finite: layers.0.weight has 1 of 1"},
		"first moment": {"layers.0.weight.exp_avg", math.Inf(1),
			"layers.0.weight.exp_avg has 1 elements that are NaN or infinite"},
		"second moment": {"layers.0.bias.exp_avg_sq", math.NaN(),
			"layers.0.bias.exp_avg_sq has 1 elements that are NaN or infinite"},
		"second moment below zero": {"layers.0.bias.exp_avg_sq", -1e-9,
			"layers.0.bias.exp_avg_sq has 1 elements below zero: want squares"},
		"nothing": {"layers.0.bias.exp_avg", -1, ""},
	} {
		disk, m := vfs.NewMem(), newMLP(t, 1, 1)
		var o *optim.Optimizer
		own := trainer.WithOptimizer(func(c *tensor.Ctx, g []*optim.Group) *optim.Optimizer {
			o = optim.AdamW{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}.New(c, g)
			return o
		})
		ruin := on(callbacks.StepEnd, func(e *callbacks.Event) error {
			at := m.Layers[0].Weight.Tensor
			if c.tensor != "" {
				at = o.State().Tensors[c.tensor]
			}
			ctx := tensor.NewCtx(tensor.CPU()).NoGrad()
			tensor.FillInto(ctx, at, c.value)
			ctx.Sync()
			return nil
		})
		short := func(a *args.TrainingArguments) { a.SaveStrategy, a.SaveSteps, a.MaxSteps = args.StrategySteps, 1, 1 }
		_, err := newTrainer(disk, m, lineArgs(short), trainer.WithTrainData(source(points(64))), own, ruin).Train()
		require.NoError(t, err)
		a := lineArgs(short, func(a *args.TrainingArguments) { a.ResumeFromCheckpoint, a.MaxSteps = "last", 2 })
		_, err = newTrainer(disk, newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(64))), own).Train()
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, "trainer: resume from out/checkpoint-1: ", name)
		require.ErrorContains(t, err, c.want, name)
	}
}

// A run that continues needs no more memory than it did before: the saved state is read into the tensors that the run
// has, a piece at a time, and beside no second copy.
func TestResumedRunPeaksNoHigher(t *testing.T) {
	disk := vfs.NewMem()
	run := func(steps int, resume string) int64 {
		dev := tensor.NewCPU(1)
		defer dev.Close()
		m, err := mlp.New(nn.NewInit(dev, 1), mlp.Config{Sizes: []int{1, 600, 600, 1}})
		require.NoError(t, err)
		a := lineArgs(func(a *args.TrainingArguments) {
			a.SaveStrategy, a.SaveSteps, a.MaxSteps, a.ResumeFromCheckpoint = args.StrategySteps, 2, steps, resume
			a.LearningRate = 1e-3
		})
		_, err = newTrainer(disk, m, a, trainer.WithTrainData(source(points(64))), trainer.WithDevice(dev)).Train()
		require.NoError(t, err)
		return dev.MemStats().Peak
	}
	first := run(2, "")
	require.LessOrEqual(t, run(4, "last"), first)
}

// The best model is not loaded at the end if its weights are not finite.
func TestBestModelThatIsNotFiniteIsRefused(t *testing.T) {
	m := newMLP(t, 1, 1)
	ruin := on(callbacks.Evaluate, func(*callbacks.Event) error { // after the evaluation, before the checkpoint
		ctx := tensor.NewCtx(tensor.CPU()).NoGrad()
		tensor.FillInto(ctx, m.Layers[0].Bias.Tensor, math.NaN())
		ctx.Sync()
		return nil
	})
	a := lineArgs(func(a *args.TrainingArguments) {
		a.EvalStrategy, a.SaveStrategy, a.EvalSteps, a.SaveSteps, a.MaxSteps = args.StrategySteps, args.StrategySteps,
			new(1.0), 1, 1
		a.LoadBestModelAtEnd = true
	})
	set := source(points(64))
	_, err := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(set), trainer.WithEvalData(set), ruin).Train()
	require.ErrorContains(t, err, "load_best_model_at_end: ")
	require.ErrorContains(t, err, "the saved weights are not finite: layers.0.bias has 1 of 1")
}
