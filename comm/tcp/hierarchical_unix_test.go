// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tcp

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// The suite with two ranks on each host, or four; what has an odd number of ranks is flat there too.
func TestConformanceOfHierarchy(t *testing.T) {
	ranks := []int{4, 6, 8}
	if testing.Short() { // the race detector's run: two hosts of two ranks share less than three hosts
		ranks = ranks[1:]
	}
	commtest.Run(t, commtest.Engine{
		Name: "tcp", Ranks: ranks, Leftovers: commtest.Leftovers,
		Start: func(t *testing.T, n int, opts comm.Options) []*comm.Group {
			per := 2
			if n == 8 {
				per = 4
			}
			groups := startOn(t, n, per, opts)
			path := groups[0].Describe().Path
			if n >= 4 && n%2 == 0 {
				require.Equal(t,
					fmt.Sprintf("hierarchical: shared memory of %d processes on each of %d hosts, connections "+
						"between hosts", per, n/per), path)
			} else {
				require.Contains(t, path, "flat: connections between")
			}
			return groups
		},
	})
}

func TestHierarchyOfProcesses(t *testing.T) {
	t.Parallel()
	host := func(rank int) []string { return []string{rendezvous.EnvHost + "=" + fmt.Sprint("host ", rank/2)} }
	for r, p := range commtest.Processes(t, 4, "sums", host) {
		p.Await(t, "end", 30*time.Second)
		require.Empty(t, p.Said("error"), "rank %d", r)
		require.Contains(t, p.Said("path"), "hierarchical")
	}
	procs := commtest.Processes(t, 4, "kill", host)
	for _, p := range procs {
		p.Await(t, "ready", 30*time.Second)
	}
	procs[3].Kill(t)
	for _, p := range procs[:3] {
		p.Await(t, "error", 2*time.Second)
		require.Equal(t, fmt.Sprint("3 ", procs[3].PID()), p.Await(t, "lost", time.Second), p.Said("error"))
	}
}

func TestPlacement(t *testing.T) {
	for want, list := range map[int][][]string{
		2: {{"a", "a", "b", "b"}, {"a", "a", "b", "b", "c", "c"}},
		4: {{"a", "a", "a", "a", "b", "b", "b", "b"}},
		0: {{"a"}, {"a", "a"}, {"a", "b"}, {"a", "b", "a", "b"}, {"a", "a", "a", "b", "b", "b"}, {"a", "a", "b"},
			{"a", "a", "b", "c"}, {"a", "a", "b", "b", "a", "a"}},
	} {
		for _, hosts := range list {
			require.Equal(t, want, placement(hosts), "%v", hosts)
		}
	}
}

// Ranks wait for each other in a chain, rank 0 for 2 and 2 for 3: all of them name the one that stands still.
func TestHierarchyNamesTheRankThatStandsStill(t *testing.T) {
	t.Parallel()
	procs := commtest.Processes(t, 4, "stop", func(rank int) []string {
		return []string{rendezvous.EnvHost + "=" + fmt.Sprint("host ", rank/2)}
	})
	for _, p := range procs {
		p.Await(t, "ready", 30*time.Second)
	}
	procs[3].Stop(t)
	for _, p := range procs[:3] {
		p.Await(t, "error", 5*time.Second)
		require.Equal(t, "[3]", p.Await(t, "missing", time.Second), p.Said("error"))
	}
}
