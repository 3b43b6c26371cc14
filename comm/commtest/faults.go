// SPDX-License-Identifier: Apache-2.0

package commtest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
)

// soon is the longest that a mistake may stay unnoticed on a busy machine, below the groups' deadline of a minute.
const soon = 20 * time.Second

// failures waits for all handles and returns their errors; all must be there soon.
func failures(t *testing.T, handles []*comm.Handle) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	errs := make([]error, len(handles))
	for r, h := range handles {
		errs[r] = h.Wait(ctx)
		require.Error(t, errs[r], "rank %d", r)
		require.NotErrorIs(t, errs[r], context.DeadlineExceeded, "rank %d hangs", r)
	}
	return errs
}

// dead requires that later calls return the error that a group died of.
func dead(t *testing.T, groups []*comm.Group, errs []error) {
	t.Helper()
	for r, g := range groups {
		if errs[r] == nil {
			continue
		}
		<-g.Dead()
		require.Equal(t, errs[r], g.Err(), "rank %d", r)
		require.Equal(t, errs[r], g.Barrier().Wait(context.Background()), "rank %d", r)
	}
}

// mismatches: one rank of four calls something else; all are told who and what.
func (e Engine) mismatches(t *testing.T) {
	f32 := func(n int) comm.Buffer { return comm.Of(make([]float32, n)) }
	usual := func(g *comm.Group) *comm.Handle { return g.AllReduce(f32(10), comm.Sum, comm.Label("bucket 3")) }
	for name, c := range map[string]struct {
		odd  func(g *comm.Group) *comm.Handle
		want string
	}{
		"op": {func(g *comm.Group) *comm.Handle {
			return g.Broadcast(f32(10), 0, comm.Label("bucket 3"))
		}, `broadcast #1 "bucket 3" (float32 × 10, root 0)`},
		"barrier": {func(g *comm.Group) *comm.Handle { return g.Barrier() }, `barrier #1`},
		"reduce": {func(g *comm.Group) *comm.Handle {
			return g.AllReduce(f32(10), comm.Max, comm.Label("bucket 3"))
		}, `all-reduce #1 "bucket 3" (max of float32 × 10)`},
		"count": {func(g *comm.Group) *comm.Handle {
			return g.AllReduce(f32(11), comm.Sum, comm.Label("bucket 3"))
		}, `all-reduce #1 "bucket 3" (sum of float32 × 11)`},
		"dtype": {func(g *comm.Group) *comm.Handle {
			return g.AllReduce(comm.Of(make([]int32, 10)), comm.Sum, comm.Label("bucket 3"))
		},
			`all-reduce #1 "bucket 3" (sum of int32 × 10)`},
		"label": {func(g *comm.Group) *comm.Handle {
			return g.AllReduce(f32(10), comm.Sum, comm.Label("bucket 4"))
		}, `all-reduce #1 "bucket 4" (sum of float32 × 10)`},
		"layout": {func(g *comm.Group) *comm.Handle {
			return g.AllReduce(f32(10), comm.Sum, comm.Label("bucket 3"), comm.Layout(0xabcd))
		}, `all-reduce #1 "bucket 3" (sum of float32 × 10, layout 0000abcd)`},
	} {
		t.Run(name, func(t *testing.T) {
			groups := e.start(t, 4, comm.Options{})
			errs := failures(t, issue(groups, func(r int, g *comm.Group) *comm.Handle {
				if r == 2 {
					return c.odd(g)
				}
				return usual(g)
			}))
			for r, err := range errs {
				mismatch := as[*comm.MismatchError](t, err)
				require.Equal(t, comm.Side{Rank: 2, GroupRank: 2, Call: c.want}, mismatch.B, "rank %d", r)
				require.Equal(t, comm.Side{Rank: 0, Call: `all-reduce #1 "bucket 3" (sum of float32 × 10)`}, mismatch.A,
					"rank %d", r)
			}
			dead(t, groups, errs)
		})
	}
	t.Run("order", e.order)
	t.Run("root", e.root)
	t.Run("message", e.messageMismatch)
}

// order: two calls of equal shape, exchanged on one rank.
func (e Engine) order(t *testing.T) {
	groups := e.start(t, 3, comm.Options{})
	var handles []*comm.Handle
	for r, g := range groups {
		labels := []string{"first", "second"}
		if r == 1 {
			labels = []string{"second", "first"}
		}
		for _, l := range labels {
			handles = append(handles, g.AllReduce(comm.Of(make([]float64, 5)), comm.Sum, comm.Label(l)))
		}
	}
	for _, err := range failures(t, handles) {
		require.ErrorContains(t, err,
			`rank 0 called all-reduce #1 "first" (sum of float64 × 5), rank 1 called all-reduce #1 "second" (sum of float64 × 5)`)
	}
}

func (e Engine) root(t *testing.T) {
	groups := e.start(t, 3, comm.Options{})
	for _, err := range failures(t, issue(groups, func(r int, g *comm.Group) *comm.Handle {
		return g.Broadcast(comm.Of(make([]bool, 5)), r/2)
	})) {
		require.ErrorContains(t, err, `rank 0 called broadcast #1 (bool × 5, root 0), rank 2 called broadcast #1 (bool × 5, root 1)`)
	}
}

// messageMismatch: the two partners disagree, and the third rank learns it in its barrier.
func (e Engine) messageMismatch(t *testing.T) {
	groups := e.start(t, 3, comm.Options{})
	// it may end before the receiver looks
	sent := groups[0].Send(comm.Of(make([]float32, 5)), 1, comm.Label("activation"))
	failures(t, []*comm.Handle{groups[1].Recv(comm.Of(make([]float32, 6)), 0, comm.Label("activation")),
		groups[2].Barrier()})
	for r, g := range groups {
		select {
		case <-g.Dead():
		case <-time.After(soon):
			require.Fail(t, "too late", "rank %d lives", r)
		}
		require.EqualError(t, g.Err(), `comm: group "world": the ranks disagree: rank 0 called send #1 "activation" (float32 × 5, to rank 1), `+
			`rank 1 called recv #1 "activation" (float32 × 6, from rank 0)`)
	}
	<-sent.Done()
}

// arguments that are wrong on one rank are an error on all, since the others wait for it.
func (e Engine) arguments(t *testing.T) {
	f32 := comm.Of(make([]float32, 6))
	for want, call := range map[string]func(g *comm.Group) *comm.Handle{
		"comm: broadcast: root 2: want a rank in [0, 2)": func(g *comm.Group) *comm.Handle {
			return g.Broadcast(f32, 2)
		},
		"comm: recv: partner 1: want a rank other than 1 in [0, 2)": func(g *comm.Group) *comm.Handle {
			return g.Recv(f32, 1)
		},
		"comm: all-reduce: sum of bool is not defined": func(g *comm.Group) *comm.Handle {
			return g.AllReduce(comm.Of([]bool{true}), comm.Sum)
		},
		`comm: all-gather: "w": input of float32, output of uint8: want one dtype`: func(g *comm.Group) *comm.Handle {
			return g.AllGather(comm.Of([]uint8{1}), f32, comm.Label("w"))
		},
		"comm: reduce-scatter: input of 6 elements and output of 6 on 2 ranks: want one " +
			"block of equal length for each rank": func(g *comm.Group) *comm.Handle {
			return g.ReduceScatter(comm.Of(make([]float32, 6)), f32, comm.Sum)
		},
		"comm: all-to-all: input and output overlap": func(g *comm.Group) *comm.Handle { return g.AllToAll(f32, f32) },
		"comm: all-reduce: input: buffer of 3 bytes: want a multiple of 4 (float32)": func(g *comm.Group) *comm.Handle {
			return g.AllReduce(comm.Bytes(make([]byte, 3), f32.DType()), comm.Sum)
		},
	} {
		groups := e.start(t, 2, comm.Options{})
		other := groups[0].Barrier()
		errs := failures(t, []*comm.Handle{other, call(groups[1])})
		require.ErrorContains(t, errs[1], want)
		require.ErrorContains(t, errs[0], "rank 1 aborted: "+want)
		dead(t, groups, errs)
	}
}

// missing: a rank never calls. The others are told which one at their deadline, and it is told too when it comes after
// all.
func (e Engine) missing(t *testing.T) {
	groups := e.start(t, 4, comm.Options{Timeout: 300 * time.Millisecond})
	wait(t, issue(groups, func(_ int, g *comm.Group) *comm.Handle { return g.Barrier(comm.Timeout(time.Minute)) }))
	handles := issue(groups, func(r int, g *comm.Group) *comm.Handle {
		if r == 2 {
			return nil
		}
		return g.AllReduce(comm.Of(make([]float32, 100)), comm.Sum, comm.Label("bucket 0"))
	})
	errs := failures(t, []*comm.Handle{handles[0], handles[1], handles[3]})
	for _, err := range errs {
		timeout := as[*comm.TimeoutError](t, err)
		require.Equal(t, []int{2}, timeout.Missing)
		require.Equal(t, comm.AllReduce, timeout.Op)
		require.Equal(t, uint64(2), timeout.Seq)
		require.Equal(t, "bucket 0", timeout.Label)
		require.Equal(t, 300*time.Millisecond, timeout.After)
	}
	late := failures(t, []*comm.Handle{groups[2].AllReduce(comm.Of(make([]float32, 100)), comm.Sum,
		comm.Label("bucket 0"))})[0]
	dead(t, groups, []error{errs[0], errs[1], late, errs[2]})
	as[*comm.TimeoutError](t, late)
}

// late: a rank that comes before the deadline is waited for.
func (e Engine) late(t *testing.T) {
	groups := e.start(t, 3, comm.Options{Timeout: 30 * time.Second})
	data := [][]int32{{1}, {2}, {3}}
	handles := []*comm.Handle{groups[0].AllReduce(comm.Of(data[0]), comm.Sum), groups[1].AllReduce(comm.Of(data[1]),
		comm.Sum)}
	select {
	case <-handles[0].Done():
		require.Fail(t, "an all-reduce ended without rank 2")
	case <-time.After(200 * time.Millisecond):
	}
	wait(t, append(handles, groups[2].AllReduce(comm.Of(data[2]), comm.Sum)))
	require.Equal(t, [][]int32{{6}, {6}, {6}}, data)
}

// departure: a rank leaves in good order. Its last call counts; the next one names it.
func (e Engine) departure(t *testing.T) {
	groups := e.start(t, 3, comm.Options{})
	wait(t, issue(groups, func(_ int, g *comm.Group) *comm.Handle { return g.Barrier() }))
	require.NoError(t, groups[1].Close())
	require.ErrorIs(t, groups[1].Barrier().Wait(context.Background()), comm.ErrClosed)
	require.ErrorIs(t, groups[1].Err(), comm.ErrClosed)
	errs := failures(t, []*comm.Handle{groups[0].Barrier(comm.Label("next")), groups[2].Barrier(comm.Label("next"))})
	for _, err := range errs {
		lost := as[*comm.RankLostError](t, err)
		require.Equal(t, 1, lost.Rank)
		require.Equal(t, "world", lost.Group)
		require.Equal(t, `barrier #2 "next"`, lost.Call)
	}
}

// abort: one rank gives up while the others are inside calls.
func (e Engine) abort(t *testing.T) {
	groups := e.start(t, 3, comm.Options{})
	handles := []*comm.Handle{groups[0].AllReduce(comm.Of(make([]float32, 5)), comm.Sum),
		groups[2].Recv(comm.Of(make([]float32, 5)), 0)}
	cause := errors.New("loss is NaN at step 7")
	groups[1].Abort(cause)
	require.ErrorIs(t, groups[1].Err(), cause)
	for _, err := range failures(t, handles) {
		abort := as[*comm.AbortError](t, err)
		require.Equal(t, 1, abort.Rank)
		require.Equal(t, "loss is NaN at step 7", abort.Message)
	}
	groups[0].Abort(errors.New("too late to matter"))
	require.ErrorContains(t, groups[0].Err(), "loss is NaN")
}

// abortAndLeave: a rank that gives up leaves at once. The others learn why, and not that it has left.
func (e Engine) abortAndLeave(t *testing.T) {
	for range 8 {
		groups := e.start(t, 4, comm.Options{})
		handles := issue(groups[1:], func(_ int, g *comm.Group) *comm.Handle {
			return g.AllReduce(comm.Of(make([]float32, 5)), comm.Sum)
		})
		go groups[0].Abort(errors.New("out of memory"))
		<-groups[0].Dead()
		require.NoError(t, groups[0].Close())
		for _, err := range failures(t, handles) {
			require.Equal(t, "out of memory", as[*comm.AbortError](t, err).Message)
		}
	}
}

// flight: the record is written by itself, and read back it names the culprit.
func (e Engine) flight(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "flight")
	groups := e.start(t, 4, comm.Options{FlightDir: dir, FlightSize: 8, Timeout: 300 * time.Millisecond})
	for k := range 10 {
		wait(t, issue(groups, func(_ int, g *comm.Group) *comm.Handle {
			return g.Barrier(comm.Label(fmt.Sprint("step ", k)), comm.Timeout(time.Minute))
		}))
	}
	record := groups[0].Flight()
	require.Len(t, record.Entries, 8)
	require.Equal(t, 2, record.Dropped)
	require.Equal(t, comm.Finished, record.Entries[7].State)
	failures(t, issue(groups[:3], func(_ int, g *comm.Group) *comm.Handle {
		return g.AllReduce(comm.Of(make([]float32, 9)), comm.Sum, comm.Label("bucket 1"))
	}))
	<-groups[3].Dead()
	require.Eventually(t, func() bool {
		report, err := comm.Diagnose(dir)
		return err == nil && len(report.Findings) == 1 && len(report.Findings[0].Absent) == 0
	}, soon, 10*time.Millisecond)
	report, err := comm.Diagnose(dir)
	require.NoError(t, err)
	f := report.Findings[0]
	require.Equal(t, "world", f.Group)
	require.Equal(t, []int{3}, f.Culprits)
	require.Equal(t, uint64(11), f.Seq)
	require.Contains(t, f.String(), `rank 3 did not come to all-reduce #11 "bucket 1" (sum of float32 × 9); ranks 0, 1, 2 waited`)
}
