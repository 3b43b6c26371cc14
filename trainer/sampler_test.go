// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// picked visits some samples, as often as they are in the list.
type picked []int64

func (p picked) Len() int64          { return int64(len(p)) }
func (p picked) At(_, i int64) int64 { return p[i] }
func (p picked) of(list data.Slice[point]) (chosen data.Slice[point]) {
	for _, i := range p {
		chosen = append(chosen, list[i])
	}
	return chosen
}

var _ samplers.Sampler = picked(nil)

// A sampler of the program's own gives the run that a dataset in its order gives, bit for bit, also over a resume.
func TestOwnSampler(t *testing.T) {
	list, order := points(20), picked{3, 3, 19, 0, 7, 3, 11, 12, 13, 3, 5}
	sequential := func(a *args.TrainingArguments) {
		a.TrainSamplingStrategy, a.NumTrainEpochs, a.PerDeviceTrainBatchSize = args.SamplingSequential, 2, 4
		a.SaveStrategy, a.SaveSteps = args.StrategySteps, 2
	}
	want := newLine(0.5, -0.25)
	_, err := newTrainer(vfs.NewMem(), want, lineArgs(sequential),
		trainer.WithTrainData(columnsOf(order.of(list)).rows(0, len(order)))).Train()
	require.NoError(t, err)

	disk, got := vfs.NewMem(), newLine(0.5, -0.25)
	random := func(a *args.TrainingArguments) { sequential(a); a.TrainSamplingStrategy = args.SamplingRandom }
	source := columnsOf(list).rows(0, len(list))
	res, err := newTrainer(disk, got, lineArgs(random), trainer.WithTrainData(source),
		trainer.WithSampler(order)).Train()
	require.NoError(t, err)
	require.EqualValues(t, 6, res.GlobalStep, "3 steps for 11 samples an epoch")
	equalLines(t, want, got)

	got = newLine(0, 0)
	resume := func(a *args.TrainingArguments) { random(a); a.ResumeFromCheckpoint = checkpointPath(2) }
	_, err = newTrainer(disk, got, lineArgs(resume), trainer.WithTrainData(source), trainer.WithSampler(order)).Train()
	require.NoError(t, err)
	equalLines(t, want, got)

	_, err = newTrainer(vfs.NewMem(), newLine(0, 0), lineArgs(), trainer.WithTrainData(source),
		trainer.WithSampler(picked{})).Train()
	requireOneError(t, err, "the sampler has 0 samples")
	_, err = newTrainer(vfs.NewMem(), newLine(0, 0), lineArgs(), trainer.WithTrainData(source),
		trainer.WithSampler(picked{20})).Train()
	requireOneError(t, err, "index 20 is outside a dataset of 20")
}

func equalLines(t *testing.T, want, got *line) {
	t.Helper()
	wa, wb := want.read()
	a, b := got.read()
	require.Equal(t, [2]float64{wa, wb}, [2]float64{a, b})
}

// Metrics and predictions see what WithLogitsForMetrics makes of the logits; the loss does not.
func TestLogitsForMetrics(t *testing.T) {
	source := columnsOf(points(11)).rows(0, 11)
	zero := func(c *nn.Ctx, logits *tensor.Tensor, b *data.Batch) *tensor.Tensor {
		return tensor.Sub(c.Ctx, logits, logits)
	}
	run := func(opts ...trainer.Option) (map[string]float64, *trainer.PredictionOutput) {
		tr := newTrainer(vfs.NewMem(), newLine(0.5, -0.25), lineArgs(),
			append(opts, trainer.WithEvalData(source), trainer.WithMetrics(&absoluteError{}))...)
		m, err := tr.Evaluate()
		require.NoError(t, err)
		p, err := tr.Predict(source)
		require.NoError(t, err)
		return m, p
	}
	plain, predicted := run()
	changed, zeros := run(trainer.WithLogitsForMetrics(zero))
	require.Equal(t, plain["eval_loss"], changed["eval_loss"])
	require.NotEqual(t, plain["eval_mae"], changed["eval_mae"])
	require.NotZero(t, predicted.Predictions[0].Logits[0])
	for _, p := range zeros.Predictions {
		require.Equal(t, []float32{0}, p.Logits)
	}
}
