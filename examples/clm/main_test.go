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
