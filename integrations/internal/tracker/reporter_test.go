// SPDX-License-Identifier: Apache-2.0

package tracker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/internal/tracker"
	"github.com/lockstep-ml/lockstep/integrations/internal/trackertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// notes is a destination that fails as often as fail says, and notes what it is given.
type notes struct {
	did  []string
	runs []tracker.Run
	fail int
	err  error
}

func (n *notes) try(text string) error {
	if n.fail > 0 {
		n.fail--
		return n.err
	}
	n.did = append(n.did, text)
	return nil
}

func (n *notes) Begin(_ context.Context, r tracker.Run) error {
	n.runs = append(n.runs, r)
	return n.try("begin")
}

func (n *notes) Log(_ context.Context, rows []tracker.Row) error {
	text := "log"
	for _, r := range rows {
		text += fmt.Sprint(" ", r.Step)
	}
	return n.try(text)
}

func (n *notes) End(_ context.Context, _ time.Time, s tracker.Status) error {
	return n.try(fmt.Sprint("end ", s))
}

func (n *notes) Close() error {
	n.did = append(n.did, "close")
	return nil
}

type refusal struct{ error }

func (refusal) Refused() bool { return true }

func run(t *testing.T, n *notes) *trackertest.Run {
	a := args.Default("out")
	a.RunName = "name"
	return trackertest.New(t, a, tracker.New(tracker.Options{Name: "notes", Callback: "Notes", Project: "p",
		Open: func(tracker.Run) []tracker.Destination { return []tracker.Destination{n} }}))
}

func TestRunIsContinued(t *testing.T) {
	n := &notes{}
	first := run(t, n)
	first.Evaluate(0, callbacks.Record{"eval_loss": 1.0})
	first.Begin()
	first.Log(1, callbacks.Record{"loss": 1.0})
	first.BreakOff()
	second := run(t, n)
	second.Resume(first)
	second.Begin()
	second.End("")
	second.Evaluate(3, callbacks.Record{"eval_loss": 1.0})
	require.Equal(t, []string{"begin", "log 0", "end 0", "close", "begin", "log 1", "end 2", "close", "begin", "end 0",
		"close", "begin", "log 3", "end 0", "close"}, n.did)
	for i, r := range n.runs {
		require.Equal(t, n.runs[0].ID, r.ID)
		require.Equal(t, i > 0, r.Resumed)
		require.Equal(t, "name", r.Name)
		require.Equal(t, "p", r.Project)
		require.Equal(t, 5e-5, r.Config["learning_rate"])
	}
	third := run(t, n)
	third.Begin()
	third.End(callbacks.StopInterrupted)
	require.NotEqual(t, n.runs[0].ID, n.runs[4].ID)
	require.Equal(t, "end 1", n.did[len(n.did)-2])
}

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		fail   int
		err    error
		did    []string
		told   []string
		silent string
	}{
		{1, errors.New("away"), []string{"begin", "log 1 2", "end 0", "close"},
			[]string{"cannot send", "away"}, "lost"},
		{2, errors.New("away"), []string{"close"},
			[]string{"a reporter lost records\" reporter=notes records=2"}, "refused"},
		{1, refusal{errors.New("no")}, []string{"close"}, []string{"are refused", "records=2"}, "cannot send"},
	} {
		told := trackertest.Logged(t)
		n := &notes{fail: c.fail, err: c.err}
		r := run(t, n)
		r.Begin()
		r.Log(1, callbacks.Record{"loss": 1.0})
		r.Log(2, callbacks.Record{"loss": 1.0})
		r.End("")
		require.Equal(t, c.did, n.did)
		for _, text := range c.told {
			require.Contains(t, told.String(), text)
		}
		require.NotContains(t, told.String(), c.silent)
	}
}

// meeting is a destination that ends when another one does.
type meeting struct {
	notes
	here  chan<- struct{}
	there <-chan struct{}
}

func (m *meeting) End(ctx context.Context, at time.Time, s tracker.Status) error {
	close(m.here)
	select {
	case <-m.there:
		return m.notes.End(ctx, at, s)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestReportersEndTogether(t *testing.T) {
	one, other := make(chan struct{}), make(chan struct{})
	both := []*meeting{{here: one, there: other}, {here: other, there: one}}
	var reporters []callbacks.Callback
	for _, m := range both {
		reporters = append(reporters, tracker.New(tracker.Options{Name: "meeting", Callback: "Meeting",
			Open: func(tracker.Run) []tracker.Destination { return []tracker.Destination{m} }}))
	}
	r := trackertest.New(t, args.Default("out"), reporters...)
	r.Begin()
	r.End("")
	for _, m := range both {
		require.Equal(t, []string{"begin", "end 0", "close"}, m.did)
	}
}

func TestState(t *testing.T) {
	r := tracker.New(tracker.Options{})
	for _, bad := range []any{nil, 3.0, "", "a b", "../x"} {
		err := r.ImportState(callbacks.Exported{Attributes: map[string]any{"run_id": bad}})
		require.ErrorContains(t, err, "want up to 64 letters")
	}
	require.NoError(t, r.ImportState(callbacks.Exported{Attributes: map[string]any{"run_id": "abc"}}))
	require.Equal(t, "abc", r.ExportState().Attributes["run_id"])
	mine := tracker.New(tracker.Options{RunID: "mine"})
	require.NoError(t, mine.ImportState(callbacks.Exported{Attributes: map[string]any{"run_id": "abc"}}))
	require.Equal(t, "mine", mine.ExportState().Attributes["run_id"])
}
