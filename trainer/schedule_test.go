// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// oneCycle rises from 1/25 of the learning rate to all of it in the first 30 % of the run, and falls to 1/250000, both
// like a cosine, as torch.optim.lr_scheduler.OneCycleLR.
func oneCycle(_, total int64) optim.Schedule {
	peak := 0.3*float64(total) - 1
	between := func(from, to, x float64) float64 { return to + (from-to)/2*(1+math.Cos(math.Pi*x)) }
	return optim.ScheduleFunc(func(step int64) float64 {
		if s := float64(step); s > peak {
			return between(1, 4e-6, min((s-peak)/(float64(total)-1-peak), 1))
		}
		return between(0.04, 1, float64(step)/peak)
	})
}

// A schedule of the program's: one cycle of the learning rate.
func ExampleWithSchedule() {
	var samples data.Slice[exampleSample]
	for i := range 64 {
		x := float32(i)/16 - 2
		samples = append(samples, exampleSample{Inputs: [1]float32{x}, Labels: [1]float32{2*x + 3}})
	}
	model, err := mlp.New(nn.NewInit(tensor.CPU(), 42), mlp.Config{Sizes: []int{1, 1}})
	if err != nil {
		panic(err)
	}
	dir, err := os.MkdirTemp("", "cycle")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	a := args.Default(dir)
	a.LearningRate, a.MaxSteps, a.LoggingSteps, a.SaveStrategy = 0.5, 10, 3, args.StrategyNo
	t := trainer.New(model, a, trainer.WithTrainData(data.NewSource(samples, data.Stack[exampleSample])),
		trainer.WithSchedule(oneCycle), trainer.WithDisplay(nil))
	if _, err := t.Train(); err != nil {
		panic(err)
	}
	for _, record := range t.State().LogHistory {
		if rate, ok := record.Number("learning_rate"); ok {
			fmt.Printf("step %v: %.3f\n", record["step"], rate)
		}
	}
	// Output:
	// step 3: 0.500
	// step 6: 0.306
	// step 9: 0.025
}

// The example has the factors of torch's OneCycleLR (testdata/one_cycle.py).
func TestOneCycle(t *testing.T) {
	text, err := os.ReadFile("testdata/one_cycle.json")
	require.NoError(t, err)
	var golden struct {
		Runs []struct {
			Total   int64
			Factors []float64
		}
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	require.Len(t, golden.Runs, 3)
	for _, run := range golden.Runs {
		schedule := oneCycle(0, run.Total)
		for step, want := range run.Factors {
			require.InDelta(t, want, schedule.Factor(int64(step)), 1e-15, "step %d of %d", step, run.Total)
		}
	}
}

// The schedule of a program decides every step's rate, is asked with the run's numbers of steps, and a resumed run goes
// on at the same rates.
func TestWithSchedule(t *testing.T) {
	set := func(a *args.TrainingArguments) {
		a.SaveStrategy, a.SaveSteps, a.WarmupSteps = args.StrategySteps, 6, 3
	}
	data := trainer.WithTrainData(columnsOf(points(64)).rows(0, 64))
	var asked [][2]int64
	schedule := trainer.WithSchedule(func(warmup, total int64) optim.Schedule {
		asked = append(asked, [2]int64{warmup, total})
		return oneCycle(warmup, total)
	})
	disk, whole := vfs.NewMem(), newLine(0, 0)
	tr := newTrainer(disk, whole, lineArgs(set), data, schedule)
	_, err := tr.Train()
	require.NoError(t, err)
	total := tr.State().GlobalStep
	require.Equal(t, [][2]int64{{3, total}}, asked)

	linear := newLine(0, 0)
	_, err = newTrainer(vfs.NewMem(), linear, lineArgs(set), data).Train()
	require.NoError(t, err)
	require.NotEqual(t, weights(linear), weights(whole))

	again := newLine(0, 0)
	_, err = newTrainer(disk.CrashClone(nil), again, lineArgs(set, resumeFrom(6)), data, schedule).Train()
	require.NoError(t, err)
	require.Equal(t, weights(whole), weights(again))

	for want, f := range map[string]trainer.ScheduleFunc{
		"trainer: the function passed to WithSchedule returned no schedule": func(int64, int64) optim.Schedule {
			return nil
		},
		"the schedule's factor is NaN: want a finite number of at least 0": func(int64, int64) optim.Schedule {
			return optim.ScheduleFunc(func(int64) float64 { return math.NaN() })
		},
		"the schedule's factor is -1: want a finite number of at least 0": func(int64, int64) optim.Schedule {
			return optim.ScheduleFunc(func(int64) float64 { return -1 })
		},
	} {
		_, err := newTrainer(vfs.NewMem(), newLine(0, 0), lineArgs(), data, trainer.WithSchedule(f)).Train()
		require.ErrorContains(t, err, want)
	}
}

// rateWatch has the rates of each step, of all ranks.
type rateWatch struct {
	callbacks.Base
	mu    sync.Mutex
	rates map[int64][]float64
}

func (*rateWatch) EveryRank() {}

func (w *rateWatch) OnStepEnd(e *callbacks.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rates[e.State.GlobalStep] = append(w.rates[e.State.GlobalStep], e.Step.LearningRate)
	return nil
}

// Where the ranks' metrics differ, all go on at the rates that follow from rank 0's.
func TestMetricSchedulesTakeRankZerosMetric(t *testing.T) {
	log, watch := &messages{}, &rateWatch{rates: map[int64][]float64{}}
	calls := new(atomic.Int64) // better on every second rank that computes it, worse on the others
	split := trainer.LossMetric(func(trainer.EvalLoss) map[string]float64 {
		n := calls.Add(1)
		return map[string]float64{"split": float64(n * (n%2*2 - 1))}
	})
	a := lineArgs(func(a *args.TrainingArguments) {
		a.NumReplicas, a.PerDeviceTrainBatchSize = 2, 4
		a.EvalStrategy, a.EvalSteps, a.MetricForBestModel = args.StrategySteps, new(2.0), "split"
		a.LRSchedulerType = args.SchedulerGreedy
		a.LRSchedulerKwargs = map[string]any{"patience": 0, "verbose": true, "min_lr": 0.4}
	})
	points := source(points(64))
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(points), trainer.WithEvalData(points),
		trainer.WithMetrics(split), trainer.WithCallbacks(watch), trainer.WithLogger(log.logger()))
	_, err := tr.Train()
	require.NoError(t, err)
	require.NoError(t, tr.Close())
	require.Len(t, watch.rates, 24)
	for step, rates := range watch.rates {
		require.Len(t, rates, 2)
		require.Equal(t, rates[0], rates[1], "step %d", step)
	}
	for _, want := range []string{"the schedule changed the learning rates", "below the schedule's min_lr",
		"disagree on which metric is better"} {
		require.Contains(t, log.String(), want)
	}
}
