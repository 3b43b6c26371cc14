// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/internal/scripts"
	"github.com/lockstep-ml/lockstep/program"
)

// run runs the program.
func run(ctx context.Context, argv []string, stdout, stderr io.Writer) error {
	return train(ctx, &program.Process{Name: "vision", Args: argv, Stdout: stdout, Stderr: stderr})
}

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
	err := run(t.Context(), []string{"--dataset_name", "beans", "--push_to_hub", "--report_to", "clearml",
		"--width", "0", "--output_dir", t.TempDir()}, &out, &out)
	var usage *args.Error
	require.ErrorAs(t, err, &usage)
	var keys []string
	for _, f := range usage.Faults {
		keys = append(keys, f.Key)
	}
	require.ElementsMatch(t, []string{"dataset_name", "push_to_hub", "report_to", "width"}, keys)
	require.ErrorContains(t, err, "not built yet: images of the Hub")
	require.Empty(t, out.String())
}

// TestSettingsAreNoRows: a flag of the script's that is built has left the table of those that are not.
func TestSettingsAreNoRows(t *testing.T) {
	var out bytes.Buffer
	require.ErrorIs(t, run(t.Context(), []string{"--help"}, &out, &out), args.ErrHelp)
	require.Contains(t, out.String(), "--model_name_or_path ")
	for _, k := range scripts.RunImageClassification() {
		require.NotContains(t, out.String(), "--"+k.Name+" ", "delete its row in examples/internal/scripts")
	}
}
