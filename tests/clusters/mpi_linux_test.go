// SPDX-License-Identifier: Apache-2.0

package clusters

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// launcher is a command line of examples/clusters/mpirun, and what it calls a rank.
type launcher struct {
	line     []string // without its number of ranks and the program
	ranks    string   // the flag of their number
	wrapper  []string // of each rank
	kind     string
	variable string
	path     string // of the engine mpi
	engine   string
}

var launchers = map[string]launcher{
	// Root and more ranks than cores are normal in a container for tests.
	"openmpi": {line: []string{"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca",
		"odls_base_sigkill_timeout", "4"}, ranks: "-np", kind: "Open MPI", variable: "OMPI_COMM_WORLD_RANK",
		path: "flat: Open MPI v"},
	"mpich": {line: []string{"mpiexec.hydra"}, ranks: "-n", wrapper: []string{wrapper}, kind: "MPICH",
		variable: "PMI_RANK", path: "flat: MPICH "},
}

var wrapper, _ = filepath.Abs(filepath.Join(root, "examples/clusters/mpirun/rank.sh"))

// TestMPI requires the weights of one process, a killed rank to end the job everywhere and to be named, and an
// interrupted job to save: with data over shared memory and over the launcher's own MPI library.
func TestMPI(t *testing.T) {
	one := sync.OnceValue(func() []byte {
		out := filepath.Join(t.TempDir(), "one")
		p := start(t, append([]string{clm}, flags(out, "--max_steps", "24")...))
		require.Zero(t, p.wait(), "%s", p.out)
		return weights(t, out)
	})
	for name, l := range launchers {
		for _, engine := range []string{"shm", "mpi"} {
			t.Run(name+"/"+engine, func(t *testing.T) {
				need(t, name)
				l.engine = engine
				l.test(t, one())
			})
		}
	}
}

// command is the command line of a job of n ranks.
func (l launcher) command(n int, flags ...string) []string {
	program := clm
	if l.engine == "mpi" {
		program = withMPI
	}
	return slices.Concat(l.line, []string{l.ranks, strconv.Itoa(n)}, l.wrapper,
		[]string{program, "--ddp_backend", l.engine}, flags)
}

// rank is the command line of four ranks.
func (l launcher) rank(out string, more ...string) []string {
	return l.command(4, flags(out, more...)...)
}

func (l launcher) test(t *testing.T, want []byte) {
	out := filepath.Join(t.TempDir(), "out")
	p := start(t, l.rank(out, "--max_steps", "24"))
	require.Zero(t, p.wait(), "%s", p.out)
	require.Contains(t, p.out.String(), "ranks 4  launcher "+l.kind+"  engine "+l.engine)
	if l.engine == "mpi" {
		require.Contains(t, p.out.String(), l.path)
	}
	require.Equal(t, want, weights(t, out))

	t.Run("killed", func(t *testing.T) {
		segments := shared(t)
		p := start(t, l.rank(filepath.Join(t.TempDir(), "out")))
		await(t, p.out, func() bool { return strings.Contains(p.out.String(), "step 3 ") })
		p.kill(l.variable + "=2")
		require.NotZero(t, p.wait())
		require.Regexp(t, `rank 2 (\(process \d+ on \S+\) is lost|with PID)`, p.out.String())
		p.requireNothingLeft(segments)
	})
	t.Run("interrupted", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "out")
		p := start(t, l.rank(out, "--n_layer", "2", "--n_embd", "512"))
		await(t, p.out, func() bool { return strings.Contains(p.out.String(), "step 3 ") })
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		require.NotZero(t, p.wait())
		_, err := os.Stat(filepath.Join(out, "LATEST"))
		require.NoError(t, err, "%s", p.out)
		p.requireNothingLeft(nil)
	})
}
