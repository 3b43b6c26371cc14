// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTimed: the first step's end is read off either output, what the run wrote is removed, and a failure shows its
// last words.
func TestTimed(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	var b bench
	out := filepath.Join(t.TempDir(), "out")
	require.NoError(t, os.Mkdir(out, 0o777))
	got,
		err := b.timed(exec.Command("sh", "-c",
		`echo step 10; echo "step 1  loss 2" >&2; echo "$GOMAXPROCS $OMP_NUM_THREADS" >&2; sleep 0.01`), 2, out)
	require.NoError(t, err)
	require.Greater(t, got.first, 0.0)
	require.Greater(t, got.whole, got.first)
	require.NoDirExists(t, out)
	_, err = b.timed(exec.Command("sh", "-c", "echo no such thing >&2; exit 3"), 1, out)
	require.ErrorContains(t, err, "no such thing")
	require.ErrorContains(t, err, "exit status 3")
}

func TestCopyFiles(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "to")
	var files []string
	for _, name := range []string{"a", "b", "c"} {
		files = append(files, filepath.Join(from, name))
		require.NoError(t, os.WriteFile(files[len(files)-1], []byte("12345"), 0o666))
	}
	require.NoError(t, copyFiles(to, files, 6))
	entries, err := os.ReadDir(to)
	require.NoError(t, err)
	require.Len(t, entries, 2, "so many bytes as were asked for, in whole files")
}
