// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAssemblyIsCurrent tests the generators, runs them and compares their output with the committed files. It needs
// the go command and avo from the module proxy or the module cache.
func TestAssemblyIsCurrent(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the generators are not built")
	}
	// Reading the sources here makes them inputs of this test for go test's cache, which cannot see what a child
	// process reads.
	require.NoError(t, filepath.WalkDir("_asm", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			_, err = os.ReadFile(path)
		}
		return err
	}))
	run := func(arguments ...string) {
		t.Helper()
		c := exec.Command("go", arguments...)
		c.Dir = "_asm"
		// for the host, whatever is being tested; -trimpath, so that the standard library is compiled as in CI
		c.Env = append(os.Environ(), "GOFLAGS=-trimpath", "GOWORK=off", "GOOS=", "GOARCH=")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	run("test", "-vet=off", "./assemble")
	for _, pkg := range []string{"blockwise", "gemm", "vecmath", "winograd"} {
		dir := t.TempDir()
		run("run", "./"+pkg, "-dir", dir)
		written, err := filepath.Glob(filepath.Join(dir, "*"))
		require.NoError(t, err)
		require.NotEmpty(t, written)
		for _, path := range written {
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			name := filepath.Join(pkg, filepath.Base(path))
			got, err := os.ReadFile(name)
			require.NoError(t, err)
			require.True(t, string(want) == string(got), "%s is stale: run go generate ./internal/kernels/%s", name,
				pkg)
		}
	}
}
