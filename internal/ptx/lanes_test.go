// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"os"
	command "os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLanesAreCurrent proves that lanes_gen.go is what its generator writes.
func TestLanesAreCurrent(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the generator is not built")
	}
	// Reading the source makes it an input of this test for go test's cache.
	_, err := os.ReadFile("_lanes/main.go")
	require.NoError(t, err)
	generator := command.Command("go", "run", "./_lanes")
	generator.Env = append(os.Environ(), "GOFLAGS=", "GOOS=", "GOARCH=") // for the host, whatever is being tested
	want, err := generator.Output()
	require.NoError(t, err)
	got, err := os.ReadFile("lanes_gen.go")
	require.NoError(t, err)
	require.True(t, string(want) == string(got), "stale: run go run ./_lanes > lanes_gen.go")
}
