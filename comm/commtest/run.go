// SPDX-License-Identifier: Apache-2.0

package commtest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Engine is an engine under test.
type Engine struct {
	Name string // that its groups must give
	Path string // that Describe must contain: the path of the bytes that this run is to prove

	// Ranks are the numbers of ranks that all operations are checked on; nil: 1 to 8.
	Ranks []int

	// Slow says that the engine computes slowly, as in an emulator: buffers are then small.
	Slow bool

	// Start makes the groups of n ranks that live in the test's process; they are closed by the suite.
	Start func(t *testing.T, n int, opts comm.Options) []*comm.Group

	// Leftovers lists what must be as it was when all groups are closed, descriptors and shared-memory files say; nil:
	// goroutines alone are counted.
	Leftovers func(t *testing.T) []string
}

// DTypes are the element types that reductions know; Bool is tested for Min and Max only.
var DTypes = []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16, dtype.Float16, dtype.Int32, dtype.Int64,
	dtype.Uint8}

// Run is the suite. It takes some seconds for each engine; -short, for the race detector, leaves most of the large
// buffers out.
func Run(t *testing.T, e Engine) {
	before := goleak.IgnoreCurrent()
	var left []string
	if e.Leftovers != nil {
		left = e.Leftovers(t)
	}
	ranks := e.Ranks
	if ranks == nil {
		ranks = []int{1, 2, 3, 4, 5, 6, 7, 8}
	}
	for _, n := range ranks {
		t.Run(fmt.Sprintf("operations/%d", n), func(t *testing.T) { e.operations(t, n) })
	}
	t.Run("fast order", e.fastOrder)
	t.Run("shared memory", e.shared)
	t.Run("queue", e.queue)
	t.Run("messages", e.messages)
	t.Run("objects", e.objects)
	t.Run("sub-groups", e.subGroups)
	t.Run("sub-groups that fail", e.subGroupFailures)
	t.Run("split", e.split)
	t.Run("mismatch", e.mismatches)
	t.Run("arguments", e.arguments)
	t.Run("missing", e.missing)
	t.Run("late", e.late)
	t.Run("departure", e.departure)
	t.Run("abort", e.abort)
	t.Run("abort and leave", e.abortAndLeave)
	t.Run("flight", e.flight)
	goleak.VerifyNone(t, before)
	if e.Leftovers != nil {
		require.Eventually(t, func() bool { return slices.Equal(left, e.Leftovers(t)) }, 5*time.Second,
			10*time.Millisecond,
			"left behind: %v, before: %v", e.Leftovers(t), left)
	}
}

// start makes groups that are closed at the end of the test, all at once, for closing may wait for calls.
func (e Engine) start(t *testing.T, n int, opts comm.Options) []*comm.Group {
	if opts.Timeout == 0 {
		opts.Timeout = time.Minute
	}
	opts.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	groups := e.Start(t, n, opts)
	require.Len(t, groups, n)
	t.Cleanup(func() { closeAll(t, groups) })
	for r, g := range groups {
		require.Equal(t, r, g.Rank())
		require.Equal(t, n, g.Size())
		require.Equal(t, e.Name, g.Describe().Name)
		require.Contains(t, g.Describe().Path, e.Path)
	}
	return groups
}

func closeAll(t *testing.T, groups []*comm.Group) {
	each(groups, func(g *comm.Group) error { return g.Close() }, func(r int, err error) {
		require.NoError(t, err, "rank %d", r)
	})
}

// each calls f for all groups at once and hands the results on in rank order.
func each[T any](groups []*comm.Group, f func(g *comm.Group) T, then func(rank int, result T)) {
	results := make([]T, len(groups))
	var calls sync.WaitGroup
	for r, g := range groups {
		calls.Go(func() { results[r] = f(g) })
	}
	calls.Wait()
	for r, result := range results {
		then(r, result)
	}
}

// divide makes the sub-groups of the given members, of which each rank is in one, and returns each rank's.
func divide(t *testing.T, groups []*comm.Group, name func(part int) string, members ...[]int) []*comm.Group {
	t.Helper()
	subs := make([]*comm.Group, len(groups))
	each(groups, func(g *comm.Group) error {
		for i, m := range members {
			s, err := g.Sub(name(i), m)
			if err != nil {
				return err
			}
			if s != nil {
				subs[g.Rank()] = s
			}
		}
		return nil
	}, func(r int, err error) { require.NoError(t, err, "rank %d", r) })
	t.Cleanup(func() { closeAll(t, subs) })
	return subs
}

// as requires an error of type E in err, and returns it.
func as[E error](t *testing.T, err error) (e E) {
	t.Helper()
	require.ErrorAs(t, err, &e)
	return e
}

// wait fails the test unless all handles end without error.
func wait(t *testing.T, handles []*comm.Handle) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for r, h := range handles {
		require.NoError(t, h.Wait(ctx), "rank %d, %v", r, h.Signature())
	}
}

// issue calls f for each group and returns the handles.
func issue(groups []*comm.Group, f func(r int, g *comm.Group) *comm.Handle) []*comm.Handle {
	handles := make([]*comm.Handle, len(groups))
	for r, g := range groups {
		handles[r] = f(r, g)
	}
	return handles
}

// random returns one buffer of random elements for each rank, at the start of the memory that place gives.
func random(place func(rank, bytes int) []byte, n, count int, d dtype.DType, seed uint64) [][]byte {
	list := make([][]byte, n)
	for r := range list {
		list[r] = place(r, count*d.Size())
		fill(list[r], d, rand.New(rand.NewPCG(seed, uint64(r))))
	}
	return list
}

func clone(list [][]byte) [][]byte {
	c := make([][]byte, len(list))
	for i, b := range list {
		c[i] = slices.Clone(b)
	}
	return c
}
