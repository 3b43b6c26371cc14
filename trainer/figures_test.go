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

// figured has two figures: half the loss, and the samples.
func figured(c *nn.Ctx, m models.Model, b *data.Batch) (models.Output, float64, error) {
	out := m.Forward(c.WithLossOnly(), b)
	out.Figures = map[string]*tensor.Tensor{"parts/half": tensor.Affine(c.Ctx, out.Loss, 0.5, 0),
		"samples": tensor.Full(c.Ctx, tensor.Float64, float64(b.Size), 1)}
	return out, b.Count, nil
}

// Records have the means of figures beside the loss, of steps and of evaluations, with the same bits on any number of
// ranks and after a resume between two records.
func TestFigures(t *testing.T) {
	opts := []trainer.Option{trainer.WithTrainData(raggedTexts(51)), trainer.WithStep(figured),
		trainer.WithFigures("parts/half", "samples")}
	seldom := func(a *args.TrainingArguments) { a.LoggingSteps = 3 }
	want, err := override(t, vfs.NewMem(), 1, seldom, opts...)
	require.NoError(t, err)
	steps, evals := 0, 0
	for _, rec := range want.history {
		for _, prefix := range []string{"", "eval_"} {
			loss, ok := rec[prefix+"loss"].(float64)
			if !ok {
				continue
			}
			require.InEpsilon(t, loss/2, rec[prefix+"parts/half"], 1e-12)
			require.Positive(t, rec[prefix+"samples"])
			require.Less(t, rec[prefix+"samples"], 1.0, "a sample has several tokens")
			if prefix == "" {
				steps++
			} else {
				evals++
			}
		}
	}
	require.NotZero(t, steps)
	require.NotZero(t, evals)
	for _, ranks := range []int{2, 4} {
		disk := vfs.NewMem()
		got, err := override(t, disk, ranks, seldom, opts...)
		require.NoError(t, err)
		require.Equal(t, want.history, got.history, "%d ranks", ranks)
		got, err = override(t, disk, 1, func(a *args.TrainingArguments) {
			seldom(a)
			a.ResumeFromCheckpoint = out + "/checkpoint-4"
		}, opts...)
		require.NoError(t, err)
		require.Equal(t, want.history[3:], got.history[3:], "resumed; the records before were read")
	}
}

func TestFiguresMisuse(t *testing.T) {
	data, evals := trainer.WithTrainData(raggedTexts(51)), trainer.WithEvalData(raggedTexts(13))
	for want, opts := range map[string][]trainer.Option{
		`has no figure other with one element (its figures are ["parts/half" "samples"])`: {trainer.WithStep(figured),
			trainer.WithFigures("other")},
		"has the figure samples: want it in WithFigures too": {trainer.WithStep(figured),
			trainer.WithFigures("parts/half")},
		`the name "loss" is empty or reserved`: {trainer.WithFigures("loss")},
		`two figures have the name "a"`:        {trainer.WithFigures("a", "a")},
	} {
		_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), rankArgs(1), append(opts, data, evals)...).Train()
		require.ErrorContains(t, err, want)
	}
	staged := rankArgs(2)
	staged.PPSize = 2
	_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), staged, data, evals, trainer.WithFigures("a")).Train()
	require.ErrorContains(t, err, "WithFigures has no effect with pp_size or cp_size")
}
