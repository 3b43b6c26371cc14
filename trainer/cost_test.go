// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// maxAllocations bounds the allocations of one step of the tiny GPT-2, without those of
// logging: mostly the graph's nodes and the tensors' heads. It is there to be lowered; a
// step that copies or keeps what it should not goes far beyond it.
const maxAllocations = 3000

// maxAllocatedBytes bounds what they hold: the elements of tensors live elsewhere.
const maxAllocatedBytes = 280 << 10

// TestAStepAllocatesLittle counts what 40 steps allocate on the Go heap and on the device.
func TestAStepAllocatesLittle(t *testing.T) {
	const warm, middle, last = 6, 26, 46
	dev := tensor.NewCPU(1)
	cfg := newGPT2(t, 0.1).Cfg
	m, err := gpt2.New(nn.NewInit(dev, 1), cfg)
	require.NoError(t, err)
	var before, between, after runtime.MemStats
	var inUse []int64
	var peak int64
	a := lineArgs(func(a *args.TrainingArguments) {
		a.MaxSteps, a.GradientAccumulationSteps, a.LoggingSteps = last, 2, 1000
	})
	_, err = newTrainer(vfs.NewMem(), m, a, trainer.WithDevice(dev), trainer.WithTrainData(texts(64)),
		on(callbacks.StepEnd, func(e *callbacks.Event) error {
			stats := dev.MemStats()
			switch e.State.GlobalStep {
			case warm:
				peak = stats.Peak
				runtime.ReadMemStats(&before)
			case middle:
				runtime.ReadMemStats(&between)
			case last:
				runtime.ReadMemStats(&after)
			}
			if e.State.GlobalStep >= warm {
				inUse = append(inUse, stats.InUse)
				require.Equal(t, peak, stats.Peak, "the peak is that of the first steps")
			}
			return nil
		})).Train()
	require.NoError(t, err)
	for _, n := range inUse {
		require.Equal(t, inUse[0], n, "what a step takes of the device it gives back")
	}
	first, second := (between.Mallocs-before.Mallocs)/(middle-warm), (after.Mallocs-between.Mallocs)/(last-middle)
	require.InEpsilon(t, first, second, 0.01, "allocations do not grow with the steps")
	allocations, bytes := (after.Mallocs-before.Mallocs)/(last-warm), (after.TotalAlloc-before.TotalAlloc)/(last-warm)
	t.Logf("%d allocations and %d bytes per step; %d bytes of the device in use, %d at most", allocations, bytes,
		inUse[0], peak)
	require.Less(t, allocations, uint64(maxAllocations))
	require.Less(t, bytes, uint64(maxAllocatedBytes))
}

// TestEvaluationLeavesNothingOnTheDevice evaluates and predicts again and again.
func TestEvaluationLeavesNothingOnTheDevice(t *testing.T) {
	dev := tensor.NewCPU(1)
	m, err := gpt2.New(nn.NewInit(dev, 1), newGPT2(t, 0.1).Cfg)
	require.NoError(t, err)
	for _, workers := range []int{0, 2} {
		tr := newTrainer(vfs.NewMem(), m, lineArgs(func(a *args.TrainingArguments) {
			a.DataloaderNumWorkers = workers
		}),
			trainer.WithDevice(dev), trainer.WithEvalData(texts(40)))
		dev.Collect()
		before := dev.MemStats().InUse
		for range 3 {
			_, err := tr.Evaluate()
			require.NoError(t, err)
			_, err = tr.Predict(texts(9))
			require.NoError(t, err)
			require.Equal(t, before, dev.MemStats().InUse)
		}
	}
}

// TestNoGoroutineOutlivesARun trains, is interrupted and fails, with workers.
func TestNoGoroutineOutlivesARun(t *testing.T) {
	workers := func(a *args.TrainingArguments) { a.DataloaderNumWorkers = 3 }
	r := recipe{set: workers}
	tr, _ := r.trainer(t, vfs.NewMem(), nil)
	_, err := tr.Train() // starts the device's own workers, which stay
	require.NoError(t, err)
	before := goleak.IgnoreCurrent()

	disk := vfs.NewMem()
	tr, _ = r.trainer(t, disk, func(a *args.TrainingArguments) { a.EvalStrategy = args.StrategyEpoch })
	_, err = tr.Train()
	require.NoError(t, err)
	disk = vfs.NewMem()
	_, _, err = interruption{callbacks.StepBegin, 5}.train(t, r, disk, nil)
	require.ErrorIs(t, err, trainer.ErrInterrupted)
	_, _, err = interruption{callbacks.PredictionStep, 2}.train(t, r, vfs.NewMem(), func(a *args.TrainingArguments) {
		a.EvalStrategy = args.StrategyEpoch
	})
	require.ErrorIs(t, err, trainer.ErrInterrupted)
	r.opts = stopEpochAt(3, 9)
	tr, _ = r.trainer(t, vfs.NewMem(), nil)
	_, err = tr.Train()
	require.NoError(t, err)
	r.opts = func() []trainer.Option {
		return []trainer.Option{on(callbacks.StepEnd, func(*callbacks.Event) error { return errEnough })}
	}
	tr, _ = r.trainer(t, vfs.NewMem(), nil)
	_, err = tr.Train()
	require.ErrorIs(t, err, errEnough)
	require.NoError(t, goleak.Find(before))
}
