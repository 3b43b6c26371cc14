// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer"
)

// seconds is a clock by which each step takes a second: a step looks at it when it begins and when it ends.
func seconds() trainer.Option {
	var now time.Time
	ends := false
	return trainer.WithClock(func() time.Time {
		if ends = !ends; !ends {
			now = now.Add(time.Second)
		}
		return now
	})
}

// timed is a run of many steps that ends after 10 seconds, and the learning rates of its steps.
func timed(t *testing.T, disk *vfs.Mem, set func(*args.TrainingArguments), opts ...trainer.Option) (rates []float64,
	final map[string][]byte, res *trainer.Result) {
	t.Helper()
	m := newMLP(t, 1, 1)
	a := lineArgs(func(a *args.TrainingArguments) {
		a.LearningRate, a.MaxSteps, a.MaxTrainSeconds, a.LRSchedulerType = 1, 1000, 10, args.SchedulerLinear
		a.SaveStrategy, a.SaveSteps = args.StrategySteps, 1
		set(a)
	})
	opts = append([]trainer.Option{trainer.WithTrainData(source(points(64))), seconds(),
		on(callbacks.StepEnd, func(e *callbacks.Event) error {
			rates = append(rates, e.Step.LearningRate)
			return nil
		})}, opts...)
	res, err := newTrainer(disk, m, a, opts...).Train()
	require.NoError(t, err)
	return rates, weights(m), res
}

// A run that max_train_seconds end has decayed its learning rate by then, as one of so many steps has.
func TestScheduleByTime(t *testing.T) {
	for name, k := range map[string]struct {
		set  func(*args.TrainingArguments)
		want []float64
	}{
		"linear": {func(*args.TrainingArguments) {}, []float64{1, .945, .84, .735, .63, .525, .42, .315, .21, .105}},
		"by steps": {func(a *args.TrainingArguments) { a.LRScheduleByTime = false },
			[]float64{1, .999, .998, .997, .996}},
		"two steps of warm-up": {func(a *args.TrainingArguments) { a.WarmupSteps = 2 },
			[]float64{0, .5, 1, .919, .788, .656, .525, .394, .263, .131}},
		"more warm-up than there is time for": {func(a *args.TrainingArguments) { a.WarmupSteps = 50 },
			[]float64{0, .5, 1, .919, .788, .656, .525, .394, .263, .131}},
		"a fifth of warm-up": {func(a *args.TrainingArguments) { a.WarmupSteps = 0.2 },
			[]float64{0, .275, .8, .919, .788, .656, .525, .394, .263, .131}},
		"no end": {func(a *args.TrainingArguments) {
			a.LRSchedulerType, a.WarmupSteps = args.SchedulerInverseSqrt, 1
		}, []float64{0, 1, 0.7071, 0.5774}},
	} {
		t.Run(name, func(t *testing.T) {
			rates, _, res := timed(t, vfs.NewMem(), k.set)
			require.EqualValues(t, 10, res.GlobalStep)
			require.Equal(t, callbacks.StopTimeLimit, res.StopReason.Kind)
			require.InDeltaSlice(t, k.want, rates[:len(k.want)], 0.002)
		})
	}
}

// Where the steps end first, the clock changes no bit.
func TestScheduleOfARunThatHasTime(t *testing.T) {
	steps := func(limit float64) (map[string][]byte, []float64) {
		rates, final, res := timed(t, vfs.NewMem(), func(a *args.TrainingArguments) {
			a.MaxSteps, a.MaxTrainSeconds = 8, limit
		})
		require.EqualValues(t, 8, res.GlobalStep)
		return final, rates
	}
	want, wantRates := steps(0)
	for _, limit := range []float64{8, 10} {
		got, rates := steps(limit)
		require.Equal(t, wantRates, rates)
		require.Equal(t, want, got)
	}

	var now time.Time // a first step of 5 seconds
	looks := 0
	slow := trainer.WithClock(func() time.Time {
		if looks++; looks == 2 {
			now = now.Add(4 * time.Second)
		}
		if looks%2 == 0 {
			now = now.Add(time.Second)
		}
		return now
	})
	set := func(limit float64) func(*args.TrainingArguments) {
		return func(a *args.TrainingArguments) { a.MaxSteps, a.MaxTrainSeconds = 100, limit }
	}
	plain, _, _ := timed(t, vfs.NewMem(), set(0))
	late, _, res := timed(t, vfs.NewMem(), set(120), slow)
	require.EqualValues(t, 100, res.GlobalStep)
	require.Equal(t, plain, late)
}

// An interrupted run goes on with the time that is left: rates and bits are those of the run without the interrupt.
func TestScheduleByTimeAfterAnInterrupt(t *testing.T) {
	for _, warmup := range []float64{0, 3} {
		set := func(a *args.TrainingArguments) { a.WarmupSteps = warmup }
		disk := vfs.NewMem()
		wantRates, want, _ := timed(t, disk, set)
		for _, step := range []int64{1, 3, 6} {
			rates, got, res := timed(t, disk.CrashClone(nil), func(a *args.TrainingArguments) {
				set(a)
				resumeFrom(step)(a)
			})
			require.EqualValues(t, 10, res.GlobalStep)
			require.Equal(t, wantRates[step:], rates)
			require.Equal(t, want, got)
		}
	}
}

// A run that has used up its time goes on for as long again, as under twice the limit; interrupted there, too.
func TestResumeAfterTheTime(t *testing.T) {
	disk := vfs.NewMem()
	timed(t, disk, func(*args.TrainingArguments) {})
	rates, want, res := timed(t, disk, resumeFrom(10))
	require.EqualValues(t, 20, res.GlobalStep)
	require.InDeltaSlice(t, []float64{.525, .473, .42, .368, .315, .263, .21, .158, .105, .053}, rates, 0.002)

	again, got, res := timed(t, disk, resumeFrom(15))
	require.EqualValues(t, 20, res.GlobalStep)
	require.Equal(t, rates[5:], again)
	require.Equal(t, want, got)

	_, _, res = timed(t, disk, func(a *args.TrainingArguments) {
		resumeFrom(10)(a)
		a.MaxTrainSeconds = 12
	})
	require.EqualValues(t, 12, res.GlobalStep, "a larger limit is the limit")
}

// rates records the learning rates of every rank.
type ratesOfRanks struct {
	callbacks.Base
	mu    sync.Mutex
	rates map[string][]float64 // by step, of all ranks
}

func (*ratesOfRanks) EveryRank() {}

func (r *ratesOfRanks) OnStepEnd(e *callbacks.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	step := fmt.Sprint(e.State.GlobalStep)
	r.rates[step] = append(r.rates[step], e.Step.LearningRate)
	return nil
}

// Ranks whose clocks differ have one learning rate and end after the same step: the time is rank 0's.
func TestScheduleByTimeOnRanks(t *testing.T) {
	var ticks atomic.Int64
	clock := func() time.Time { // each look by any rank takes a while
		n := ticks.Add(1)
		return time.Unix(0, n*n*int64(time.Millisecond))
	}
	seen := &ratesOfRanks{rates: map[string][]float64{}}
	_, _, res := timed(t, vfs.NewMem(), func(a *args.TrainingArguments) { a.NumReplicas = 4 },
		trainer.WithClock(clock), trainer.WithCallbacks(seen))
	require.Equal(t, callbacks.StopTimeLimit, res.StopReason.Kind)
	require.Greater(t, res.GlobalStep, int64(5))
	require.Len(t, seen.rates, int(res.GlobalStep))
	for step, rates := range seen.rates {
		require.Len(t, rates, 4, "step %s", step)
		require.Equal(t, []float64{rates[0], rates[0], rates[0], rates[0]}, rates, "step %s", step)
	}
	require.Less(t, seen.rates[fmt.Sprint(res.GlobalStep)][0], 0.5)
}
