// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/internal/lacking"
)

func wantTools(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"bash", "xz", "tar"} {
		if _, err := exec.LookPath(tool); err != nil {
			lacking.Skip(t, lacking.Tools, tool, "no "+tool)
		}
	}
}

// day runs day.sh without Go, over programs of shell in place of those that pack.sh packs. broken is the one that
// fails, "" for none.
func day(t *testing.T, word, broken, python string) (table string, status int) {
	t.Helper()
	dir, c := packed(t, word, broken, python)
	out, _ := c.CombinedOutput()
	return ended(t, dir, word, string(out)), c.ProcessState.ExitCode()
}

// ended is the table of a day that left an archive.
func ended(t *testing.T, dir, word, out string) (table string) {
	t.Helper()
	written, err := os.ReadFile(filepath.Join(dir, "out", word, "table.txt"))
	require.NoError(t, err, "%s", out)
	require.FileExists(t, filepath.Join(dir, "out", word+".tar.gz"))
	return string(written)
}

// packed is the folder and the command of a day.
func packed(t *testing.T, word, broken, python string, flags ...string) (dir string, c *exec.Cmd) {
	t.Helper()
	dir, stage := t.TempDir(), t.TempDir()
	for _, name := range []string{"gpu", "lockstep", "clm", "internal_backend_cuda.test", "tensor_optest.test",
		"comm_nccl.test"} {
		code := 0
		if name == broken {
			code = 1
		}
		text := fmt.Sprintf("#!/bin/sh\necho WEIGHTS of %s\necho RESULT row lockstep 1 tokens/s\nexit %d\n", name, code)
		if broken == "bits" && name == "gpu" { // others each time
			text = "#!/bin/sh\necho WEIGHTS of $$\n"
		}
		if broken == "interrupted" && name == "gpu" {
			text = "#!/bin/sh\necho begins\nexec sleep 600\n"
		}
		require.NoError(t, os.WriteFile(filepath.Join(stage, name), []byte(text), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(stage, "version"), []byte("test\n"), 0o600))
	out, err := exec.Command("tar", "-C", stage, "-cJf", filepath.Join(dir, "lockstep.tar.xz"), ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	script, err := os.ReadFile("day.sh")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "day.sh"), script, 0o755))
	c = exec.Command(filepath.Join(dir, "day.sh"), append([]string{word, "--device", "fake"}, flags...)...)
	c.Env = []string{"PATH=/usr/bin:/bin", "PYTHON=" + python}
	return dir, c
}

// A step that fails makes the day fail, one that does not run is never held, and tools are called as they should be.
func TestDay(t *testing.T) {
	wantTools(t)
	row := func(name, seconds, what string) string { return fmt.Sprintf("(?m)^%s +%s  %s", name, seconds, what) }
	table, status := day(t, "correctness", "", "false")
	require.Equal(t, 3, status, table)
	require.Regexp(t, row("conformance", `\d+`, "held$"), table)
	require.Regexp(t, row("same-bits", "-", "held$"), table)
	require.Regexp(t, row("ops", "-", "not run: "), table)
	require.Contains(t, table, "12 held, 0 failed, 3 not run")

	table, status = day(t, "correctness", "internal_backend_cuda.test", "false")
	require.Equal(t, 1, status, table)
	require.Regexp(t, row("conformance", `\d+`, `FAILED \(1\)`), table)
	require.Contains(t, table, "9 held, 3 failed, 3 not run")

	table, status = day(t, "correctness", "bits", "false")
	require.Equal(t, 1, status, table)
	require.Regexp(t, row("same-bits", "-", "FAILED: other bits"), table)

	table, status = day(t, "decoders", "", "false")
	require.Equal(t, 3, status, table)

	table, status = day(t, "peers", "", "false")
	require.Equal(t, 3, status, table)
	require.Regexp(t, row("gpt2-compile", "-", "not run: false has no PyTorch"), table)

	table, status = day(t, "tools", "", "false")
	require.Zero(t, status, table)
	require.Regexp(t, row("ncu", `\d+`, "held$"), table)
}

// A day that is interrupted ends soon, and leaves the table and the archive.
func TestInterruptedDay(t *testing.T) {
	wantTools(t)
	dir, c := packed(t, "correctness", "interrupted", "false")
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool {
		log, _ := os.ReadFile(filepath.Join(dir, "out", "correctness", "driver-1.log"))
		return len(log) > 0
	}, 5*time.Minute, 10*time.Millisecond)
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	require.Error(t, c.Wait())
	require.Equal(t, 1, c.ProcessState.ExitCode())
	require.Contains(t, ended(t, dir, "correctness", ""), "FAILED: interrupted")
}

// Steps that the time is too short for are not run, and not held.
func TestShortDay(t *testing.T) {
	wantTools(t)
	dir, c := packed(t, "speed", "", "false", "--seconds", "7")
	out, _ := c.CombinedOutput()
	require.Equal(t, 3, c.ProcessState.ExitCode(), "%s", out)
	table := ended(t, dir, "speed", string(out))
	require.Contains(t, table, "not run: no time is left")
	require.Contains(t, table, "0 held, 0 failed, ")
}
