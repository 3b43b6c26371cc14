// SPDX-License-Identifier: Apache-2.0

package jsonl_test

import (
	"bytes"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/jsonl"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// train fires the events of a run that logs at the steps from … to.
func train(t *testing.T, h *callbacks.Handler, from, to int64) {
	e := &callbacks.Event{State: &callbacks.State{GlobalStep: from - 1}, Control: &callbacks.Control{}}
	require.NoError(t, h.Fire(callbacks.TrainBegin, e))
	for step := from; step <= to; step++ {
		log(t, h, callbacks.Record{"loss": 0.5, "step": step})
		require.NoError(t, h.Fire(callbacks.Evaluate, e))
	}
	require.NoError(t, h.Fire(callbacks.TrainEnd, e))
}

func log(t *testing.T, h *callbacks.Handler, r callbacks.Record) {
	require.NoError(t, h.Fire(callbacks.Log, &callbacks.Event{Record: r, Control: &callbacks.Control{}}))
}

// handler makes the reporter as a trainer does.
func handler(t *testing.T, dir string) *callbacks.Handler {
	a := args.Default(dir)
	a.ReportTo = []string{"jsonl"}
	list, err := callbacks.NewReporters(a)
	require.NoError(t, err)
	return callbacks.NewHandler(slog.New(slog.DiscardHandler), 0, list...)
}

func lines(t *testing.T, path string) []string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func TestRunResumeAndNewRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "when", "needed")
	path := filepath.Join(dir, jsonl.FileName)
	train(t, handler(t, dir), 1, 2)
	require.Equal(t, []string{`{"loss":0.5,"step":1}`, `{"loss":0.5,"step":2}`}, lines(t, path))

	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"loss":0.5,"st`) // killed while writing
	require.NoError(t, err)
	require.NoError(t, f.Close())
	train(t, handler(t, dir), 3, 3)
	require.Equal(t, []string{`{"loss":0.5,"step":1}`, `{"loss":0.5,"step":2}`, `{"loss":0.5,"step":3}`},
		lines(t, path))

	h := handler(t, dir)
	train(t, h, 1, 1)
	require.Equal(t, []string{`{"loss":0.5,"step":1}`}, lines(t, path))
	require.Len(t, lines(t, path+".old"), 3)

	log(t, h, callbacks.Record{"eval_loss": math.NaN()}) // an evaluation after the run
	require.NoError(t, h.Fire(callbacks.Evaluate, &callbacks.Event{Control: &callbacks.Control{}}))
	require.Equal(t, []string{`{"loss":0.5,"step":1}`, `{"eval_loss":"NaN"}`}, lines(t, path))
}

func TestLongLastLine(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, jsonl.FileName)
	require.NoError(t, os.WriteFile(path, []byte("{}\n"+strings.Repeat("x", 200_000)), 0o666))
	train(t, handler(t, dir), 2, 2)
	require.Equal(t, []string{`{}`, `{"loss":0.5,"step":2}`}, lines(t, path))
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("x", 70_000)), 0o666))
	train(t, handler(t, dir), 2, 2)
	require.Equal(t, []string{`{"loss":0.5,"step":2}`}, lines(t, path))
}

// A run whose log cannot be written continues, and the failure is told.
func TestUnwritable(t *testing.T) {
	var told bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&told, nil)))
	defer slog.SetDefault(old)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, jsonl.FileName), 0o777))
	train(t, handler(t, dir), 5, 7)
	require.Contains(t, told.String(), "reporter=jsonl failed=3 dropped=0")
}

func TestRunThatBreaksOff(t *testing.T) {
	dir := t.TempDir()
	h := handler(t, dir)
	require.NoError(t, h.Fire(callbacks.TrainBegin,
		&callbacks.Event{State: &callbacks.State{}, Control: &callbacks.Control{}}))
	log(t, h, callbacks.Record{"loss": 1.0})
	require.NoError(t, h.Close())
	require.Equal(t, []string{`{"loss":1}`}, lines(t, filepath.Join(dir, jsonl.FileName)))
}
