// SPDX-License-Identifier: Apache-2.0

//go:build cuda && nvml

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/lacking"
)

// TestNVML: the records of a program that is built with the tags cuda and nvml have what go-nvml reads of the GPUs, and
// the lines of the run do not.
func TestNVML(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		lacking.Skip(t, lacking.Tools, "cc", "no C compiler")
	}
	dir := t.TempDir()
	said, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", filepath.Join(dir, "libnvidia-ml.so.1"),
		filepath.Join(root, "internal", "nvml", "testdata", "libnvidia-ml.c")).CombinedOutput()
	require.NoError(t, err, "%s", said)
	clm := filepath.Join(dir, "clm")
	build := exec.Command("go", "build", "-tags", "cuda nvml", "-o", clm, "./examples/clm")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=1")
	said, err = build.CombinedOutput()
	require.NoError(t, err, "%s", said)

	train := func(out string, env ...string) (r result, records string) {
		cmd := command(t, tiny(t, filepath.Join(dir, out), "--device", "cpu", "--max_steps", "10",
			"--eval_strategy", "no", "--save_strategy", "no")...)
		cmd.Path, cmd.Args[0], cmd.Env = clm, clm, append(cmd.Env, env...)
		r = finish(t, cmd)
		require.Equal(t, 0, r.code, "%s", r.stderr)
		text, err := os.ReadFile(filepath.Join(dir, out, "log.jsonl"))
		require.NoError(t, err)
		return r, string(text)
	}
	r, records := train("with", "LD_LIBRARY_PATH="+dir)
	require.NotContains(t, r.stdout+r.stderr, "gpu_0")
	first, _, _ := strings.Cut(records, "\n")
	var record map[string]any
	require.NoError(t, json.Unmarshal([]byte(first), &record))
	require.Equal(t, 97.0, record["gpu_0_utilization"], first)
	require.Equal(t, 79.0*(1<<30), record["gpu_0_memory_used"])
	require.Equal(t, 612.34, record["gpu_0_power"])
	require.Equal(t, 58.0, record["gpu_1_temperature"])
	require.NotContains(t, record, "gpu_1_utilization", "it does not tell")

	if _, err := exec.LookPath("nvidia-smi"); err == nil {
		return // the machine has devices
	}
	r, records = train("without")
	require.NotContains(t, records, "gpu_")
	require.Contains(t, r.stderr, "records have no GPU figures")
}
