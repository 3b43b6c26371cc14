// SPDX-License-Identifier: Apache-2.0

// Package trackertest has helpers for tests of reporters: a run of events, the log, and a server that can fail.
package trackertest

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/internal/syncbuffer"
)

// Logged collects what goes to slog's default logger until the test ends.
func Logged(t *testing.T) *syncbuffer.Buffer {
	var b syncbuffer.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&b, nil)))
	t.Cleanup(func() { slog.SetDefault(old) })
	return &b
}

// Run fires the events of trainings at reporters, as a trainer does.
type Run struct {
	t       *testing.T
	handler *callbacks.Handler
	event   *callbacks.Event
}

// New returns the runs of reporters under the arguments of a test.
func New(t *testing.T, a *args.TrainingArguments, reporters ...callbacks.Callback) *Run {
	return &Run{t, callbacks.NewHandler(slog.New(slog.DiscardHandler), 0, reporters...), &callbacks.Event{Args: a,
		State: &callbacks.State{}, Control: &callbacks.Control{}, Run: &callbacks.RunInfo{Parameters: 12}}}
}

// Begin fires train_begin.
func (r *Run) Begin() {
	r.t.Helper()
	require.NoError(r.t, r.handler.Fire(callbacks.TrainBegin, r.event))
}

// Log fires log with a record of a step.
func (r *Run) Log(step int64, record callbacks.Record) {
	r.t.Helper()
	e := *r.event
	e.State, e.Record = &callbacks.State{GlobalStep: step}, record
	require.NoError(r.t, r.handler.Fire(callbacks.Log, &e))
}

// Evaluate fires log with a record of an evaluation, and evaluate.
func (r *Run) Evaluate(step int64, record callbacks.Record) {
	r.t.Helper()
	r.Log(step, record)
	require.NoError(r.t, r.handler.Fire(callbacks.Evaluate, r.event))
}

// End fires train_end, with the reason for which the run ended.
func (r *Run) End(why callbacks.StopKind) {
	r.t.Helper()
	r.event.Control.StopReason.Kind = why
	require.NoError(r.t, r.handler.Fire(callbacks.TrainEnd, r.event))
	require.NoError(r.t, r.handler.Close())
}

// BreakOff closes the reporter without train_end.
func (r *Run) BreakOff() {
	r.t.Helper()
	require.NoError(r.t, r.handler.Close())
}

// Resume gives the state of another run to this one, as a checkpoint does.
func (r *Run) Resume(from *Run) {
	r.t.Helper()
	saved := from.handler.ExportStates(&callbacks.Control{})
	require.NoError(r.t, r.handler.ImportStates(saved, &callbacks.Control{}))
}

// Server is a server of a tracker that a test can pull the plug of.
type Server struct {
	*httptest.Server
	Fail   atomic.Int32 // of so many requests that follow
	Code   atomic.Int32 // with which they fail; 0 cuts the connection
	Answer atomic.Value // a string, their body
}

// NewServer starts a server for the time of a test.
func NewServer(t *testing.T, h http.Handler) *Server {
	s := &Server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Fail.Add(-1) < 0 {
			s.Fail.Store(0)
			h.ServeHTTP(w, r)
			return
		}
		code := int(s.Code.Load())
		if code == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(code)
		if text, ok := s.Answer.Load().(string); ok {
			_, _ = w.Write([]byte(text))
		}
	}))
	t.Cleanup(s.Close)
	return s
}
