// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// notebook is a reporter that keeps the records and what it is told at the ends of a run.
type notebook struct {
	callbacks.Base
	records       []callbacks.Record
	begun, closed int
}

func (n *notebook) OnTrainBegin(*callbacks.Event) error { n.begun++; return nil }
func (n *notebook) OnLog(e *callbacks.Event) error {
	n.records = append(n.records, e.Record)
	return nil
}
func (n *notebook) Close() error { n.closed++; return nil }

var notebooks []*notebook

func init() {
	callbacks.RegisterReporter("notebook", func(a *args.TrainingArguments) (callbacks.Callback, error) {
		if a.RunName == "unlucky" {
			return nil, errors.New("no paper left")
		}
		n := &notebook{}
		notebooks = append(notebooks, n)
		return n, nil
	})
}

func TestReporterGetsItsRecords(t *testing.T) {
	set := func(a *args.TrainingArguments) {
		a.ReportTo, a.EvalStrategy, a.EvalSteps = []string{"notebook"}, args.StrategySteps, new(12.0)
	}
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), lineArgs(set), trainer.WithTrainData(source(points(64))),
		trainer.WithEvalData(source(points(8))))
	n := notebooks[len(notebooks)-1]
	_, err := tr.Train()
	require.NoError(t, err)
	require.Equal(t, tr.State().LogHistory, n.records)
	require.Len(t, n.records, 6+2+1)
	require.Equal(t, 1, n.begun)
	require.Equal(t, 1, n.closed)
	for _, key := range []string{"loss", "grad_norm", "learning_rate", "epoch", "step", "train_samples_per_second"} {
		require.Contains(t, n.records[0], key)
	}
	_, err = tr.Train()
	require.NoError(t, err)
	require.Equal(t, 2, n.begun)
	require.Equal(t, 2, n.closed)

	unlucky := newTrainer(vfs.NewMem(), newMLP(t, 1, 1),
		lineArgs(set, func(a *args.TrainingArguments) { a.RunName = "unlucky" }),
		trainer.WithEvalData(source(points(8))))
	requireOneError(t, unlucky.Err(), "reporter notebook", "no paper left")
}

// TestFinalFiles checks what a program writes when it is done.
func TestFinalFiles(t *testing.T) {
	dir := t.TempDir()
	m := newMLP(t, 1, 1)
	a := lineArgs(func(a *args.TrainingArguments) { a.OutputDir = dir })
	tr := newTrainer(nil, m, a, trainer.WithTrainData(source(points(64))), trainer.WithEvalData(source(points(8))),
		trainer.WithParts(checkpoint.BytesPart("tokenizer.json", []byte(`{"version": "1.0"}`))))
	res, err := tr.Train()
	require.NoError(t, err)
	eval, err := tr.Evaluate()
	require.NoError(t, err)
	require.NoError(t, tr.SaveModel(""))
	require.NoError(t, tr.SaveModel(filepath.Join(dir, "final", "model")))
	require.NoError(t, tr.SaveState())
	require.NoError(t, tr.SaveMetrics("train", res.Metrics))
	eval["eval_odd"] = math.Inf(1)
	require.NoError(t, tr.SaveMetrics("eval", eval))

	read := func(name string) (rec callbacks.Record) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &rec))
		return rec
	}
	require.Equal(t, res.TrainingLoss, read("train_results.json")["train_loss"])
	all := read("all_results.json")
	require.Equal(t, res.TrainingLoss, all["train_loss"])
	require.Equal(t, eval["eval_loss"], all["eval_loss"])
	require.Equal(t, math.Inf(1), read("eval_results.json")["eval_odd"])
	require.NotContains(t, read("eval_results.json"), "train_loss")
	state, err := os.ReadFile(filepath.Join(dir, "trainer_state.json"))
	require.NoError(t, err)
	s, err := callbacks.StateFromJSON(state)
	require.NoError(t, err)
	require.EqualValues(t, 24, s.GlobalStep)
	for _, folder := range []string{dir, filepath.Join(dir, "final", "model")} {
		loaded, err := models.LoadPretrained(tensor.CPU(), folder)
		require.NoError(t, err)
		require.Equal(t, weights(m), weights(loaded))
		text, err := os.ReadFile(filepath.Join(folder, "training_args.json"))
		require.NoError(t, err)
		saved, err := args.FromJSON(text)
		require.NoError(t, err)
		require.Empty(t, a.Diff(saved))
		require.FileExists(t, filepath.Join(folder, "tokenizer.json"))
	}

	// Damaged results are replaced, not a reason to lose the new ones.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "all_results.json"), []byte("{"), 0o600))
	require.NoError(t, tr.SaveMetrics("test", map[string]float64{"test_loss": 1}))
	require.Equal(t, callbacks.Record{"test_loss": 1.0}, read("all_results.json"))
}
