// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/backend/deferred"
	"github.com/lockstep-ml/lockstep/internal/joint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// A step of the whole trainer waits for the device once, at its end, and does there what it does on the CPU.
func TestAStepWaitsForTheDeviceOnce(t *testing.T) {
	for _, k := range []struct {
		name  string
		dt    tensor.DType
		set   func(*args.TrainingArguments)
		await bool
	}{
		{"float32", tensor.Float32, func(a *args.TrainingArguments) { a.GradientAccumulationSteps = 2 }, false},
		{"bf16", tensor.Float32, func(a *args.TrainingArguments) { a.BF16 = true }, false},
		{"fp16", tensor.Float32, func(a *args.TrainingArguments) {
			a.FP16, a.FP16InitialScale = true, 1<<21 // overflows first
		}, false},
		{"bfloat16 parameters", tensor.BFloat16, func(a *args.TrainingArguments) { a.BF16 = true }, false},
		{"SGD", tensor.Float32, func(a *args.TrainingArguments) {
			a.Optim, a.OptimArgs = args.OptimSGD, "momentum=0.9"
		}, false},
		{"no clipping", tensor.Float32, func(a *args.TrainingArguments) { a.MaxGradNorm = 0 }, false},
		{"a callback that waits", tensor.Float32, func(*args.TrainingArguments) {}, true},
	} {
		t.Run(k.name, func(t *testing.T) {
			be := deferred.New(1)
			devices := []*tensor.Device{tensor.NewCPU(1), joint.Device[*tensor.Device](be)}
			var got [2]map[string][]byte
			var stats [2][]callbacks.StepStats
			for i, dev := range devices {
				a := args.Default(out)
				a.MaxSteps, a.LoggingSteps, a.PerDeviceTrainBatchSize, a.SaveStrategy = 6, 2, 4, args.StrategyNo
				a.MaxGradNorm, a.LearningRate = 0.5, 1e-2
				k.set(a)
				m := newGPT2As(t, 0.1, k.dt)
				var start int64
				var waits []int64
				opts := []trainer.Option{
					trainer.WithTrainData(texts(64)), trainer.WithDevice(dev),
					on(callbacks.StepBegin, func(*callbacks.Event) error {
						start = be.HostWaits()
						return nil
					}),
					on(callbacks.StepEnd, func(e *callbacks.Event) error {
						waits, stats[i] = append(waits, be.HostWaits()-start), append(stats[i], e.Step)
						return nil
					}),
				}
				if k.await {
					opts = append(opts, on(callbacks.PreOptimizerStep, func(e *callbacks.Event) error {
						require.True(t, math.IsNaN(e.Step.Loss))
						require.NoError(t, e.Await())
						require.False(t, math.IsNaN(e.Step.Loss))
						return nil
					}))
				}
				_, err := newTrainer(vfs.NewMem(), m, a, opts...).Train()
				require.NoError(t, err)
				if i == 1 {
					require.Equal(t, []int64{1, 1, 1, 1, 1}, waits[1:]) // the first makes the optimizer's state
				}
				got[i] = weights(m)
			}
			require.Equal(t, fmt.Sprint(stats[0]), fmt.Sprint(stats[1])) // with NaN
			if k.name == "fp16" {
				require.True(t, stats[0][0].Overflow)
				require.False(t, stats[0][5].Skipped)
			}
			require.Equal(t, got[0], got[1])
			for _, dev := range devices {
				require.NoError(t, dev.Close())
			}
		})
	}
}

// A device finds an index out of range when the whole step is queued: the step is an error and changes nothing.
func TestAFaultOfTheDeviceChangesNothing(t *testing.T) {
	dev := joint.Device[*tensor.Device](deferred.New(1))
	defer dev.Close()
	list := make(data.Slice[text], 16)
	for i := range list {
		list[i] = text{[]int32{1, 2, 3}, []int32{1, 2, 3}}
	}
	list[9] = text{[]int32{1, vocabulary, 3}, []int32{1, 2, 3}}
	a := args.Default(out)
	a.PerDeviceTrainBatchSize, a.SaveStrategy, a.TrainSamplingStrategy = 4, args.StrategyNo, args.SamplingSequential
	m := newGPT2(t, 0)
	var before []map[string][]byte
	_, err := newTrainer(vfs.NewMem(), m, a, trainer.WithDevice(dev),
		trainer.WithTrainData(data.NewSource(list, data.Stack[text])),
		on(callbacks.StepBegin, func(*callbacks.Event) error {
			before = append(before, weights(m))
			return nil
		})).Train()
	requireOneError(t, err, "trainer: step 3", "input_ids has 13 in sample 9 ")
	require.Len(t, before, 3)
	require.NotEqual(t, before[0], before[1])
	require.Equal(t, before[2], weights(m))
}
