// SPDX-License-Identifier: Apache-2.0

//go:build mpi && unix

package mpi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/internal/lacking"
)

func TestMain(m *testing.M) {
	code := 0
	if os.Getenv("LOCKSTEP_COMMTEST_SCENARIO") != "" { // a rank that TestProcesses started
		commtest.Main(m, Join)
	} else if os.Getenv(fastRank) != "" { // one that TestFastOrder started
		if err := fast(); err != nil {
			fmt.Println(err)
			code = 1
		}
	} else if err := Init(); err != nil {
		fmt.Println(err)
		code = 1
	} else {
		code = m.Run()
		if err := Finalize(); err != nil {
			fmt.Println(err)
			code = 1
		}
	}
	os.Exit(code)
}

// start makes ranks that live in the test's process, a job of one MPI process: it sends its messages to itself.
func start(t *testing.T, n int, opts comm.Options) []*comm.Group {
	return commtest.Open(t, n, nil, func(job *rendezvous.Job) (*comm.Group, error) { return New(job, opts) })
}

func TestConformance(t *testing.T) {
	commtest.Run(t, commtest.Engine{Name: "mpi", Path: world.lib.version, Ranks: []int{1, 2, 3, 4}, Start: start,
		Leftovers: commtest.Leftovers})
}

// launcher is a command line, and the variable in which it says a process's rank.
type launcher struct{ line, rank string }

// launchers start n processes of one MPI job, each a rank of a job of Lockstep's.
var launchers = map[string]launcher{
	"openmpi": {"mpirun.openmpi --allow-run-as-root --oversubscribe -np", "OMPI_COMM_WORLD_RANK"},
	"mpich":   {"mpiexec.hydra -n", "PMI_RANK"},
}

// run starts n processes of this test, each a rank, and returns what they print.
func (l launcher) run(t *testing.T, name string, n int, role string) string {
	t.Helper()
	line := strings.Fields(l.line)
	if _, err := exec.LookPath(line[0]); err != nil {
		lacking.Skip(t, lacking.Clusters, name, err.Error())
	}
	cmd := exec.Command(line[0], append(line[1:], fmt.Sprint(n), "sh", "-c", "RANK=$"+l.rank+" exec "+os.Args[0])...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, EnvLibrary) })
	cmd.Env = append(cmd.Env, role, fmt.Sprint("WORLD_SIZE=", n), "MASTER_ADDR=127.0.0.1",
		"MASTER_PORT="+commtest.FreePort(t), env.VarJobToken+"="+string(commtest.Token))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// TestProcesses requires the oracle's sums and unaltered messages from ranks in processes of their own.
func TestProcesses(t *testing.T) {
	for name, l := range launchers {
		for _, n := range []int{2, 3, 4} {
			t.Run(fmt.Sprint(name, "/", n), func(t *testing.T) {
				out := l.run(t, name, n, "LOCKSTEP_COMMTEST_SCENARIO=sums")
				require.NotContains(t, out, `["error"`)
				require.Equal(t, n, strings.Count(out, `["end"`), "%s", out)
				require.Equal(t, n, strings.Count(out, "between "+fmt.Sprint(n)+" processes"), "%s", out)
			})
		}
	}
}

// fastRank is set in a rank of TestFastOrder.
const fastRank = "LOCKSTEP_MPI_TEST_FAST"

// fast is the life of a rank that sums in the fast order: by MPI where it can, by the engine elsewhere.
func fast() error {
	config, err := rendezvous.FromEnv()
	if err != nil {
		return err
	}
	g, err := Join(context.Background(), config, comm.Options{FastOrder: true})
	if err != nil {
		return err
	}
	defer g.Close()
	members := make([]int, g.Size())
	for r := range members {
		members[r] = r
	}
	part, err := g.Sub("part", members)
	if err != nil {
		return err
	}
	for _, group := range []*comm.Group{g, part, g} {
		if err := errors.Join(sums[float32](group, comm.Sum), sums[float64](group, comm.Sum),
			sums[int64](group, comm.Sum), sums[float32](group, comm.Max)); err != nil {
			return err
		}
	}
	fmt.Println("calls of MPI_Allreduce:", world.lib.reductions.Load())
	return part.Close()
}

// sums adds up numbers whose sum is exact in any order.
func sums[T float32 | float64 | int64](g *comm.Group, op comm.ReduceOp) error {
	data := make([]T, 70_001)
	for i := range data {
		data[i] = T(i * (g.Rank() + 1))
	}
	n := g.Size() * (g.Size() + 1) / 2
	if op == comm.Max {
		n = g.Size()
	}
	if err := g.AllReduce(comm.Of(data), op).Wait(context.Background()); err != nil {
		return err
	}
	for i, x := range data {
		if x != T(i*n) {
			return fmt.Errorf("element %d is %v: want %d", i, x, i*n)
		}
	}
	return nil
}

// TestFastOrder requires the group of all ranks, and no other, to sum floats by MPI's own all-reduce.
func TestFastOrder(t *testing.T) {
	for name, l := range launchers {
		t.Run(name, func(t *testing.T) {
			out := l.run(t, name, 3, fastRank+"=1")
			require.Equal(t, 3, strings.Count(out, "calls of MPI_Allreduce: 4"), "%s", out)
		})
	}
}

// TestProcessesOfNoMPIJob: processes that nobody started as one MPI job are told so.
func TestProcessesOfNoMPIJob(t *testing.T) {
	for r, p := range commtest.Processes(t, 2, "sums", nil) {
		require.Contains(t, p.Await(t, "error", 30*time.Second),
			"want processes of one MPI job; start them with mpirun", "rank %d", r)
	}
}

// TestLibraries: what cannot be opened is named.
func TestLibraries(t *testing.T) {
	t.Setenv(EnvLibrary, "/nowhere/libmpi.so")
	_, err := open()
	require.ErrorContains(t, err, "no MPI library: tried /nowhere/libmpi.so")
	require.ErrorContains(t, err, "its file in LOCKSTEP_MPI_LIBRARY")
	t.Setenv(EnvLibrary, "libc.so.6")
	_, err = open()
	require.ErrorContains(t, err, "MPI_")
}
