// SPDX-License-Identifier: Apache-2.0

package callbacks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"runtime/debug"
	"slices"
)

// Handler holds the callbacks of a run and fires events at them. It is not safe for concurrent use. It is for package
// trainer, which makes one for its callbacks.
type Handler struct {
	log       *slog.Logger
	rank      int
	callbacks []Callback
}

// Error is a callback's failure: an error that it returned, or its panic.
type Error struct {
	Callback string
	Event    Kind
	Err      error
	Stack    []byte // of the panic, if it was one
}

func (e *Error) Error() string {
	if e.Stack != nil {
		return fmt.Sprintf("callback %s panicked at %s: %v", e.Callback, e.Event, e.Err)
	}
	return fmt.Sprintf("callback %s at %s: %v", e.Callback, e.Event, e.Err)
}

// Unwrap returns the callback's error, or the error that it panicked with.
func (e *Error) Unwrap() error { return e.Err }

// NewHandler makes a handler for a rank (0 is the one on which all callbacks run). Warnings go to log, or to slog's
// default if it is nil. It is for package trainer.
func NewHandler(log *slog.Logger, rank int, callbacks ...Callback) *Handler {
	if log == nil {
		log = slog.Default()
	}
	h := &Handler{log: log, rank: rank}
	for _, c := range callbacks {
		h.Add(c)
	}
	return h
}

// Add appends a callback; it runs after those before it. A second one of the same name is added too, with a warning.
func (h *Handler) Add(c Callback) {
	if slices.Contains(h.Names(), Name(c)) {
		h.warn("a callback of this type was already added; both will run", "callback", Name(c))
	}
	h.callbacks = append(h.callbacks, c)
}

// warn logs, on rank 0, what holds on all ranks.
func (h *Handler) warn(message string, facts ...any) {
	if h.rank == 0 {
		h.log.Warn(message, facts...)
	}
}

// Names returns the names of the callbacks in order.
func (h *Handler) Names() []string {
	names := make([]string, len(h.callbacks))
	for i, c := range h.callbacks {
		names[i] = Name(c)
	}
	return names
}

// Name returns a callback's name: its own if it is Named, else that of its type.
func Name(c any) string {
	if n, ok := c.(Named); ok {
		return n.CallbackName()
	}
	t := reflect.TypeOf(c)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Name() == "" {
		return t.String()
	}
	return t.Name()
}

// Fire clears the flags that an event clears and hands it to the callbacks in order. The first failure, as an *Error,
// keeps those that follow from being called; at train_end all are called and the failures joined, since callbacks close
// there what they opened.
func (h *Handler) Fire(k Kind, e *Event) error {
	call, ok := methods[k]
	if !ok {
		return fmt.Errorf("callbacks: there is no event %q", k)
	}
	e.Kind = k
	if e.Log == nil {
		e.Log = h.log
	}
	e.Control.reset(k)
	if k == TrainBegin && !slices.ContainsFunc(h.callbacks, isFlow) {
		h.warn("there is no Flow callback: nothing logs, evaluates, saves or stops at max_steps unless a " +
			"callback asks for it")
	}
	var failures []error
	for _, c := range h.callbacks {
		if _, every := c.(EveryRank); h.rank != 0 && !every {
			continue
		}
		wanted := asks(e.Control)
		err := h.call(c, k, e, alone(c, e, call))
		e.Control.nameStop(wanted, c)
		if err != nil {
			failures = append(failures, err)
			if k != TrainEnd {
				break
			}
		}
	}
	return errors.Join(failures...)
}

// modelless marks callbacks of this package that never look at the model.
type modelless interface{ modelless() }

func (*Speed) modelless()         {}
func (*Memory) modelless()        {}
func (*Progress) modelless()      {}
func (*Printer) modelless()       {}
func (*EarlyStopping) modelless() {}
func (*hideBar) modelless()       {}
func (*showBar) modelless()       {}

// alone lets an event's Alone call a callback that runs on rank 0 alone.
func alone(c Callback, e *Event, method func(Callback, *Event) error) func(Callback, *Event) error {
	_, every := c.(EveryRank)
	_, blind := c.(modelless)
	if every || blind || e.Alone == nil {
		return method
	}
	return func(c Callback, e *Event) error { return e.Alone(func() error { return method(c, e) }) }
}

// asks returns what a callback may ask for that ends an epoch or the run early.
func asks(c *Control) [2]bool { return [2]bool{c.ShouldTrainingStop, c.ShouldEpochStop} }

// nameStop enters the callback that has just asked for an early end. Flow only ends runs that are complete.
func (c *Control) nameStop(before [2]bool, by Callback) {
	now := asks(c)
	switch {
	case isFlow(by):
	case now[0] && !before[0]:
		if !c.StopReason.Early() {
			c.StopReason.Kind = StopCallback
		}
		if c.StopReason.Kind == StopCallback && c.StopReason.Callback == "" {
			c.StopReason.Callback = Name(by)
		}
	case now[1] && !before[1]:
		c.epochStop = Name(by)
	}
}

func isFlow(c Callback) bool { _, ok := c.(*Flow); return ok }

// call hands an event to one callback and makes its panic an error.
func (h *Handler) call(c Callback, k Kind, e *Event, method func(Callback, *Event) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			cause, ok := p.(error)
			if !ok {
				cause = fmt.Errorf("%v", p)
			}
			err = &Error{Callback: Name(c), Event: k, Err: cause, Stack: debug.Stack()}
			h.log.Debug("a callback panicked", "callback", Name(c), "event", string(k), "stack", string(debug.Stack()))
		}
	}()
	if err := method(c, e); err != nil {
		return &Error{Callback: Name(c), Event: k, Err: err}
	}
	return nil
}

// Close closes the callbacks that are io.Closers, last first. The trainer calls it when a run is over, however it
// ended.
func (h *Handler) Close() error {
	var failures []error
	for _, c := range slices.Backward(h.callbacks) {
		if closer, ok := c.(io.Closer); ok {
			if err := closer.Close(); err != nil {
				failures = append(failures, fmt.Errorf("callback %s: closing: %w", Name(c), err))
			}
		}
	}
	return errors.Join(failures...)
}

// ExportStates returns what State.StatefulCallbacks is to hold: by name the state of the one callback of that name, or
// a list of the states of several in order. The control's flags are among them.
func (h *Handler) ExportStates(control *Control) map[string]any {
	lists := map[string][]Exported{Name(control): {control.ExportState()}}
	for _, c := range h.callbacks {
		if s, ok := c.(Stateful); ok {
			lists[Name(c)] = append(lists[Name(c)], s.ExportState())
		}
	}
	out := make(map[string]any, len(lists))
	for name, list := range lists {
		out[name] = list
		if len(list) == 1 {
			out[name] = list[0]
		}
	}
	return out
}

// ImportStates hands saved states to the callbacks of the same names, several of one name in order, and the flags to
// control. States that no callback takes are warned of, as are callbacks for which none was saved. An error names the
// callback with an invalid state.
func (h *Handler) ImportStates(saved map[string]any, control *Control) error {
	lists := make(map[string][]Exported, len(saved))
	for name, v := range saved {
		list, err := exportedList(v)
		if err != nil {
			return fmt.Errorf("callbacks: saved state of %s: %w", name, err)
		}
		lists[name] = list
	}
	targets := []Stateful{control}
	for _, c := range h.callbacks {
		if s, ok := c.(Stateful); ok {
			targets = append(targets, s)
		}
	}
	for _, s := range targets {
		name := Name(s)
		if len(lists[name]) == 0 {
			h.warn("no state was saved for a callback; it starts with fresh state", "callback", name)
			continue
		}
		if err := s.ImportState(lists[name][0]); err != nil {
			return fmt.Errorf("callbacks: saved state of %s: %w", name, err)
		}
		lists[name] = lists[name][1:]
	}
	for name, rest := range lists {
		if len(rest) > 0 {
			h.warn("the checkpoint has the state of a callback that this run does not have", "callback", name,
				"states", len(rest))
		}
	}
	return nil
}

// exportedList reads one state or a list of them, from whatever JSON made of them.
func exportedList(v any) ([]Exported, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var list []Exported
	if len(text) > 0 && text[0] == '[' {
		err = json.Unmarshal(text, &list)
		return list, err
	}
	var one Exported
	err = json.Unmarshal(text, &one)
	return []Exported{one}, err
}

func badState(key string, v any, want string) error {
	return fmt.Errorf("%s is %v: want %s", key, v, want)
}

var methods = map[Kind]func(Callback, *Event) error{
	InitEnd:          Callback.OnInitEnd,
	TrainBegin:       Callback.OnTrainBegin,
	EpochBegin:       Callback.OnEpochBegin,
	StepBegin:        Callback.OnStepBegin,
	SubstepEnd:       Callback.OnSubstepEnd,
	PreOptimizerStep: Callback.OnPreOptimizerStep,
	OptimizerStep:    Callback.OnOptimizerStep,
	StepEnd:          Callback.OnStepEnd,
	Log:              Callback.OnLog,
	PredictionStep:   Callback.OnPredictionStep,
	Evaluate:         Callback.OnEvaluate,
	Save:             Callback.OnSave,
	EpochEnd:         Callback.OnEpochEnd,
	TrainEnd:         Callback.OnTrainEnd,
	Predict:          Callback.OnPredict,
}
