// SPDX-License-Identifier: Apache-2.0

//go:build unix

package shm

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/commtest"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

func TestMain(m *testing.M) { commtest.Main(m, Join) }

// start makes ranks that live in the test's process but share nothing except segments and sockets.
func start(k kind) func(t *testing.T, n int, opts comm.Options) []*comm.Group {
	return func(t *testing.T, n int, opts comm.Options) []*comm.Group {
		return commtest.Open(t, n, nil, func(job *rendezvous.Job) (*comm.Group, error) {
			return newGroup(job, opts, k)
		})
	}
}

func TestConformance(t *testing.T) {
	commtest.Run(t, commtest.Engine{Name: "shm", Path: string(preferred) + " segments", Start: start(preferred),
		Leftovers: commtest.Leftovers})
}

func TestConformanceOfProcesses(t *testing.T) {
	commtest.RunProcesses(t, string(preferred)+" segments", nil)
}

func TestNamedSegmentsLeaveNoFile(t *testing.T) {
	before := commtest.Leftovers(t)
	t.Run("job", func(t *testing.T) { useNamedSegments(t, before) })
	require.Equal(t, before, commtest.Leftovers(t))
}

func useNamedSegments(t *testing.T, before []string) {
	groups := start(named)(t, 3, comm.Options{})
	require.Contains(t, groups[0].Describe().Path, "named segments")
	memory := make([]*comm.Memory, 3)
	done := make(chan error)
	for r, g := range groups {
		go func() {
			var err error
			memory[r], err = g.Alloc(1 << 20)
			done <- err
		}()
	}
	for range groups {
		require.NoError(t, <-done)
	}
	for _, name := range commtest.Leftovers(t) {
		require.NotContains(t, name, "/lockstep-", "a name while the job runs, before: %v", before)
	}
	var handles []*comm.Handle
	for r, g := range groups {
		v := comm.View[int32](memory[r])
		v[0], v[len(v)-1] = int32(r), 1
		handles = append(handles, g.AllReduce(comm.Of(v), comm.Sum))
	}
	require.NoError(t, comm.WaitAll(t.Context(), handles...))
	for r, g := range groups {
		v := comm.View[int32](memory[r])
		require.Equal(t, []int32{3, 3}, []int32{v[0], v[len(v)-1]})
		require.NoError(t, g.Close())
		require.Equal(t, int32(3), v[0], "memory is the caller's until it is freed")
		require.NoError(t, memory[r].Free())
	}
}

func TestOneHostIsRequired(t *testing.T) {
	jobs := commtest.Jobs(t, 3, func(c *rendezvous.Config) { c.HostID = fmt.Sprint("host ", c.Rank/2) })
	for _, job := range jobs {
		_, err := New(job, comm.Options{})
		require.ErrorContains(t, err, "comm/shm: rank 0 runs on ")
		require.ErrorContains(t, err, ", rank 2 on ")
	}
	done := make(chan error)
	for _, job := range jobs {
		go func() { done <- job.Close() }()
	}
	for range jobs {
		require.NoError(t, <-done)
	}
}

func TestSegmentsThatCannotBeMade(t *testing.T) {
	_, mine, err := makeSegment(named, 1<<60)
	require.ErrorContains(t, err, "bytes free: want 1152921504606846976: enlarge it (docker run --shm-size")
	_, err = mine.open()
	require.ErrorContains(t, err, "bytes free")
	for _, path := range []string{"/etc/passwd", "lockstep-1", "/dev/shm/../../etc/passwd"} {
		_, err := ticket{Path: path, Bytes: 4096}.open()
		require.ErrorContains(t, err, "no segment at")
	}
	s, good, err := makeSegment(named, 4096)
	require.NoError(t, err)
	good.Bytes = 8192
	_, err = good.open()
	require.ErrorContains(t, err, "has 4096 bytes: want 8192")
	require.NoError(t, s.free())
}
