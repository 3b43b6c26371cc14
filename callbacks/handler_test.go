// SPDX-License-Identifier: Apache-2.0

package callbacks_test

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
)

type failing struct {
	callbacks.Base
	do func() error
}

func (f *failing) OnStepEnd(*callbacks.Event) error  { return f.do() }
func (f *failing) OnTrainEnd(*callbacks.Event) error { return f.do() }

func fire(h *callbacks.Handler, k callbacks.Kind) error {
	return h.Fire(k, &callbacks.Event{Args: args.Default(""), State: &callbacks.State{MaxSteps: 10},
		Control: &callbacks.Control{}})
}

func TestFailuresNameCallbackAndEvent(t *testing.T) {
	cause := errors.New("no such metric")
	after := &tracer{}
	h := callbacks.NewHandler(quiet, 0, &failing{do: func() error { return cause }}, after)
	err := fire(h, callbacks.StepEnd)
	require.EqualError(t, err, "callback failing at step_end: no such metric")
	require.ErrorIs(t, err, cause)
	var e *callbacks.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, callbacks.StepEnd, e.Event)
	require.Empty(t, after.events, "later callbacks are not called")

	h = callbacks.NewHandler(quiet, 0, &failing{do: func() error { panic("index out of range") }})
	err = fire(h, callbacks.StepEnd)
	require.EqualError(t, err, "callback failing panicked at step_end: index out of range")
	require.ErrorAs(t, err, &e)
	require.Contains(t, string(e.Stack), "handler_test.go")

	h = callbacks.NewHandler(quiet, 0, &failing{do: func() error { panic(cause) }})
	require.ErrorIs(t, fire(h, callbacks.StepEnd), cause)
	require.EqualError(t, fire(h, "push_begin"), `callbacks: there is no event "push_begin"`)
}

func TestTrainEndReachesAll(t *testing.T) {
	after := &tracer{}
	h := callbacks.NewHandler(quiet, 0, &failing{do: func() error { return errors.New("one") }},
		&failing{do: func() error { panic("two") }}, after)
	require.EqualError(t, fire(h, callbacks.TrainEnd),
		"callback failing at train_end: one\ncallback failing panicked at train_end: two")
	require.Equal(t, []callbacks.Kind{callbacks.TrainEnd}, after.events)
}

type everywhere struct{ tracer }

func (*everywhere) EveryRank() {}

func TestOtherRanks(t *testing.T) {
	main, every := &tracer{}, &everywhere{}
	h := callbacks.NewHandler(quiet, 1, &callbacks.Flow{}, main, every)
	c := callbacks.Control{}
	require.NoError(t, h.Fire(callbacks.StepEnd,
		&callbacks.Event{Args: args.Default(""), State: &callbacks.State{GlobalStep: 5, MaxSteps: 5}, Control: &c}))
	require.True(t, c.ShouldTrainingStop, "Flow runs on every rank")
	require.Empty(t, main.events)
	require.Len(t, every.events, 1)
}

type closing struct {
	callbacks.Base
	name string
	to   *[]string
}

func (c *closing) CallbackName() string { return c.name }
func (c *closing) Close() error {
	*c.to = append(*c.to, c.name)
	return errors.New("stuck")
}

func TestAddNamesClose(t *testing.T) {
	var log bytes.Buffer
	var closed []string
	h := callbacks.NewHandler(slog.New(slog.NewTextHandler(&log, nil)), 0, &callbacks.Flow{},
		&closing{name: "a", to: &closed}, &closing{name: "b", to: &closed})
	require.Empty(t, log.String())
	h.Add(&callbacks.Flow{})
	require.Contains(t, log.String(), "callback=DefaultFlowCallback")
	require.Equal(t, []string{"DefaultFlowCallback", "a", "b", "DefaultFlowCallback"}, h.Names())
	require.EqualError(t, h.Close(), "callback b: closing: stuck\ncallback a: closing: stuck")
	require.Equal(t, []string{"b", "a"}, closed)
	h = callbacks.NewHandler(slog.New(slog.NewTextHandler(&log, nil)), 0, &closing{name: "a", to: &closed})
	log.Reset()
	require.NoError(t, fire(h, callbacks.TrainBegin))
	require.Contains(t, log.String(), "there is no Flow")
}

// counting has the state of one number.
type counting struct {
	callbacks.Base
	n float64
}

func (c *counting) ExportState() callbacks.Exported {
	return callbacks.Exported{Args: map[string]any{}, Attributes: map[string]any{"n": c.n}}
}

func (c *counting) ImportState(e callbacks.Exported) error {
	n, ok := e.Attributes["n"].(float64)
	if !ok {
		return errors.New("n is missing")
	}
	c.n = n
	return nil
}

func TestStatesSurviveJSON(t *testing.T) {
	control := &callbacks.Control{ShouldEpochStop: true, ShouldSave: true}
	h := callbacks.NewHandler(quiet, 0, &counting{n: 1}, &callbacks.EarlyStopping{Patience: 3}, &counting{n: 2})
	state := &callbacks.State{StatefulCallbacks: h.ExportStates(control)}
	text, err := state.JSON()
	require.NoError(t, err)
	back, err := callbacks.StateFromJSON(text)
	require.NoError(t, err)
	require.Contains(t, string(text), `"EarlyStoppingCallback": {
      "args": {
        "early_stopping_patience": 3,
        "early_stopping_threshold": 0
      },
      "attributes": {
        "early_stopping_patience_counter": 0
      }
    }`)

	a, b, restored := &counting{}, &counting{}, &callbacks.Control{ShouldLog: true}
	var log bytes.Buffer
	h = callbacks.NewHandler(slog.New(slog.NewTextHandler(&log, nil)), 0, a, b)
	log.Reset()
	require.NoError(t, h.ImportStates(back.StatefulCallbacks, restored))
	require.Equal(t, []float64{1, 2}, []float64{a.n, b.n}, "duplicates in order")
	require.Equal(t, control, restored)
	require.Contains(t, log.String(), "callback=EarlyStoppingCallback", "saved, but there is none now")

	log.Reset()
	h.Add(&counting{})
	log.Reset()
	require.NoError(t, h.ImportStates(back.StatefulCallbacks, restored))
	require.Contains(t, log.String(), "starts with fresh state")
	require.EqualError(t, h.ImportStates(map[string]any{"counting": map[string]any{}}, restored),
		"callbacks: saved state of counting: n is missing")
	require.ErrorContains(t, h.ImportStates(map[string]any{"counting": 3}, restored),
		"callbacks: saved state of counting: ")
	require.EqualError(t,
		h.ImportStates(map[string]any{"TrainerControl": callbacks.Exported{Args: map[string]any{"should_save": "yes"}}},
			restored),
		"callbacks: saved state of TrainerControl: should_save is yes: want true or false")
}
