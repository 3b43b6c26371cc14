// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer"
)

// TestLogLevelOnRankZero trains one step with a callback that logs a warning, too.
func TestLogLevelOnRankZero(t *testing.T) {
	for level, shown := range map[args.LogLevel][2]bool{
		args.LogLevelPassive: {true, true},
		args.LogLevelInfo:    {true, true},
		args.LogLevelWarning: {false, true},
		args.LogLevelError:   {false, false},
	} {
		t.Run(string(level), func(t *testing.T) {
			log := &messages{}
			a := lineArgs(func(a *args.TrainingArguments) { a.LogLevel, a.MaxSteps = level, 1 })
			_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(8))),
				trainer.WithLogger(log.logger()),
				on(callbacks.StepEnd, func(e *callbacks.Event) error { e.Log.Warn("odd"); return nil })).Train()
			require.NoError(t, err)
			require.Equal(t, shown[0], strings.Contains(log.String(), "level=INFO msg=training"))
			require.Equal(t, shown[1], strings.Contains(log.String(), "level=WARN msg=odd"))
		})
	}
}

// TestLogLevelLowersTheDefaultLogger shows messages that slog's default logger would leave out; a program's own logger
// keeps its level.
func TestLogLevelLowersTheDefaultLogger(t *testing.T) {
	log, before := &messages{}, slog.Default()
	slog.SetDefault(log.logger())
	defer slog.SetDefault(before)
	display, err := os.Create(filepath.Join(t.TempDir(), "display"))
	require.NoError(t, err)
	defer display.Close()
	own := &messages{}
	for _, opt := range []trainer.Option{trainer.WithLogger(nil), trainer.WithLogger(own.logger())} {
		a := lineArgs(func(a *args.TrainingArguments) { a.LogLevel, a.MaxSteps = args.LogLevelDebug, 1 })
		_, err = newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(8))),
			trainer.WithDisplay(display), opt).Train()
		require.NoError(t, err)
	}
	require.Contains(t, log.String(), "level=DEBUG msg=training")
	require.NotContains(t, own.String(), "level=DEBUG")
}

// TestConstantIgnoresTheWarmUp trains at the full rate from the first step, as HuggingFace's Trainer does, and says so.
func TestConstantIgnoresTheWarmUp(t *testing.T) {
	log := &messages{}
	a := lineArgs(func(a *args.TrainingArguments) {
		a.LRSchedulerType, a.WarmupSteps, a.MaxSteps = args.SchedulerConstant, 5, 2
	})
	var rates []float64
	_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(16))),
		trainer.WithLogger(log.logger()),
		on(callbacks.StepEnd, func(e *callbacks.Event) error {
			rates = append(rates, e.Step.LearningRate)
			return nil
		})).Train()
	require.NoError(t, err)
	require.Equal(t, []float64{0.3, 0.3}, rates)
	require.Contains(t, log.String(), "warmup_steps has no effect")
}

// TestScheduleFreeWantsConstant: another schedule than constant, such as the default, is taken as in HuggingFace, and
// warned of.
func TestScheduleFreeWantsConstant(t *testing.T) {
	for schedule, warns := range map[args.SchedulerType]bool{args.SchedulerLinear: true, args.SchedulerConstant: false,
		args.SchedulerConstantWithWarmup: false} {
		log := &messages{}
		a := lineArgs(func(a *args.TrainingArguments) {
			a.Optim, a.LRSchedulerType, a.MaxSteps = "schedule_free_sgd", schedule, 1
		})
		_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(16))),
			trainer.WithLogger(log.logger())).Train()
		require.NoError(t, err)
		require.Equal(t, warns, strings.Contains(log.String(), "want lr_scheduler_type constant"), schedule)
	}
}
