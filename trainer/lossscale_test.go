// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/accelerate/precision"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer"
)

// Records and the result say that fp16 skips its steps, and a log warns after some in a row.
func TestSkippedStepsAreReported(t *testing.T) {
	log := &messages{}
	a := lineArgs(fp16, func(a *args.TrainingArguments) {
		a.FP16InitialScale, a.MaxSteps, a.LoggingSteps = 1<<64, 6, 1
	})
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(64))),
		trainer.WithLogger(log.logger()))
	res, err := tr.Train()
	require.NoError(t, err)
	for i, rec := range tr.State().LogHistory[:6] {
		require.EqualValues(t, i+1, rec["skipped_steps"])
		require.Equal(t, math.Ldexp(1, 64-i), rec["loss_scale"])
	}
	require.EqualValues(t, 6, tr.State().LogHistory[6]["skipped_steps"], "the summary")
	require.Equal(t, 6.0, res.Metrics["skipped_steps"])
	require.True(t, math.IsNaN(res.TrainingLoss), "no step counts")
	require.Equal(t, 1, strings.Count(log.String(), "in_a_row=5"), log.String())
	require.Contains(t, log.String(), "fp16: the gradients overflow, and the steps are skipped")
	require.Equal(t, 1, strings.Count(log.String(), "no step changed the weights"), log.String())
	require.Contains(t, log.String(), "skipped_steps=6")
}

// train_loss is the mean over the steps that were taken.
func TestTrainLossLeavesOutSkippedSteps(t *testing.T) {
	a := lineArgs(fp16, func(a *args.TrainingArguments) {
		a.FP16InitialScale, a.MaxSteps, a.LoggingSteps = 1<<40, 40, 1
	})
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(64))))
	res, err := tr.Train()
	require.NoError(t, err)
	skipped, sum := 0.0, 0.0
	for _, rec := range tr.State().LogHistory[:40] {
		if n, _ := rec.Number("skipped_steps"); n > skipped {
			skipped = n
			continue
		}
		loss, _ := rec.Number("loss")
		sum += loss
	}
	require.Greater(t, skipped, 1.0)
	require.Less(t, skipped, 40.0)
	require.InDelta(t, sum/(40-skipped), res.TrainingLoss, 1e-12)
}

// An overflow at fp16_min_scale is an error, as DeepSpeed's is, on every rank alike.
func TestOverflowAtTheSmallestScale(t *testing.T) {
	list := points(64)
	for i := range list {
		list[i].Labels = 1e9 // the gradient of its square is beyond float16
	}
	for _, k := range []struct {
		least float64
		step  int
	}{{1, 5}, {4, 3}, {3, 3}} {
		for _, ranks := range []int{1, 2} {
			for name, set := range map[string]func(*args.TrainingArguments){
				"ddp":      func(*args.TrainingArguments) {},
				"gathered": func(a *args.TrainingArguments) { gather(a, "full_shard") },
			} {
				t.Run(fmt.Sprintf("%g on %d ranks, %s", k.least, ranks, name), func(t *testing.T) {
					a := lineArgs(fp16, set, func(a *args.TrainingArguments) {
						a.FP16InitialScale, a.FP16MinScale, a.NumReplicas, a.MaxSteps = 16, k.least, ranks, 20
					})
					_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(list))).Train()
					requireOneError(t, err, "trainer:", fmt.Sprintf("step %d", k.step), "fp16_min_scale")
					var scale *precision.LossScaleError
					require.ErrorAs(t, err, &scale)
					require.EqualValues(t, k.step, scale.Skipped)
					require.GreaterOrEqual(t, scale.Scale, k.least)
				})
			}
		}
	}
}
