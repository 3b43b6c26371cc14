// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm/commtest"
)

// shared are the names in /dev/shm.
func shared(t testing.TB) []string {
	t.Helper()
	found, err := filepath.Glob("/dev/shm/lockstep-*")
	require.NoError(t, err)
	return found
}

// requireEnd waits until a job has ended, which it must with that exit code, in words, and with nothing left. It
// returns what the job wrote to its standard error.
func (p *process) requireEnd(code int) string {
	p.t.Helper()
	p.wait()
	text := p.stderr.String()
	require.Equal(p.t, code, p.code(), "%s", text)
	requireNoTrace(p.t, text)
	p.requireNothingLeft()
	return text
}

// requireNothingLeft checks that a job which has ended left no process and no file in the
// folders for temporary ones, but flight records. Names in /dev/shm may be another test's, which soon go.
func (p *process) requireNothingLeft() {
	p.t.Helper()
	require.Empty(p.t, p.environs(), "no process may be left")
	left, err := os.ReadDir(p.tmp)
	require.NoError(p.t, err)
	for _, e := range left {
		require.Equal(p.t, "lockstep-"+strconv.Itoa(os.Geteuid()), e.Name(), "no temporary file may be left")
		inside, err := os.ReadDir(filepath.Join(p.tmp, e.Name()))
		require.NoError(p.t, err)
		for _, e := range inside {
			require.Equal(p.t, "flight", e.Name(), "only flight records stay")
		}
	}
	names := shared(p.t)
	for deadline := time.Now().Add(limit); len(names) > 0; time.Sleep(10 * time.Millisecond) {
		now := shared(p.t)
		names = slices.DeleteFunc(names, func(n string) bool { return !slices.Contains(now, n) })
		require.True(p.t, time.Now().Before(deadline), "%s is left in /dev/shm", names)
	}
}

// port is where the job's ranks meet, 0 if none runs yet.
func (p *process) port() int {
	p.t.Helper()
	for _, environ := range p.environs() {
		if n, err := strconv.Atoi(variable(environ, "MASTER_PORT")); err == nil {
			return n
		}
	}
	return 0
}

// requireFree checks that a port can be listened on.
func requireFree(t testing.TB, port int) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// startRanks starts n processes with torchrun's variables and nobody to watch over them.
// each gives a rank's arguments and variables of its own.
func startRanks(t testing.TB, n int, each func(rank int) (argv, env []string)) []*process {
	t.Helper()
	port := commtest.FreePort(t)
	var ranks []*process
	for rank := range n {
		argv, env := each(rank)
		base := map[string]string{
			"RANK": strconv.Itoa(rank), "LOCAL_RANK": strconv.Itoa(rank), "WORLD_SIZE": strconv.Itoa(n),
			"LOCAL_WORLD_SIZE": strconv.Itoa(n),
			"MASTER_ADDR":      "127.0.0.1", "MASTER_PORT": port,
			"LOCKSTEP_JOB_TOKEN": "a token that all ranks of the test know", "GOMAXPROCS": "1",
		}
		var list []string
		for _, name := range slices.Sorted(maps.Keys(base)) {
			list = append(list, name+"="+base[name])
		}
		ranks = append(ranks, start(t, plain(argv), append(list, env...)...))
	}
	return ranks
}
