package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
)

// TestUnknownReporterIsRefusedFirst: before the data are touched, and before anything is printed.
func TestUnknownReporterIsRefusedFirst(t *testing.T) {
	var out bytes.Buffer
	err := run(t.Context(), []string{"--report_to", "nowhere", "--output_dir", t.TempDir()}, &out, &out)
	var usage *args.Error
	require.ErrorAs(t, err, &usage)
	require.ErrorContains(t, err, "report_to")
	require.ErrorContains(t, err, "jsonl")
	require.Empty(t, out.String())
}

// TestFlagsOfTheScript: the script's flags are known, and all faults come at once.
func TestFlagsOfTheScript(t *testing.T) {
	var out bytes.Buffer
	err := run(t.Context(), []string{"--dataset_name", "beans", "--bf16", "--report_to", "wandb", "--width", "0", "--output_dir", t.TempDir()}, &out, &out)
	var usage *args.Error
	require.ErrorAs(t, err, &usage)
	var keys []string
	for _, f := range usage.Faults {
		keys = append(keys, f.Key)
	}
	require.ElementsMatch(t, []string{"dataset_name", "bf16", "report_to", "width"}, keys)
	require.ErrorContains(t, err, "not built yet: data sets of the Hub")
	require.Empty(t, out.String())
}
