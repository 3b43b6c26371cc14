// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// spoiled are 64 points, the one of number i with the given label.
func spoiled(i int, label float64) data.Source {
	list := points(64)
	list[i].Labels = float32(label)
	return source(list)
}

// inOrder visits the points in their order, logs each step, and saves twice an epoch.
func inOrder(policy args.NonfiniteLoss) *args.TrainingArguments {
	return lineArgs(func(a *args.TrainingArguments) {
		a.TrainSamplingStrategy, a.NonfiniteLoss, a.LoggingSteps = args.SamplingSequential, policy, 1
		a.SaveStrategy, a.SaveSteps = args.StrategySteps, 4
	})
}

// watch notes weights before and after each step, and what the callbacks are told of it.
type watch struct {
	model         models.Model
	before, after []map[string][]byte
	stats         []callbacks.StepStats
}

func (w *watch) options() []trainer.Option {
	return []trainer.Option{
		on(callbacks.StepBegin, func(*callbacks.Event) error {
			w.before = append(w.before, weights(w.model))
			return nil
		}),
		on(callbacks.StepEnd, func(e *callbacks.Event) error {
			w.after, w.stats = append(w.after, weights(w.model)), append(w.stats, e.Step)
			return nil
		}),
	}
}

func TestNonfiniteLossIsSkipped(t *testing.T) {
	w := &watch{model: newMLP(t, 1, 1)}
	log, disk := &messages{}, vfs.NewMem()
	tr := newTrainer(disk, w.model, inOrder(args.NonfiniteSkip), append(w.options(),
		trainer.WithTrainData(spoiled(17, math.NaN())), trainer.WithLogger(log.logger()))...)
	res, err := tr.Train()
	require.NoError(t, err)
	require.EqualValues(t, 24, res.GlobalStep)
	bad := map[int]bool{2: true, 10: true, 18: true} // sample 17 comes in the third step of every epoch
	var losses float64
	for i, s := range w.stats {
		require.Equal(t, bad[i], s.Skipped, "step %d", i+1)
		require.Equal(t, bad[i], math.IsNaN(s.Loss), "step %d", i+1)
		require.Equal(t, !bad[i], string(w.before[i]["layers.0.bias"]) != string(w.after[i]["layers.0.bias"]),
			"step %d", i+1)
		if !bad[i] {
			losses += s.Loss
		}
	}
	require.Equal(t, 3.0, res.Metrics["nonfinite_steps"])
	require.InDelta(t, losses/21, res.TrainingLoss, 1e-12, "the mean over the steps that counted")
	require.Contains(t, log.String(), "step=3 loss=NaN")

	history := tr.State().LogHistory
	require.NotContains(t, history[1], "nonfinite_steps")
	loss, _ := history[2].Number("loss")
	require.True(t, math.IsNaN(loss), "a loss that is not finite is shown")
	require.EqualValues(t, 1, history[2]["nonfinite_steps"])
	require.EqualValues(t, 3, history[18]["nonfinite_steps"])

	// The checkpoint after it can be loaded: its text says NaN.
	ck, err := (&checkpoint.Store{Dir: out, FS: disk}).Latest(ctx)
	require.NoError(t, err)
	text, err := ck.ReadPart("trainer_state.json")
	require.NoError(t, err)
	require.Contains(t, string(text), `"NaN"`)
}

// A resume between the bad step and its record has to know the loss that was not finite.
func TestResumeAfterNonfiniteLoss(t *testing.T) {
	r := recipe{train: spoiled(17, math.Inf(1)), set: func(a *args.TrainingArguments) {
		a.TrainSamplingStrategy, a.NonfiniteLoss = args.SamplingSequential, args.NonfiniteSkip
	}}
	disk := vfs.NewMem()
	tr, m := r.trainer(t, disk, nil)
	_, err := tr.Train()
	require.NoError(t, err)
	again := disk.CrashClone(nil)
	tr2, m2 := r.trainer(t, again, resumeFrom(3))
	_, err = tr2.Train()
	require.NoError(t, err)
	require.Equal(t, weights(m), weights(m2))
	require.Equal(t, contents(t, disk, 24), contents(t, again, 24))
	loss, _ := tr2.State().LogHistory[0].Number("loss")
	require.True(t, math.IsInf(loss, 1))
}

func TestNonfiniteLossStops(t *testing.T) {
	w := &watch{model: newMLP(t, 1, 1)}
	disk := vfs.NewMem()
	a := inOrder(args.NonfiniteStop)
	a.EvalStrategy, a.EvalSteps = args.StrategySteps, new(10.0)
	tr := newTrainer(disk, w.model, a, append(w.options(), trainer.WithTrainData(spoiled(17, math.NaN())),
		trainer.WithEvalData(source(points(8))))...)
	res, err := tr.Train()
	requireOneError(t, err, "trainer: step 3", "not finite", "last checkpoint: "+checkpointPath(3))
	var bad *trainer.NonfiniteError
	require.ErrorAs(t, err, &bad)
	require.EqualValues(t, 3, bad.Step)
	require.EqualValues(t, 3, res.GlobalStep)
	require.Equal(t, callbacks.StopReason{Kind: callbacks.StopNonfinite,
		Detail: "loss or gradient of step 3 not finite (nonfinite_loss stop)"}, res.StopReason)
	require.Equal(t, w.before[2], weights(w.model), "the weights are as before the step")
	require.Equal(t, 1.0, res.Metrics["nonfinite_steps"])
	ck, err := (&checkpoint.Store{Dir: out, FS: disk}).Latest(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 3, ck.Step)
	require.Contains(t, tr.State().LogHistory[3], "eval_loss")
}

func TestNonfiniteLossRaises(t *testing.T) {
	w := &watch{model: newMLP(t, 1, 1)}
	res, err := newTrainer(vfs.NewMem(), w.model, inOrder(args.NonfiniteRaise),
		append(w.options(), trainer.WithTrainData(spoiled(17, math.NaN())))...).Train()
	requireOneError(t, err, "trainer: step 3", "NaN", "the weights are as before the step")
	var bad *trainer.NonfiniteError
	require.ErrorAs(t, err, &bad)
	require.EqualValues(t, 3, bad.Step)
	require.True(t, math.IsNaN(bad.Loss))
	require.EqualValues(t, 2, res.GlobalStep)
	require.Equal(t, w.before[2], weights(w.model))
}

func TestNonfiniteFromTheFirstStep(t *testing.T) {
	res, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), inOrder(args.NonfiniteStop),
		trainer.WithTrainData(spoiled(0, math.NaN()))).Train()
	requireOneError(t, err, "trainer: step 1", "not finite")
	require.EqualValues(t, 1, res.GlobalStep)
	require.True(t, math.IsNaN(res.TrainingLoss), "no loss is invented")
}

// cliff is a line whose gradient is infinite in the batch at a position, its loss finite.
type cliff struct {
	*line
	position int64
}

func (m *cliff) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	o := m.line.Forward(c, b)
	if b.Position == m.position && o.Loss.RequiresGrad() {
		o.Loss = tensor.Custom(c.Ctx, tensor.CustomOp{
			Name: "cliff",
			Forward: func(c *tensor.Ctx, in []*tensor.Tensor) (out, saved []*tensor.Tensor) {
				return []*tensor.Tensor{tensor.Clone(c, in[0])}, nil
			},
			Backward: func(c *tensor.Ctx, _, grads []*tensor.Tensor, _ []bool) []*tensor.Tensor {
				return []*tensor.Tensor{tensor.Affine(c, grads[0], math.Inf(1), 0)}
			},
		}, o.Loss)[0]
	}
	return o
}

func TestInfiniteGradientIsNotFinite(t *testing.T) {
	for _, accumulation := range []int{1, 2} {
		m := &cliff{newLine(0, 0), 24}
		w := &watch{model: m}
		a := inOrder(args.NonfiniteSkip)
		a.GradientAccumulationSteps, a.NumTrainEpochs = accumulation, 1
		res, err := newTrainer(vfs.NewMem(), m, a,
			append(w.options(), trainer.WithTrainData(columnsOf(points(64)).rows(0, 64)))...).Train()
		require.NoError(t, err)
		require.Equal(t, 1.0, res.Metrics["nonfinite_steps"])
		bad := 3 / accumulation
		for i, s := range w.stats {
			require.Equal(t, i == bad, s.Skipped)
			require.False(t, math.IsNaN(s.Loss) || math.IsInf(s.Loss, 0))
			require.Equal(t, i == bad, math.IsInf(s.GradNorm, 1) || math.IsNaN(s.GradNorm))
		}
		require.Equal(t, w.before[bad], w.after[bad])
		require.Equal(t, w.after[bad], w.before[bad+1])
		require.NotEqual(t, w.before[bad+1], w.after[bad+1], "the next step is free of it")
	}
}

// columnsOf are the points' x and y apart.
func columnsOf(list data.Slice[point]) (c columns) {
	for _, p := range list {
		c.X, c.Y = append(c.X, p.Inputs[0]), append(c.Y, p.Labels)
	}
	return c
}
