// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/data/chat"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// optionCases are arguments that change a run in the same way on any ranks.
var optionCases = map[string]func(*args.TrainingArguments){
	"plain": func(*args.TrainingArguments) {},
	"groups": func(a *args.TrainingArguments) {
		a.ParamGroups = map[string]any{"wpe": "lr=0.5", "bias$": "weight_decay=0.3", "mlp.*weight": "lr_factor=3",
			"h[.]0[.]": "frozen_steps=7", "wte": "frozen_steps=12"}
		a.LayerwiseLRDecay = 0.5
	},
	"neftune":         func(a *args.TrainingArguments) { a.NeftuneNoiseAlpha = new(5.0) },
	"label smoothing": func(a *args.TrainingArguments) { a.LabelSmoothingFactor = 0.3 },
	"plateau": func(a *args.TrainingArguments) {
		a.LossAverage = args.LossAverageSteps
		a.LRSchedulerType, a.EvalSteps = args.SchedulerReduceLROnPlateau, new(2.0)
		a.LRSchedulerKwargs = map[string]any{"patience": 0, "factor": 0.5, "mode": "max"}
	},
}

// Arguments that change the steps have the same bits on one rank and on several: with whole, gathered and sharded
// parameters, and in a pipeline.
func TestOptionsOnRanks(t *testing.T) {
	micro := func(n int) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) { a.GradientAccumulationSteps = n }
	}
	sharding := func(zero int, gather bool) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) {
			a.NumReplicas, a.ZeroStage, a.FSDPShareParameters = 2, zero, !gather
		}
	}
	plain, _ := pipelined(t, optionCases["plain"])
	for name, set := range optionCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, records := pipelined(t, set)
			if name != "plain" {
				require.NotEqual(t, plain, want, "it has an effect")
			}
			for on, ranks := range map[string][]func(*args.TrainingArguments){
				"two ranks":  {micro(2), sharding(0, false)},
				"zero 1":     {micro(2), sharding(1, false)},
				"full shard": {micro(2), sharding(3, true)},
				"pipeline":   {pipeline(2, 2, "1f1b")},
				"two by two": {micro(2), pipeline(4, 2, "zbv"), func(a *args.TrainingArguments) { a.ZeroStage = 3 }},
				"recomputed": {func(a *args.TrainingArguments) { a.GradientCheckpointing = true }},
			} {
				if testing.Short() && on != "two ranks" {
					continue
				}
				got, logged := pipelined(t, append([]func(*args.TrainingArguments){set}, ranks...)...)
				for p, bits := range want {
					require.Equal(t, bits, got[p], "%s: %s", on, p)
				}
				require.Equal(t, records, logged, on)
			}
		})
	}
}

// With loss_average steps a record has the mean of the steps' losses, as transformers logs them, and with terms that of
// all samples; a resume inside of an interval changes neither. The last step of an epoch has half as many samples.
func TestLossAverage(t *testing.T) {
	for _, over := range []args.LossAverage{args.LossAverageTerms, args.LossAverageSteps} {
		set := func(a *args.TrainingArguments) {
			a.LossAverage, a.GradientAccumulationSteps, a.MaxSteps, a.LoggingSteps = over, 3, 8, 4
			a.SaveStrategy, a.SaveSteps = args.StrategySteps, 1
		}
		disk := vfs.NewMem()
		var losses, samples []float64
		tr := newTrainer(disk, newLine(0, 0), lineArgs(set), trainer.WithTrainData(columnsOf(points(60)).rows(0, 60)),
			on(callbacks.StepEnd, func(e *callbacks.Event) error {
				losses, samples = append(losses, e.Step.Loss), append(samples, float64(e.Step.Samples))
				return nil
			}))
		res, err := tr.Train()
		require.NoError(t, err)
		require.Equal(t, []float64{24, 24, 12, 24, 24, 12, 24, 24}, samples)
		mean := func(from, to int) float64 {
			sum, n := 0.0, 0.0
			for i := from; i < to; i++ {
				weight := samples[i]
				if over == args.LossAverageSteps {
					weight = 1
				}
				sum, n = sum+weight*losses[i], n+weight
			}
			return sum / n
		}
		check := func(history []callbacks.Record, total float64) {
			require.InEpsilon(t, mean(0, 4), history[0]["loss"], 1e-12)
			require.InEpsilon(t, mean(4, 8), history[1]["loss"], 1e-12)
			require.InEpsilon(t, mean(0, 8), history[2]["train_loss"], 1e-12)
			require.InEpsilon(t, mean(0, 8), total, 1e-12)
		}
		check(tr.State().LogHistory, res.TrainingLoss)
		again := newTrainer(disk, newLine(0, 0), lineArgs(set, resumeFrom(6)),
			trainer.WithTrainData(columnsOf(points(60)).rows(0, 60)))
		res, err = again.Train()
		require.NoError(t, err)
		check(again.State().LogHistory, res.TrainingLoss)
	}
}

// Label smoothing without a cross entropy of package nn is refused before the first step.
func TestLabelSmoothingIsNotIgnored(t *testing.T) {
	set := func(a *args.TrainingArguments) { a.LabelSmoothingFactor = 0.1 }
	samples := trainer.WithTrainData(columnsOf(points(64)).rows(0, 64))
	m := newLine(1, 2)
	before := weights(m)
	_, err := newTrainer(vfs.NewMem(), m, lineArgs(set), samples).Train()
	requireOneError(t, err, "label_smoothing_factor is 0.1", "not a cross entropy of package nn")
	require.Equal(t, before, weights(m))

	own := trainer.WithLoss(func(c *nn.Ctx, out models.Output, b *data.Batch) (*tensor.Tensor, float64) {
		return out.Loss, b.Count
	})
	requireOneError(t, newTrainer(vfs.NewMem(), m, lineArgs(set), samples, own).Err(),
		"label_smoothing_factor has no effect on WithLoss and WithStep")
}

// overlooking is a model whose attention sees the whole row.
type overlooking struct{ *gpt2.Model }

func (m *overlooking) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	d := *b
	d.Tensors = maps.Clone(b.Tensors)
	delete(d.Tensors, data.SegmentIDs)
	return m.Model.Forward(c, &d)
}

// A model that does not keep the texts of a row apart is refused before the first step.
func TestSegmentsAreNotOverlooked(t *testing.T) {
	sample := chat.Sample{IDs: []int32{1, 2, 3, 4}, Learned: []bool{true, true, true, true}, Lengths: []int{2, 2}}
	source := trainer.WithTrainData(data.NewSource(data.Slice[chat.Sample](slices.Repeat([]chat.Sample{sample}, 64)),
		chat.Collate(0)))
	for _, pipeline := range []int{1, 2} {
		set := func(a *args.TrainingArguments) { a.MaxSteps, a.PPSize, a.NumReplicas = 2, pipeline, pipeline }
		_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), lineArgs(set), source).Train()
		require.NoError(t, err)
	}
	m := &overlooking{newGPT2(t, 0)}
	before := weights(m)
	_, err := newTrainer(vfs.NewMem(), m, lineArgs(), source).Train()
	require.ErrorContains(t, err, "the batch has segment_ids, so its rows hold several texts, but "+
		"*trainer_test.overlooking does not separate them: want a model that computes attention with")
	require.Equal(t, before, weights(m))
}

// NEFTune's noise is that of a sample's position: a resumed run ends with the bits of an uninterrupted one. Models
// without embeddings of tokens are refused.
func TestNeftune(t *testing.T) {
	set := func(a *args.TrainingArguments) {
		a.NeftuneNoiseAlpha, a.MaxSteps, a.SaveStrategy, a.SaveSteps = new(5.0), 6, args.StrategySteps, 3
	}
	train := func(disk vfs.FS, more ...func(*args.TrainingArguments)) map[string][]byte {
		m := newGPT2(t, 0)
		a := lineArgs(append([]func(*args.TrainingArguments){set}, more...)...)
		_, err := newTrainer(disk, m, a, trainer.WithTrainData(texts(30))).Train()
		require.NoError(t, err)
		return weights(m)
	}
	disk := vfs.NewMem()
	want := train(disk)
	require.Equal(t, want, train(disk.CrashClone(nil), resumeFrom(3)))
	require.NotEqual(t, want, train(vfs.NewMem(), func(a *args.TrainingArguments) { a.NeftuneNoiseAlpha = nil }))
	require.NotEqual(t, want, train(vfs.NewMem(), func(a *args.TrainingArguments) { a.NeftuneNoiseAlpha = new(4.0) }))

	samples := trainer.WithTrainData(columnsOf(points(64)).rows(0, 64))
	requireOneError(t, newTrainer(vfs.NewMem(), newLine(0, 0), lineArgs(set), samples).Err(),
		"neftune_noise_alpha is 5", "no token embeddings (models.Embedded)")
}
