// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// classes are n samples in windows of 8, of which those numbered in ignored have no label.
func classes(n int, ignored ...int) data.Slice[labelled] {
	list := make(data.Slice[labelled], n)
	for i := range list {
		list[i] = labelled{[2]float64{math.Sin(float64(3 * i)), math.Cos(float64(i * i))}, int64(i*i) % 3}
	}
	for _, w := range ignored {
		for i := range 8 {
			list[8*w+i].Labels = tensor.IgnoreIndex
		}
	}
	return list
}

// classify trains a classifier on the list in its order, in windows of 8 samples.
func classify(disk *vfs.Mem, list data.Slice[labelled], ranks int, set func(*args.TrainingArguments),
	opts ...trainer.Option) (*classifier, *trainer.Trainer, *trainer.Result, error) {
	m := newClassifier()
	a := args.Default(out)
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas, a.NumTrainEpochs = 1, 8, ranks, 2
	a.TrainSamplingStrategy, a.LearningRate, a.WeightDecay, a.LoggingSteps = args.SamplingSequential, 0.1, 0.1, 1
	a.SaveSteps = 1
	set(a)
	tr := newTrainer(disk, m, a, append([]trainer.Option{
		trainer.WithTrainData(data.NewSource(list, data.Stack[labelled])),
		trainer.WithLoss(func(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
			return nn.CrossEntropySum(c, o.Logits, b.Tensors[data.Labels]), b.Count
		})}, opts...)...)
	res, err := tr.Train()
	return m, tr, res, err
}

// Steps without a loss term leave the weights and the optimizer's state alone, on any number of ranks and under any
// strategy: the run ends where one ends that never saw them.
func TestEmptyStepsTrainNothing(t *testing.T) {
	with, without := classes(48, 2, 3), append(classes(48)[:16:16], classes(48)[32:]...)
	for name, set := range map[string]func(*args.TrainingArguments){
		"adamw": func(*args.TrainingArguments) {},
		"sgd with momentum": func(a *args.TrainingArguments) {
			a.Optim, a.OptimArgs = args.OptimSGD, "momentum=0.9"
		},
		"zero 1":    func(a *args.TrainingArguments) { a.ZeroStage = 1 },
		"zero 2":    func(a *args.TrainingArguments) { a.ZeroStage = 2 },
		"fsdp":      func(a *args.TrainingArguments) { a.FSDP = []string{"full_shard"} },
		"gathered":  func(a *args.TrainingArguments) { a.FSDP, a.FSDPShareParameters = []string{"full_shard"}, false },
		"local sgd": func(a *args.TrainingArguments) { a.LocalSGDSteps = 2 },
	} {
		constant := func(a *args.TrainingArguments) {
			a.LRSchedulerType, a.SaveStrategy = args.SchedulerConstant, args.StrategyNo
			set(a)
		}
		for _, ranks := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("%s on %d ranks", name, ranks), func(t *testing.T) {
				got, tr, res, err := classify(vfs.NewMem(), with, ranks, constant)
				require.NoError(t, err)
				want, _, wantRes, err := classify(vfs.NewMem(), without, ranks, constant)
				require.NoError(t, err)
				require.Equal(t, weights(want), weights(got))
				require.Equal(t, wantRes.TrainingLoss, res.TrainingLoss)
				require.EqualValues(t, 12, res.GlobalStep)
				require.Equal(t, 4.0, res.Metrics["empty_steps"])
				for i, rec := range tr.State().LogHistory[:12] {
					_, loss := rec["loss"]
					require.Equal(t, i%6 != 2 && i%6 != 3, loss, "record %v", rec)
					require.True(t, rec.IsTrain())
				}
			})
		}
	}
}

// What a step without terms reports, and that the schedule stands still. A resume among such steps goes on the same.
func TestEmptyStepsAreCounted(t *testing.T) {
	log, disk := &messages{}, vfs.NewMem()
	var stats []callbacks.StepStats
	list := classes(48, 2, 3)
	want, tr, _, err := classify(disk, list, 2, func(*args.TrainingArguments) {}, trainer.WithLogger(log.logger()),
		on(callbacks.StepEnd, func(e *callbacks.Event) error {
			stats = append(stats, e.Step)
			return nil
		}))
	require.NoError(t, err)
	for i, s := range stats {
		empty := i%6 == 2 || i%6 == 3
		require.Equal(t, empty, s.Empty, "step %d", i+1)
		require.Equal(t, empty, s.Skipped, "step %d", i+1)
		require.Equal(t, empty, math.IsNaN(s.Loss), "step %d", i+1)
		require.False(t, s.Overflow)
	}
	require.Equal(t, stats[2].LearningRate, stats[4].LearningRate, "two steps without terms")
	require.Greater(t, stats[4].LearningRate, stats[5].LearningRate)
	history := tr.State().LogHistory
	require.NotContains(t, history[1], "empty_steps")
	require.NotContains(t, history[3], "grad_norm")
	require.EqualValues(t, 2, history[3]["empty_steps"])
	require.NotContains(t, history[3], "nonfinite_steps")
	require.Equal(t, 1, strings.Count(log.String(), "no loss term"), log.String())

	for _, step := range []int{2, 3, 4, 9} {
		again := disk.CrashClone(nil)
		got, tr, _, err := classify(again, list, 1, func(a *args.TrainingArguments) {
			a.ResumeFromCheckpoint = checkpointPath(int64(step))
		})
		require.NoError(t, err)
		require.Equal(t, weights(want), weights(got), "from step %d", step)
		require.JSONEq(t, asJSON(t, untimed(history)), asJSON(t, untimed(tr.State().LogHistory)), "from step %d", step)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}

// An epoch without a loss term, or 100 steps in a row, ends the run on every rank alike.
func TestTooManyEmptySteps(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		_, _, res, err := classify(vfs.NewMem(), classes(24, 0, 1, 2), ranks, func(*args.TrainingArguments) {})
		requireOneError(t, err, "trainer: step 3", "all steps of epoch 1 have no loss term", "-100")
		var empty *trainer.EmptyStepsError
		require.ErrorAs(t, err, &empty)
		require.Equal(t, trainer.EmptyStepsError{Step: 3, Row: 3, Epoch: 1}, *empty)
		require.True(t, math.IsNaN(res.TrainingLoss), "there is no number")

		var all []int
		for w := range 104 {
			all = append(all, w+1)
		}
		_, _, _, err = classify(vfs.NewMem(), classes(8*106, all...), ranks, func(a *args.TrainingArguments) {
			a.SaveStrategy = args.StrategyNo
		})
		require.ErrorAs(t, err, &empty)
		require.Equal(t, trainer.EmptyStepsError{Step: 101, Row: 100}, *empty)
	}
}
