// SPDX-License-Identifier: Apache-2.0

package clusters

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// launchers are the command lines of examples/clusters/mpirun, and what they call a rank.
var launchers = map[string]struct {
	line     []string
	kind     string
	variable string
}{
	// Root and more ranks than cores are normal in a container for tests.
	"openmpi": {[]string{"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "4", "--mca",
		"odls_base_sigkill_timeout", "4"}, `"Open MPI"`, "OMPI_COMM_WORLD_RANK"},
	"mpich": {[]string{"mpiexec.hydra", "-n", "4", wrapper}, "MPICH", "PMI_RANK"},
}

var wrapper, _ = filepath.Abs(filepath.Join(root, "examples/clusters/mpirun/rank.sh"))

// TestMPI wants the weights of one process, a killed rank to end the job everywhere and to be named, and an
// interrupted job to save.
func TestMPI(t *testing.T) {
	for name, l := range launchers {
		t.Run(name, func(t *testing.T) {
			need(t, name)
			dir := t.TempDir()
			one, out := filepath.Join(dir, "one"), filepath.Join(dir, "out")
			p := start(t, append([]string{clm}, flags(one, "--max_steps", "24")...))
			require.Zero(t, p.wait(), "%s", p.out)
			p = start(t, append(l.line, append([]string{clm}, flags(out, "--max_steps", "24")...)...))
			require.Zero(t, p.wait(), "%s", p.out)
			require.Contains(t, p.out.String(), "ranks=4 launcher="+l.kind)
			require.Equal(t, weights(t, one), weights(t, out))

			t.Run("killed", func(t *testing.T) {
				segments := shared(t)
				p := start(t, append(l.line, append([]string{clm}, flags(filepath.Join(t.TempDir(), "out"))...)...))
				await(t, p.out, func() bool { return strings.Contains(p.out.String(), "step 3 ") })
				p.kill(l.variable + "=2")
				require.NotZero(t, p.wait())
				require.Regexp(t, `rank 2 (\(process \d+ on \S+\) is lost|with PID)`, p.out.String())
				p.requireNothingLeft(segments)
			})
			t.Run("interrupted", func(t *testing.T) {
				out := filepath.Join(t.TempDir(), "out")
				p := start(t, append(l.line, append([]string{clm}, flags(out, "--n_layer", "2", "--n_embd",
					"512")...)...))
				await(t, p.out, func() bool { return strings.Contains(p.out.String(), "step 3 ") })
				require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
				require.NotZero(t, p.wait())
				_, err := os.Stat(filepath.Join(out, "LATEST"))
				require.NoError(t, err, "%s", p.out)
				p.requireNothingLeft(nil)
			})
		})
	}
}
