// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models/mlp"
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
