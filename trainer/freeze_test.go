// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/trainer"
)

// thaw freezes the first layer's weight when training begins, and unfreezes it after a step.
type thaw struct {
	callbacks.Base
	after int64
	mu    sync.Mutex // the ranks share it
	begin []byte     // the weight when training begins
	thaw  []byte     // and when it is unfrozen
}

func (*thaw) EveryRank() {}

func (f *thaw) OnTrainBegin(e *callbacks.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := e.Model.(*mlp.Model)
	f.begin = weights(m)["layers.0.weight"]
	m.Layers[0].Weight.SetRequiresGrad(false)
	return nil
}

func (f *thaw) OnStepEnd(e *callbacks.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := e.Model.(*mlp.Model); e.State.GlobalStep == f.after {
		f.thaw = weights(m)["layers.0.weight"]
		m.Layers[0].Weight.SetRequiresGrad(true)
	}
	return nil
}

func thawed(t *testing.T, ranks int, cb ...callbacks.Callback) (*mlp.Model, error) {
	m := newMLP(t, 1, 4, 1)
	tr := newTrainer(vfs.NewMem(), m, lineArgs(func(a *args.TrainingArguments) {
		a.NumReplicas, a.GlobalTrainBatchSize = ranks, 32
	}),
		trainer.WithTrainData(source(points(64))), trainer.WithCallbacks(cb...))
	_, err := tr.Train()
	require.NoError(t, tr.Close())
	return m, err
}

func TestLayersCanBeFrozenAndUnfrozenBetweenSteps(t *testing.T) {
	var want map[string][]byte
	for _, ranks := range []int{1, 2, 4} {
		f := &thaw{after: 3}
		m, err := thawed(t, ranks, f)
		require.NoError(t, err)
		got := weights(m)
		require.True(t, bytes.Equal(f.begin, f.thaw), "frozen, it stays")
		require.False(t, bytes.Equal(f.thaw, got["layers.0.weight"]), "unfrozen, it is trained")
		if want == nil {
			want = got
		}
		require.Equal(t, want, got, "%d ranks", ranks)
	}
}

func TestWhatIsFrozenBeforeTrainingCannotBeUnfrozen(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		m := newMLP(t, 1, 4, 1)
		m.Layers[0].Weight.SetRequiresGrad(false)
		tr := newTrainer(vfs.NewMem(), m, lineArgs(func(a *args.TrainingArguments) {
			a.NumReplicas, a.GlobalTrainBatchSize = ranks, 32
		}),
			trainer.WithTrainData(source(points(64))), trainer.WithCallbacks(&thaw{after: 3}))
		_, err := tr.Train()
		requireOneError(t, err, "layers.0.weight", "frozen at Prepare")
		require.NoError(t, tr.Close())
	}
}

// What was frozen in the run of a checkpoint and is trained after a resume begins without moments, and the others keep
// theirs: as if it had been thawed between two steps. The other way round, the moments are forgotten.
func TestResumeWithOtherFrozenParameters(t *testing.T) {
	const layer = "transformer.h.0."
	freeze := func(m *gpt2.Model) {
		for _, p := range nn.NamedParameters(m) {
			if strings.HasPrefix(p.Name, layer) {
				p.SetRequiresGrad(false)
			}
		}
	}
	for name, ranks := range map[string]func(*args.TrainingArguments){
		"one rank": func(*args.TrainingArguments) {},
		"zero 1":   func(a *args.TrainingArguments) { a.ZeroStage = 1 },
		"sharded": func(a *args.TrainingArguments) {
			a.ZeroStage, a.FSDPStateDictType = 3, args.ShardedStateDict
		},
		"pipeline": func(a *args.TrainingArguments) { a.PPSize = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := func(a *args.TrainingArguments) {
				a.MaxSteps, a.SaveStrategy, a.SaveSteps, a.GlobalTrainBatchSize = 8, args.StrategySteps, 4, 8
				a.PerDeviceTrainBatchSize, a.LearningRate, a.OverwriteOutputDir = 2, 0.01, true
				if ranks(a); name != "one rank" {
					a.NumReplicas = 2
				}
			}
			train := func(disk vfs.FS, m *gpt2.Model, log *messages, more ...func(*args.TrainingArguments)) {
				a := lineArgs(append([]func(*args.TrainingArguments){set}, more...)...)
				tr := newTrainer(disk, m, a, trainer.WithTrainData(texts(30)), trainer.WithLogger(log.logger()))
				_, err := tr.Train()
				require.NoError(t, err)
				require.NoError(t, tr.Close())
			}
			log, quiet := &messages{}, &messages{}
			want := newGPT2(t, 0)
			whole := vfs.NewMem()
			train(whole, want, quiet, func(a *args.TrainingArguments) {
				a.ParamGroups = map[string]any{"^transformer[.]h[.]0[.]": "frozen_steps=4"}
			})
			disk := vfs.NewMem()
			first := newGPT2(t, 0)
			freeze(first)
			train(disk, first, quiet)
			got := newGPT2(t, 0)
			train(disk, got, log, resumeFrom(4))
			require.Equal(t, weights(want), weights(got))
			require.Contains(t, log.String(), "other frozen parameters")
			require.NotContains(t, quiet.String(), "other frozen parameters")

			again := newGPT2(t, 0)
			freeze(again)
			train(whole, again, log, resumeFrom(4))
			before, after := weights(first), weights(again)
			for name := range before {
				if strings.HasPrefix(name, layer) {
					require.True(t, bytes.Equal(before[name], after[name]), "frozen, %s stays", name)
				}
			}
		})
	}
}
