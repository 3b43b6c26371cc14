// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm/internal/wire"
)

// rosterToken is the secret of the hosts in these tests.
var rosterToken = NewToken()

// roster starts one, and ends it with the test.
func roster(t *testing.T, o RosterOptions) *Roster {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if o.LastCall == 0 {
		o.LastCall = 10 * time.Millisecond
	}
	r, err := ServeRoster(l, rosterToken, TLS{}, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close("the test is over")) })
	return r
}

// door is where hosts join.
func (r *Roster) door() Door { return Door{Address: r.Addr().String(), Token: rosterToken} }

// guest is a host in a test.
type guest struct {
	*Member
	t *testing.T
}

// join connects a host that is ready for its first round.
func (r *Roster) join(t *testing.T, port int) guest {
	t.Helper()
	m, err := JoinRoster(t.Context(), r.door())
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	before := r.known()
	require.NoError(t, m.Ready(Report{Port: port, Ranks: 2}))
	for r.known() == before { // hosts are numbered in the order in which they come
		time.Sleep(time.Millisecond)
	}
	return guest{m, t}
}

// known is how many hosts there are, -1 once the job is over.
func (r *Roster) known() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over != nil {
		return -1
	}
	return len(r.hosts)
}

// hears requires this event to be the next.
func (g guest) hears(want HostEvent) {
	g.t.Helper()
	select {
	case e := <-g.Events():
		require.Equal(g.t, want, e)
	case <-time.After(10 * time.Second):
		require.Fail(g.t, "no event", "want %+v", want)
	}
}

// ended reports a round.
func (g guest) ended(outcome string) {
	g.t.Helper()
	require.NoError(g.t, g.Ready(Report{Ranks: 2, Outcome: outcome, Why: "rank 1: exit code 1"}))
}

// round is the beginning of one whose rank 0 is met at a port.
func round(n, node, nodes, port int) HostEvent {
	return HostEvent{Kind: EventBegin, Round: n, Node: node, Nodes: nodes, Address: "127.0.0.1", Port: port, Job: "j"}
}

func stop(n int, why string) HostEvent { return HostEvent{Kind: EventStop, Round: n, Why: why} }

var jobOver = HostEvent{Kind: EventOver}

func TestRosterRoundOfAll(t *testing.T) {
	r := roster(t, RosterOptions{Min: 2, Max: 2, Job: "j", LastCall: time.Hour})
	a := r.join(t, 71)
	a.late(t)
	b := r.join(t, 72)
	a.hears(round(0, 0, 2, 71))
	b.hears(round(0, 1, 2, 71))
	a.ended(OutcomeDone)
	b.ended(OutcomeDone)
	a.hears(jobOver)
	b.hears(jobOver)
	late, err := JoinRoster(t.Context(), r.door())
	require.NoError(t, err)
	defer late.Close()
	require.NoError(t, late.Ready(Report{Ranks: 2}))
	guest{late, t}.hears(jobOver)
}

// late requires nothing to be said for a while.
func (g guest) late(t *testing.T) {
	t.Helper()
	select {
	case e := <-g.Events():
		require.Fail(t, "too early", "%+v", e)
	case <-time.After(50 * time.Millisecond):
	}
}

func TestRosterPlaces(t *testing.T) {
	for _, row := range []struct{ hosts, most, want int }{
		{1, 4, 1}, {2, 4, 2}, {3, 4, 2}, {4, 4, 4}, {9, 4, 4}, {5, 6, 3}, {6, 7, 1}, {0, 4, 0},
	} {
		r := &Roster{o: RosterOptions{Max: row.most}}
		require.Equal(t, row.want, r.places(row.hosts), "%d hosts of at most %d", row.hosts, row.most)
	}
}

func TestRosterHostJoins(t *testing.T) {
	r := roster(t, RosterOptions{Min: 1, Max: 4, Job: "j"})
	a := r.join(t, 71)
	a.hears(round(0, 0, 1, 71))
	b := r.join(t, 72)
	a.hears(stop(0, "hosts have joined"))
	a.ended(OutcomeFailed) // ranks that were still starting: this counts as no failure
	a.hears(round(1, 0, 2, 0))
	b.hears(round(1, 1, 2, 0))
	c := r.join(t, 73) // three do not divide four
	a.late(t)
	c.late(t)
	r.join(t, 74)
	a.hears(stop(1, "hosts have joined"))
}

func TestRosterHostLeaves(t *testing.T) {
	r := roster(t, RosterOptions{Min: 1, Max: 2, Job: "j", LastCall: time.Second / 2})
	a := r.join(t, 71)
	b := r.join(t, 72)
	a.hears(round(0, 0, 2, 71))
	b.hears(round(0, 1, 2, 71))
	require.NoError(t, b.Leave())
	a.hears(stop(0, "127.0.0.1 leaves"))
	a.ended(OutcomeStopped)
	a.late(t) // the other's ranks are still saving
	require.NoError(t, b.Close())
	a.hears(round(1, 0, 1, 0))
}

func TestRosterHostIsLost(t *testing.T) {
	r := roster(t, RosterOptions{Min: 1, Max: 2, Job: "j", LastCall: time.Second / 2})
	a := r.join(t, 71)
	b := r.join(t, 72)
	a.hears(round(0, 0, 2, 71))
	require.NoError(t, b.Close())
	a.hears(stop(0, "127.0.0.1 is lost"))
	a.ended(OutcomeFailed) // since it lost the other: this counts as no failure
	a.hears(round(1, 0, 1, 0))
}

func TestRosterWaitsForEnough(t *testing.T) {
	r := roster(t, RosterOptions{Min: 2, Max: 2, Job: "j"})
	a := r.join(t, 71)
	b := r.join(t, 72)
	a.hears(round(0, 0, 2, 71))
	require.NoError(t, b.Close())
	a.hears(stop(0, "127.0.0.1 is lost"))
	a.ended(OutcomeStopped)
	a.late(t)
	r.join(t, 73)
	a.hears(round(1, 0, 2, 0))
}

func TestRosterFailures(t *testing.T) {
	r := roster(t, RosterOptions{Min: 2, Max: 2, Job: "j", MaxRestarts: 1})
	a := r.join(t, 71)
	b := r.join(t, 72)
	for n := range 2 {
		a.hears(round(n, 0, 2, 71*(1-n)))
		b.hears(round(n, 1, 2, 71*(1-n)))
		a.ended(OutcomeFailed)
		b.hears(stop(n, "a rank failed on 127.0.0.1"))
		b.ended(OutcomeStopped)
	}
	a.hears(HostEvent{Kind: EventOver, Failed: true, Why: "127.0.0.1: rank 1: exit code 1"})
}

// After a failure the next round waits, as long as the round that failed makes it.
func TestRosterPausesAfterAFailure(t *testing.T) {
	pauses := make(chan time.Duration, 2) // what the roster is told
	asked := make(chan time.Duration, 2)
	pause := func(round time.Duration) time.Duration {
		asked <- round
		return <-pauses
	}
	r := roster(t, RosterOptions{Min: 1, Max: 1, Job: "j", MaxRestarts: 9, Pause: pause})
	a := r.join(t, 71)
	a.hears(round(0, 0, 1, 71))
	pauses <- 20 * time.Millisecond
	began := time.Now()
	a.ended(OutcomeFailed)
	a.hears(round(1, 0, 1, 0))
	require.GreaterOrEqual(t, time.Since(began), 20*time.Millisecond)
	pauses <- time.Hour
	a.ended(OutcomeFailed)
	a.late(t)
	require.Positive(t, <-asked)
}

// A host that was in the roster before learns that nobody serves it any more, and waits for one that does not answer.
func TestRosterIsGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	d := Door{Address: l.Addr().String(), Token: rosterToken, Again: true}
	require.NoError(t, l.Close())
	_, err = JoinRoster(t.Context(), d)
	require.ErrorContains(t, err, "the launcher at "+d.Address+", which serves the list of hosts, is gone")
	d.Again = false // it may still come
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = JoinRoster(ctx, d)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestRosterPermanentFailure(t *testing.T) {
	r := roster(t, RosterOptions{Min: 1, Max: 1, Job: "j", MaxRestarts: 9})
	a := r.join(t, 71)
	a.hears(round(0, 0, 1, 71))
	require.NoError(t, a.Ready(Report{Ranks: 2, Outcome: OutcomeFailed, Why: "bad flag", Permanent: true}))
	a.hears(HostEvent{Kind: EventOver, Failed: true, Why: "127.0.0.1: bad flag"})
}

func TestRosterRefusesOtherRanks(t *testing.T) {
	r := roster(t, RosterOptions{Min: 1, Max: 2, Job: "j"})
	a := r.join(t, 71)
	a.hears(round(0, 0, 1, 71))
	m, err := JoinRoster(t.Context(), r.door())
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, m.Ready(Report{Ranks: 3}))
	e := <-m.Events()
	require.True(t, e.Failed)
	require.Contains(t, e.Why, "has 3 ranks, the others have 2: want the same nproc_per_node")
	a.late(t)
}

func TestRosterTells(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r, err := ServeRoster(l, rosterToken, TLS{}, RosterOptions{Min: 1, Max: 1, Job: "j"})
	require.NoError(t, err)
	a := r.join(t, 71)
	a.hears(round(0, 0, 1, 71))
	_, err = JoinRoster(t.Context(), Door{Address: r.Addr().String(), Token: NewToken()})
	require.ErrorContains(t, err, "tokens differ")
	require.NoError(t, r.Close("out of money"))
	a.hears(HostEvent{Kind: EventOver, Failed: true, Why: "out of money"})
	_, open := <-a.Events()
	require.False(t, open)

	for _, bad := range []RosterOptions{{Min: 0, Max: 1}, {Min: 2, Max: 1}} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		_, err = ServeRoster(l, rosterToken, TLS{}, bad)
		require.ErrorContains(t, err, fmt.Sprintf("a round of %d to %d hosts", bad.Min, bad.Max))
	}
}

// A host with another token, or without TLS where the others want it, is warned of by its address, a repeated one once
// in a while; nothing ends.
func TestRosterWarnsOfRefusals(t *testing.T) {
	var log page
	r := roster(t, RosterOptions{Min: 1, Max: 2, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.Empty(t, r.Refusals())
	door := r.door()
	for range 3 {
		door.Token = NewToken()
		_, err := JoinRoster(t.Context(), door)
		require.True(t, Refused(err), "%v", err)
		require.ErrorIs(t, err, wire.ErrToken)
	}
	require.Eventually(t, log.has("a host was refused since its job token differs from this host's; if it belongs to "+
		`this job, give both the same" host=127.0.0.1:`), 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return strings.HasPrefix(r.Refusals(), "3 refused, the last one 127.0.0.1:") },
		10*time.Second, time.Millisecond, "%s", r.Refusals())
	require.Regexp(t, `^3 refused, the last one 127.0.0.1:\d+, whose job token differs$`, r.Refusals())
	door = r.door()
	door.TLS.Mode = TLSAlways
	_, err := JoinRoster(t.Context(), door)
	require.True(t, Refused(err), "%v", err)
	require.Eventually(t, func() bool { return strings.HasSuffix(r.Refusals(), "whose LOCKSTEP_TLS differs") },
		10*time.Second, time.Millisecond)
	r.join(t, 1).hears(HostEvent{Kind: EventBegin, Nodes: 1, Address: "127.0.0.1", Port: 1})
}

// Strangers from however many addresses fill no log.
func TestRefusalsAreBounded(t *testing.T) {
	f := refusalLog{logger: slog.New(slog.DiscardHandler)}
	now := time.Now()
	for i := range 2 * refusalHosts {
		require.Equal(t, i >= refusalHosts, f.warned(fmt.Sprint(i), now), i)
	}
	require.True(t, f.warned("1", now.Add(refusalPause/2)))
	require.False(t, f.warned("another", now.Add(refusalPause)))
	require.Len(t, f.told, 1)
}
