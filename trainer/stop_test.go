// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/trainer"
)

func TestEarlyStoppingGivesItsReason(t *testing.T) {
	var told callbacks.StopReason
	a := lineArgs(func(a *args.TrainingArguments) {
		a.EvalStrategy, a.EvalSteps, a.LearningRate = args.StrategySteps, new(1.0), 20 // which diverges
	})
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(64))),
		trainer.WithEvalData(source(points(8))),
		trainer.WithCallbacks(&callbacks.EarlyStopping{Patience: 2}),
		on(callbacks.TrainEnd, func(e *callbacks.Event) error { told = e.Control.StopReason; return nil }))
	res, err := tr.Train()
	require.NoError(t, err)
	require.Less(t, res.GlobalStep, int64(24))
	require.Equal(t, callbacks.StopCallback, res.StopReason.Kind)
	require.Regexp(t, `^EarlyStoppingCallback: no eval_loss below \d+\.\d{4} in 2 evaluations$`,
		res.StopReason.String())
	require.Equal(t, res.StopReason, told)
}

// quitter asks for the end after step 2, on all ranks but the first.
type quitter struct {
	callbacks.Base
	first nn.Module // the first rank's model
}

func (*quitter) EveryRank() {}

func (q *quitter) OnStepEnd(e *callbacks.Event) error {
	if e.Model != q.first && e.State.GlobalStep == 2 {
		e.Control.StopTraining("enough")
	}
	return nil
}

func TestAnotherRankStops(t *testing.T) {
	m := newGPT2(t, 0)
	tr := newTrainer(vfs.NewMem(), m, rankArgs(2), trainer.WithTrainData(raggedTexts(51)),
		trainer.WithEvalData(raggedTexts(13)),
		trainer.WithCallbacks(&quitter{first: m}))
	res, err := tr.Train()
	require.NoError(t, err)
	require.EqualValues(t, 2, res.GlobalStep)
	require.Equal(t, callbacks.StopReason{Kind: callbacks.StopOtherRank}, res.StopReason)
	require.Equal(t, "asked for by another rank", res.StopReason.String())
}

// TestRunInfo looks at what callbacks are told of a run: frozen parameters do not count as trained.
func TestRunInfo(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		m := newGPT2(t, 0)
		m.Transformer.WTE.Weight.SetRequiresGrad(false)
		all, frozen := int64(0), int64(m.Transformer.WTE.Weight.Numel())
		for _, bits := range weights(m) {
			all += int64(len(bits) / 4)
		}
		var got *callbacks.RunInfo
		tr := newTrainer(vfs.NewMem(), m, rankArgs(ranks), trainer.WithTrainData(raggedTexts(51)),
			trainer.WithEvalData(raggedTexts(13)),
			on(callbacks.TrainBegin, func(e *callbacks.Event) error { got = e.Run; return nil }))
		_, err := tr.Train()
		require.NoError(t, err)
		require.Positive(t, got.Threads)
		require.NotEmpty(t, got.Kernels)
		got.Threads, got.Kernels = 0, ""
		require.Equal(t, &callbacks.RunInfo{
			Device: "cpu", Ranks: ranks, Mesh: map[int]string{2: "dp_replicate=2 [0 1]"}[ranks],
			Precision: "float32", Parameters: all, Trainable: all - frozen, Samples: 51,
			Steps: 8, BatchSize: 2, TotalBatch: 16,
		}, got)
	}
}

// TestDisplayAndLog trains with a display into a file: what it says is not logged too.
func TestDisplayAndLog(t *testing.T) {
	shown, err := os.Create(filepath.Join(t.TempDir(), "shown"))
	require.NoError(t, err)
	defer shown.Close()
	log := &messages{}
	a := lineArgs(func(a *args.TrainingArguments) { a.MaxTrainSeconds = 1e-9 })
	run := func(opts ...trainer.Option) {
		opts = append([]trainer.Option{trainer.WithTrainData(source(points(64))), trainer.WithLogger(log.logger())},
			opts...)
		_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, opts...).Train()
		require.NoError(t, err)
	}
	run(trainer.WithDisplay(shown))
	text, err := os.ReadFile(shown.Name())
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.Regexp(t,
		`^training on cpu \(\w+, \d+ threads?\), 1 rank, float32: 2 parameters, 64 samples, 24 steps of 8$`, lines[0])
	require.Equal(t, "stopped after 1 of 24 steps: max_train_seconds 1e-09 reached", lines[len(lines)-1])
	require.NotContains(t, log.String(), "msg=training")

	run()
	require.Equal(t, 1, strings.Count(log.String(), "msg=training device=cpu"))
	require.Contains(t, log.String(),
		`msg="training stopped early" step=1 max_steps=24 reason="max_train_seconds 1e-09 reached"`)
}
