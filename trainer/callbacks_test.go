// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer"
)

// seen is a callback that keeps the events of a rank.
type seen struct {
	callbacks.Base
	events []callbacks.Kind
}

func (s *seen) OnTrainBegin(e *callbacks.Event) error { return s.keep(e) }
func (s *seen) OnEvaluate(e *callbacks.Event) error   { return s.keep(e) }
func (s *seen) OnTrainEnd(e *callbacks.Event) error   { return s.keep(e) }
func (s *seen) keep(e *callbacks.Event) error {
	s.events = append(s.events, e.Kind)
	return nil
}

// everywhere is a callback of every rank; its events are in the order of the ranks' goroutines.
type everywhere struct {
	callbacks.Base
	mu sync.Mutex
	f  func(e *callbacks.Event) error
}

func (s *everywhere) EveryRank() {}
func (s *everywhere) OnTrainBegin(e *callbacks.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.f(e)
}

// Callbacks come and go between runs, on every rank that is theirs.
func TestCallbacksAreAddedAndRemoved(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		one, begun := &seen{}, 0
		every := &everywhere{f: func(*callbacks.Event) error { begun++; return nil }}
		a := lineArgs(func(a *args.TrainingArguments) { a.NumReplicas, a.OverwriteOutputDir = ranks, true })
		tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(20))))
		require.NoError(t, tr.AddCallback(one))
		require.NoError(t, tr.AddCallback(every))
		_, err := tr.Train()
		require.NoError(t, err)
		require.Equal(t, []callbacks.Kind{callbacks.TrainBegin, callbacks.TrainEnd}, one.events)
		require.Equal(t, ranks, begun)

		got, err := tr.RemoveCallback("seen")
		require.NoError(t, err)
		require.Same(t, one, got)
		_, err = tr.RemoveCallback("everywhere")
		require.NoError(t, err)
		_, err = tr.Train()
		require.NoError(t, err)
		require.Len(t, one.events, 2)
		require.Equal(t, ranks, begun)
	}
}

func TestCallbacksAreNotAddedWrongly(t *testing.T) {
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs(), trainer.WithTrainData(source(points(20))))
	requireOneError(t, tr.AddCallback(nil), "AddCallback got a nil callback")
	_, err := tr.RemoveCallback("seen")
	requireOneError(t, err, `there is no callback "seen": want one of DefaultFlowCallback, Speed`)

	require.NoError(t, tr.AddCallback(&everywhere{f: func(*callbacks.Event) error {
		err := tr.AddCallback(&seen{})
		_, remove := tr.RemoveCallback("everywhere")
		requireOneError(t, err, "cannot be added or removed while")
		requireOneError(t, remove, "cannot be added or removed while")
		return nil
	}}))
	_, err = tr.Train()
	require.NoError(t, err)
}

// A callback cannot have the ranks do something else in the middle of their work, and they finish it.
func TestCallbacksDoNotRunTheTrainer(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		for _, whole := range []bool{false, true} { // whether each rank calls
			a := lineArgs(func(a *args.TrainingArguments) { a.NumReplicas, a.MaxSteps = ranks, 3 })
			tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(20))),
				trainer.WithEvalData(source(points(3))))
			misuse := func(e *callbacks.Event) error {
				_, train := tr.Train()
				_, evaluate := tr.Evaluate()
				_, evaluateOn := tr.EvaluateOn(t.Context(), source(points(3)), "")
				_, predict := tr.Predict(source(points(3)))
				requireOneError(t, train, "Train during a run: want it after the run")
				requireOneError(t, evaluate, "Evaluate during a run: want Control.ShouldEvaluate")
				requireOneError(t, evaluateOn, "EvaluateOn during a run: want Control.ShouldEvaluate")
				requireOneError(t, predict, "Predict during a run: want it after the run")
				requireOneError(t, tr.Close(), "Close during a run: want it after the run")
				e.Control.ShouldEvaluate = true
				return nil
			}
			if whole {
				require.NoError(t, tr.AddCallback(&everywhere{f: misuse}))
			} else {
				require.NoError(t, tr.AddCallback(&every{misuse}))
			}
			evaluated := 0
			require.NoError(t, tr.AddCallback(&every{func(e *callbacks.Event) error {
				if e.Kind == callbacks.Evaluate {
					evaluated++
				}
				return nil
			}}))
			result, err := tr.Train()
			require.NoError(t, err)
			require.EqualValues(t, 3, result.GlobalStep)
			require.Equal(t, !whole, evaluated > 0, "before the first step nothing is evaluated")
			_, err = tr.Evaluate()
			require.NoError(t, err)
			require.NoError(t, tr.Close())
		}
	}
}

// The display goes by its name too.
func TestDisplayIsRemoved(t *testing.T) {
	var shown bytes.Buffer
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs(), trainer.WithTrainData(source(points(20))),
		trainer.WithDisplay(&shown))
	_, err := tr.RemoveCallback("Printer")
	require.NoError(t, err)
	_, err = tr.Train()
	require.NoError(t, err)
	require.Empty(t, shown.String())
}

// Callbacks get the parts of a run, and ranks tell each other something by them.
func TestCallbacksSeeTheRun(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		told := map[int]string{}
		every := &everywhere{}
		every.f = func(e *callbacks.Event) error {
			require.NotEmpty(t, e.Optimizer.Groups())
			require.Equal(t, 1.0, e.Schedule.Factor(0))
			require.EqualValues(t, 0, e.Windows.Epoch())
			require.EqualValues(t, 0, e.Windows.Position())
			require.NotZero(t, e.Windows.MicroBatches())
			require.NotEmpty(t, e.Windows.Fingerprint())
			every.mu.Unlock() // the other rank is waited for
			all, err := e.Ranks.GatherBytes(context.Background(), fmt.Appendf(nil, "rank %d", e.Ranks.Rank()))
			every.mu.Lock()
			told[e.Ranks.Rank()] = string(bytes.Join(all, []byte(", ")))
			return err
		}
		a := lineArgs(func(a *args.TrainingArguments) { a.NumReplicas = ranks })
		var optimizer, evaluated bool
		tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(20))),
			trainer.WithEvalData(source(points(3))), trainer.WithCallbacks(every),
			on(callbacks.Log, func(e *callbacks.Event) error { optimizer = e.Optimizer != nil; return nil }),
			on(callbacks.Evaluate, func(e *callbacks.Event) error { evaluated = e.Optimizer == nil; return nil }))
		_, err := tr.Train()
		require.NoError(t, err)
		require.True(t, optimizer)
		_, err = tr.Evaluate()
		require.NoError(t, err)
		require.True(t, evaluated, "there is none outside of a run")
		want := strings.Join([]string{"rank 0", "rank 1"}[:ranks], ", ")
		for rank := range ranks {
			require.Equal(t, want, told[rank])
		}
	}
}

// Another set than the trainer's is evaluated under its own prefix, with the same figures on any number of ranks.
func TestEvaluateOn(t *testing.T) {
	list := points(61)
	for _, ranks := range []int{1, 2} {
		a := lineArgs(func(a *args.TrainingArguments) { a.NumReplicas = ranks })
		tr := newTrainer(vfs.NewMem(), newExactLine(1.5, 2), a, trainer.WithEvalData(exactly(list[:3])))
		keys := map[string]string{"train": "train_loss", "held_out_": "held_out_loss", "": "eval_loss"}
		for prefix, key := range keys {
			m, err := tr.EvaluateOn(t.Context(), exactly(list), prefix)
			require.NoError(t, err)
			require.InDelta(t, meanSquare(list, 1.5, 2), m[key], 1e-13)
			history := tr.State().LogHistory
			require.Equal(t, m[key], history[len(history)-1][key])
		}
		stream := data.NewIterableSource(streamed[exact]{Slice: exacts(list)}, data.Stack[exact])
		m, err := tr.EvaluateIterableOn(t.Context(), stream, "stream")
		require.NoError(t, err)
		require.InDelta(t, meanSquare(list, 1.5, 2), m["stream_loss"], 1e-13)
		_, err = tr.EvaluateOn(t.Context(), nil, "train")
		requireOneError(t, err, "EvaluateOn has no data")
		_, err = tr.EvaluateOn(t.Context(), exactly(nil), "train")
		requireOneError(t, err, `evaluation set "train" is empty`)
	}
}
