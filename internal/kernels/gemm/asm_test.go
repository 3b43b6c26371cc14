// SPDX-License-Identifier: Apache-2.0

package gemm

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAssemblyIsCurrent runs the generator and compares its output with the committed files. It needs the go command
// and avo from the module proxy or the module cache.
func TestAssemblyIsCurrent(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the generator is not built")
	}
	// Reading the sources here makes them inputs of this test for go test's cache, which cannot see what a child
	// process reads.
	sources, err := filepath.Glob("_asm/*")
	require.NoError(t, err)
	require.NotEmpty(t, sources)
	for _, name := range sources {
		_, err := os.ReadFile(name)
		require.NoError(t, err)
	}
	dir := t.TempDir()
	generator := exec.Command("go", "run", ".", "-dir", dir)
	generator.Dir = "_asm"
	// for the host, whatever is being tested
	generator.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GOOS=", "GOARCH=")
	out, err := generator.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range []string{"kernels_amd64.s", "kernels_amd64.go", "kernels64_amd64.s", "kernels64_amd64.go",
		"kernelshalf_amd64.s", "kernelshalf_amd64.go", "kernelstiles_amd64.s", "kernelstiles_amd64.go"} {
		want, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		got, err := os.ReadFile(name)
		require.NoError(t, err)
		require.True(t, string(want) == string(got), "%s is stale: run go generate ./internal/kernels/gemm", name)
	}
}
