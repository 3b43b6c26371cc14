// SPDX-License-Identifier: Apache-2.0

package jsonl_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/integrations/jsonl"
)

// run_name is in each record, as log lines of several runs in one place need it.
func TestRunName(t *testing.T) {
	a := args.Default(t.TempDir())
	a.RunName = "a run"
	path := filepath.Join(a.OutputDir, jsonl.FileName)
	r := jsonl.New(path)
	record := callbacks.Record{"loss": 0.5, "step": 1}
	state := &callbacks.State{}
	require.NoError(t, r.OnTrainBegin(&callbacks.Event{Args: a, State: state}))
	require.NoError(t, r.OnLog(&callbacks.Event{Args: a, State: state, Record: record}))
	require.NoError(t, r.Close())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, `{"loss":0.5,"run_name":"a run","step":1}`+"\n", string(text))
	require.NotContains(t, record, "run_name", "the record is the trainer's")
}
