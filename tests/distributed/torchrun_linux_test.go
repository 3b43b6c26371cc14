// SPDX-License-Identifier: Apache-2.0

package distributed

import (
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm/commtest"
)

// workers starts n processes as torchrun does: with its variables and no other. Variables of
// ranks that differ, or are missing from the default, are in more.
func workers(t testing.TB, port string, argv []string, n int, more func(rank int) map[string]string) []*process {
	t.Helper()
	tmp := t.TempDir() // of the host, which the ranks share
	var ranks []*process
	for rank := range n {
		variables := map[string]string{
			"RANK": strconv.Itoa(rank), "WORLD_SIZE": strconv.Itoa(n), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
			"LOCAL_RANK": strconv.Itoa(rank), "LOCAL_WORLD_SIZE": strconv.Itoa(n), "MASTER_ADDR": "127.0.0.1",
			"MASTER_PORT":         port,
			"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True",
			"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3", "GOMAXPROCS": "1", "TMPDIR": tmp,
		}
		maps.Copy(variables, more(rank))
		var list []string
		for _, name := range slices.Sorted(maps.Keys(variables)) {
			if variables[name] != "" {
				list = append(list, name+"="+variables[name])
			}
		}
		ranks = append(ranks, start(t, plain(argv), list...))
	}
	return ranks
}

func plainly(int) map[string]string { return nil }

// requireEnded requires all ranks to have succeeded.
func requireEnded(t testing.TB, ranks []*process) {
	t.Helper()
	for r, p := range ranks {
		p.wait()
		require.Equal(t, 0, p.code(), "rank %d: %s", r, p.stderr)
	}
	require.Contains(t, ranks[0].stderr.String(), `joined the job  ranks `+strconv.Itoa(len(ranks)))
}

// TestTorchrun requires ranks that torchrun started to meet without a variable of ours, though its
// agent holds MASTER_PORT (or shares no store), and to compute what one process does.
func TestTorchrun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one := filepath.Join(dir, "one")
	succeed(t, plain(tiny(one)))
	store := commtest.NewTorchStore(t)

	out := filepath.Join(dir, "agent")
	requireEnded(t, workers(t, store.Port(), tiny(out, "--log_level", "info"), 2, plainly))
	requireSameEnd(t, one, out, 24)
	require.Positive(t, store.Served())
	require.Nil(t, store.Value("/lockstep/none/rank0"), "the token must not stay in the store")

	// The port is taken, to show that it is not needed.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	require.NoError(t, err)
	out = filepath.Join(dir, "file")
	requireEnded(t, workers(t, port, tiny(out, "--log_level", "info"), 2, func(int) map[string]string {
		return map[string]string{"TORCHELASTIC_USE_AGENT_STORE": "False"}
	}))
	requireSameEnd(t, one, out, 24)
}

// TestTorchrunRestarts kills a rank and starts all of them again, as torchrun's agents do. The
// agent of rank 0 has not counted the failure, since the other one told it first.
func TestTorchrunRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flags := []string{"--log_level", "info", "--max_steps", "200", "--logging_steps", "20", "--eval_steps", "200"}
	whole, out := filepath.Join(dir, "whole"), filepath.Join(dir, "out")
	succeed(t, plain(tiny(whole, flags...)))
	store := commtest.NewTorchStore(t)
	ranks := workers(t, store.Port(), tiny(out, flags...), 2, plainly)
	ranks[1].await("a checkpoint", func() bool { return newest(t, out) >= 8 })
	ranks[1].signal(syscall.SIGKILL)
	for _, p := range ranks {
		p.wait()
		require.NotEqual(t, 0, p.code())
	}
	require.Contains(t, ranks[0].stderr.String(), "rank 1")
	require.Less(t, newest(t, out), 200)

	ranks = workers(t, store.Port(), tiny(out, flags...), 2, func(rank int) map[string]string {
		return map[string]string{"TORCHELASTIC_RESTART_COUNT": strconv.Itoa(rank)}
	})
	requireEnded(t, ranks)
	require.Contains(t, ranks[0].stderr.String(), "INFO resumed")
	requireSameWeights(t, whole, out, 200)
}

// TestPlaceIsCheckedFirst requires a job that cannot meet to end before it reads its data.
func TestPlaceIsCheckedFirst(t *testing.T) {
	t.Parallel()
	store := commtest.NewTorchStore(t)
	for want, more := range map[string]map[string]string{
		"(if they are on one, set LOCAL_RANK and LOCAL_WORLD_SIZE): no job token: set LOCKSTEP_JOB_TOKEN": {
			"TORCHELASTIC_RUN_ID": "", "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": "", "GROUP_RANK": "",
			"GROUP_WORLD_SIZE": ""},
		"environment of torchrun: RANK is set, but the master port is not: want MASTER_PORT": {"MASTER_PORT": ""},
		"it has 5 bytes: want at least 24 random ones": {
			"LOCKSTEP_JOB_TOKEN": "short"},
	} {
		for _, p := range workers(t, store.Port(), tiny(t.TempDir()), 2, func(int) map[string]string { return more }) {
			p.wait()
			require.Equal(t, 1, p.code())
			require.Contains(t, p.stderr.String(), want)
			require.Empty(t, strings.TrimSpace(p.stdout.String()), "nothing was done before")
			requireNoTrace(t, p.stderr.String())
		}
	}
	require.Zero(t, store.Served())
}
