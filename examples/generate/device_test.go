// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/examples/internal/simulated"
	"github.com/lockstep-ml/lockstep/program"
)

// A GPU writes what the CPU writes, one text and several.
func TestDevice(t *testing.T) {
	if testing.Short() {
		return // a short run is the race detector's, under which the interpreter takes minutes
	}
	folder := saved(t)
	for name, more := range map[string][]string{
		"one":     nil,
		"several": {"--prompt", "text", "--num_return_sequences", "2"},
	} {
		t.Run(name, func(t *testing.T) {
			written := map[string]string{}
			simulated.Compare(t, func(device string) {
				written[device] = inProcess(t, append([]string{"--model_name_or_path", folder, "--prompt", "some",
					"--max_new_tokens", "6", "--device", device}, more...)...)
			})
			require.Contains(t, written["cpu"], "some")
			require.Equal(t, written["cpu"], written[simulated.Name])
		})
	}
}

// inProcess is what the program prints to os.Stdout.
func inProcess(t *testing.T, argv ...string) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	before := os.Stdout
	os.Stdout = file
	err = generate(t.Context(), &program.Process{Name: "generate", Args: argv, Stdout: file, Stderr: file})
	os.Stdout = before
	require.NoError(t, file.Close())
	text, failed := os.ReadFile(file.Name())
	require.NoError(t, failed)
	require.NoError(t, err, "%s", text)
	return string(text)
}
