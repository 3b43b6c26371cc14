// SPDX-License-Identifier: Apache-2.0

package commtest

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
)

// subGroupFailures: the errors and flight records of a sub-group name ranks by their numbers in the job, also where
// two sub-groups have one name.
func (e Engine) subGroupFailures(t *testing.T) {
	t.Run("abort", func(t *testing.T) {
		_, subs := e.halves(t, comm.Options{})
		waiting := subs[2].Barrier()
		subs[3].Abort(errors.New("boom"))
		abort := as[*comm.AbortError](t, failures(t, []*comm.Handle{waiting})[0])
		require.Equal(t, [2]int{3, 1}, [2]int{abort.Rank, abort.GroupRank})
		require.EqualError(t, abort, `comm: group "world/half": rank 3 (1 in the group) aborted: boom`)
	})
	t.Run("missing", func(t *testing.T) {
		dir := t.TempDir()
		_, subs := e.halves(t, comm.Options{FlightDir: dir})
		late := subs[2].Broadcast(comm.Of([]int32{1}), 1, comm.Timeout(200*time.Millisecond))
		healthy := []*comm.Handle{subs[0].Barrier(), subs[1].Barrier()}
		timeout := as[*comm.TimeoutError](t, failures(t, []*comm.Handle{late})[0])
		require.Equal(t, [][]int{{3}, {1}}, [][]int{timeout.Missing, timeout.GroupMissing})
		require.Equal(t, 2, timeout.Reporter)
		require.EqualError(t, timeout, `comm: group "world/half": broadcast #1 (int32 × 1, root 3) timed out after `+
			`200ms on rank 2: rank 3 (1 in the group) did not arrive`)
		wait(t, healthy)
		for _, g := range subs[:2] {
			_, err := g.DumpFlight(dir)
			require.NoError(t, err)
		}
		<-subs[3].Dead()
		var report *comm.Report
		require.Eventually(t, func() (found bool) {
			var err error
			report, err = comm.Diagnose(dir)
			return err == nil && len(report.Records) == 4
		}, soon, 10*time.Millisecond)
		require.Len(t, report.Findings, 2)
		require.Equal(t, []int{0, 1}, report.Findings[0].Members)
		require.Equal(t, comm.FindingNone, report.Findings[0].Kind)
		require.Equal(t, []int{2, 3}, report.Findings[1].Members)
		require.Equal(t, []int{3}, report.Findings[1].Culprits)
		require.Empty(t, report.Findings[1].Absent)
		require.Contains(t, report.Findings[1].Text, `group "world/half" of ranks 2, 3: rank 3 did not come to `+
			`broadcast #1 (int32 × 1, root 3); rank 2 waited`)
	})
	t.Run("departure", func(t *testing.T) {
		_, subs := e.halves(t, comm.Options{})
		require.NoError(t, subs[3].Close())
		lost := as[*comm.RankLostError](t, failures(t, []*comm.Handle{subs[2].Barrier()})[0])
		require.Equal(t, [2]int{3, 1}, [2]int{lost.Rank, lost.GroupRank})
		require.Equal(t, "world/half", lost.Group)
		require.ErrorContains(t, lost, "rank 3 (1 in the group)")
	})
	t.Run("mismatch", func(t *testing.T) {
		_, subs := e.halves(t, comm.Options{})
		for _, err := range failures(t, []*comm.Handle{subs[2].Broadcast(comm.Of([]int32{1}), 0), subs[3].Barrier()}) {
			require.EqualError(t, err, `comm: group "world/half": the ranks disagree: rank 2 (0 in the group) called `+
				`broadcast #1 (int32 × 1, root 2), rank 3 (1 in the group) called barrier #1`)
		}
	})
	t.Run("passed on", func(t *testing.T) {
		groups, subs := e.halves(t, comm.Options{})
		waiting := groups[0].Barrier()
		subs[3].Abort(errors.New("boom"))
		<-subs[2].Dead()
		groups[2].Abort(subs[2].Err()) // as a rank does whose groups end together
		require.Equal(t, 3, as[*comm.AbortError](t, failures(t, []*comm.Handle{waiting})[0]).Rank)
	})
}

// halves starts four ranks whose sub-groups, of ranks 0 and 1 and of ranks 2 and 3, have one name.
func (e Engine) halves(t *testing.T, opts comm.Options) (groups, subs []*comm.Group) {
	t.Helper()
	groups = e.start(t, 4, opts)
	return groups, divide(t, groups, func(int) string { return "half" }, []int{0, 1}, []int{2, 3})
}
