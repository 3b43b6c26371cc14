// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/comm/internal/wire"
)

// Roster is the list of a job's hosts, which may join and leave while it runs. One host's launcher serves it, and the
// launchers of all hosts join it ([JoinRoster]). The job runs in rounds: in each the ranks of some hosts train
// together. When a host joins, leaves or is lost, the round is stopped, and the next one begins with the hosts that are
// there.
//
// A round has as many hosts as divide RosterOptions.Max, so that they can share evenly what that many hosts can;
// further ones wait for a place.
type Roster struct {
	listener *wire.Listener
	o        RosterOptions
	refusals refusalLog

	mu       sync.Mutex
	hosts    []*rosterHost // in the order in which they came
	conns    map[net.Conn]struct{}
	rounds   int         // that have begun
	size     int         // hosts of the round that runs or has just ended; 0: its end has been judged
	stopped  string      // why it was told to stop
	excused  bool        // hosts came or went, so that ranks may have failed
	restarts int         // after failures
	began    time.Time   // the last round
	earliest time.Time   // for the next round; zero: at once
	pausing  *time.Timer // until then; nil: none
	lastCall *time.Timer
	called   bool // the last call is over
	over     *HostEvent
	done     chan struct{} // closed with over
}

// RosterOptions say when rounds begin and when the job is over.
type RosterOptions struct {
	Min, Max    int           // hosts of a round
	LastCall    time.Duration // how long others may come once there are Min
	MaxRestarts int           // how often the job continues after a rank failed of itself
	// how long the hosts wait after such a failure, of a round that took so long; nil: not at all
	Pause   func(round time.Duration) time.Duration
	Job     string        // the job's name, which all ranks are told
	Silence time.Duration // after which a host is lost; 0 is DefaultSilence
	Logger  *slog.Logger  // nil discards
}

// rosterHost is one that has joined.
type rosterHost struct {
	conn    net.Conn
	last    hostReport // what it said last
	ready   bool       // to begin a round
	inRound bool
	told    bool // to stop
	leaving bool
}

// The outcomes of a round on a host.
const (
	OutcomeDone    = "done"    // all its ranks ended well: the training is over
	OutcomeStopped = "stopped" // they ended as they were told, or together with others
	OutcomeFailed  = "failed"
)

// hostReport is what a host says.
type hostReport struct {
	Op      string `json:"op"` // ready, leave
	Address string `json:"address,omitempty"`
	Report
}

// The kinds of a HostEvent.
const (
	EventBegin = "begin" // start the ranks
	EventStop  = "stop"  // let them save and end
	EventOver  = "over"  // the job has ended
)

// HostEvent is what the roster tells a host.
type HostEvent struct {
	Kind    string `json:"kind"`
	Round   int    `json:"round,omitempty"` // from 0
	Node    int    `json:"node,omitempty"`  // this host's number of Nodes
	Nodes   int    `json:"nodes,omitempty"`
	Address string `json:"address,omitempty"` // of rank 0
	Port    int    `json:"port,omitempty"`
	Job     string `json:"job,omitempty"`
	Why     string `json:"why,omitempty"`    // of stop and over
	Failed  bool   `json:"failed,omitempty"` // of over
}

// ServeRoster starts a roster on a TCP socket that listens already, for those who know the token. It takes the socket
// over, also on error.
func ServeRoster(l net.Listener, token []byte, security TLS, o RosterOptions) (*Roster, error) {
	if o.Min < 1 || o.Max < o.Min {
		return nil, errors.Join(fmt.Errorf("rendezvous: a round of %d to %d hosts: want 1 ≤ min ≤ max", o.Min, o.Max),
			l.Close())
	}
	key, err := security.key(token)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	o.Silence = cmp.Or(max(o.Silence, 0), DefaultSilence)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	r := &Roster{o: o, refusals: refusalLog{logger: o.Logger}, conns: map[net.Conn]struct{}{},
		done: make(chan struct{})}
	r.mu.Lock() // hosts may come at once
	defer r.mu.Unlock()
	r.listener = wire.ListenOn(l, key, r.serve, r.refusals.add)
	return r, nil
}

// Refusals says how many connections were refused and names the last one, which may be a host of this job with another
// token; "" if there was none.
func (r *Roster) Refusals() string { return r.refusals.String() }

// Addr returns the host and port that the roster listens on.
func (r *Roster) Addr() *net.TCPAddr { return r.listener.Addr() }

// Close ends the job for the hosts that are still there, with a reason, and stops listening.
func (r *Roster) Close(why string) error {
	r.mu.Lock()
	r.finish(why, true)
	for _, timer := range []*time.Timer{r.lastCall, r.pausing} {
		if timer != nil {
			timer.Stop()
		}
	}
	for c := range r.conns {
		_ = c.Close() // what was written still arrives
	}
	r.mu.Unlock()
	return r.listener.Close()
}

// Drain waits until the job is over and all hosts have taken leave, or the time is up.
func (r *Roster) Drain(d time.Duration) {
	deadline := time.Now().Add(d)
	<-r.done
	for time.Now().Before(deadline) {
		r.mu.Lock()
		n := len(r.conns)
		r.mu.Unlock()
		if n <= 1 { // the one of the host that serves
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// serve listens to one host until it goes.
func (r *Roster) serve(c net.Conn, _ wire.Hello) {
	defer c.Close()
	listenFor(c, r.o.Silence)
	h := &rosterHost{conn: c}
	r.mu.Lock()
	r.conns[c] = struct{}{}
	r.mu.Unlock()
	for {
		var m hostReport
		if err := wire.Read(c, &m, wire.MaxGreeting*16); err != nil {
			break
		}
		r.hear(h, m)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
	r.remove(h, "is lost")
}

// hear takes in what a host says.
func (r *Roster) hear(h *rosterHost, m hostReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.over != nil:
		h.send(*r.over)
	case m.Op == "leave":
		r.o.Logger.Info("a host leaves", "host", h.last.Address)
		h.leaving = true
		if h.inRound {
			r.excused = true
			r.stop(h.last.Address + " leaves")
			return
		}
		r.remove(h, "has left")
	case m.Op == "ready":
		r.enter(h, m)
	}
}

// enter takes down that a host is ready for a round, its first or the next.
func (r *Roster) enter(h *rosterHost, m hostReport) {
	if len(r.hosts) > 0 && r.hosts[0].last.Ranks != m.Ranks {
		r.o.Logger.Warn("a host is refused because it has another nproc_per_node", "host", m.Address, "ranks", m.Ranks,
			"want", r.hosts[0].last.Ranks)
		h.send(HostEvent{Kind: EventOver, Failed: true, Why: fmt.Sprintf("this host has %d ranks, the others have %d: "+
			"want the same nproc_per_node", m.Ranks, r.hosts[0].last.Ranks)})
		return
	}
	if !slices.Contains(r.hosts, h) {
		r.o.Logger.Info("a host joins", "host", m.Address, "hosts", len(r.hosts)+1)
		r.hosts = append(r.hosts, h)
	}
	h.last, h.ready, h.inRound, h.told = m, true, false, false
	if m.Outcome == OutcomeFailed {
		r.stop("a rank failed on " + m.Address)
	}
	r.settle()
}

// remove forgets a host.
func (r *Roster) remove(h *rosterHost, how string) {
	i := slices.Index(r.hosts, h)
	if i < 0 {
		return
	}
	r.hosts = slices.Delete(r.hosts, i, i+1)
	if r.over != nil {
		return
	}
	r.o.Logger.Info("a host is gone", "host", h.last.Address, "hosts", len(r.hosts))
	if h.inRound {
		r.excused = true
		r.stop(h.last.Address + " " + how)
	}
	r.settle()
}

// stop ends the round, if one runs.
func (r *Roster) stop(why string) {
	for _, h := range r.hosts {
		if h.inRound && !h.told {
			h.told = true
			r.stopped = why
			h.send(HostEvent{Kind: EventStop, Round: r.rounds - 1, Why: why})
		}
	}
}

// settle begins or ends what can begin or end now.
func (r *Roster) settle() {
	if r.over != nil {
		return
	}
	there, running := 0, false
	for _, h := range r.hosts {
		running = running || h.inRound
		if !h.leaving && (h.ready || h.inRound) {
			there++
		}
	}
	if running {
		if r.places(there) > r.size && r.stopped == "" && r.lastCalled() {
			r.excused = true
			r.stop("hosts have joined")
		}
		return
	}
	if r.size > 0 && r.judge() {
		return
	}
	if n := r.places(there); n >= r.o.Min && (n == r.o.Max || r.lastCalled()) && r.rested() {
		r.begin(n)
	}
}

// rested reports whether the pause after a failure is over.
func (r *Roster) rested() bool {
	left := time.Until(r.earliest)
	if left <= 0 {
		return true
	}
	if r.pausing == nil {
		r.pausing = r.settleAfter(left, func() { r.pausing = nil })
	}
	return false
}

// settleAfter settles once d has passed and change has been made.
func (r *Roster) settleAfter(d time.Duration, change func()) *time.Timer {
	return time.AfterFunc(d, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		change()
		r.settle()
	})
}

// places is how many of so many hosts take part in a round.
func (r *Roster) places(hosts int) int {
	n := min(hosts, r.o.Max)
	for n > 1 && r.o.Max%n != 0 {
		n--
	}
	return n
}

// lastCalled reports whether the time for others to come is over; the first question starts it.
func (r *Roster) lastCalled() bool {
	if r.lastCall == nil {
		r.lastCall = r.settleAfter(r.o.LastCall, func() { r.called = true })
	}
	return r.called
}

// judge decides what the end of a round means, and reports whether the job is over.
func (r *Roster) judge() bool {
	r.size = 0
	all, failed := true, (*rosterHost)(nil)
	for _, h := range r.hosts {
		switch h.last.Outcome {
		case OutcomeDone, "": // it was not in the round
		case OutcomeFailed:
			all = false
			if failed == nil || h.last.Permanent {
				failed = h
			}
		default:
			all = false
		}
	}
	done := slices.ContainsFunc(r.hosts, func(h *rosterHost) bool { return h.last.Outcome == OutcomeDone })
	switch {
	case all && done:
		r.finish("", false)
	case failed == nil || r.excused && !failed.last.Permanent: // it will fail again, if it was not that
	case failed.last.Permanent || r.restarts == r.o.MaxRestarts:
		r.finish(failed.last.Address+": "+failed.last.Why, true)
	default:
		r.restarts++
		pause := time.Duration(0)
		if r.o.Pause != nil {
			pause = r.o.Pause(time.Since(r.began))
		}
		r.earliest = time.Now().Add(pause)
		r.o.Logger.Warn("a rank failed; the job continues in another round", "host", failed.last.Address, "cause",
			failed.last.Why, "restarts", r.restarts, "max_restarts", r.o.MaxRestarts, "in", pause)
	}
	for _, h := range r.hosts {
		h.last.Outcome = ""
	}
	r.stopped, r.excused = "", false
	return r.over != nil
}

// begin starts a round with the first n hosts.
func (r *Roster) begin(n int) {
	if r.lastCall != nil {
		r.lastCall.Stop()
	}
	r.lastCall, r.called, r.stopped, r.excused, r.size = nil, false, "", false, n
	var chosen []*rosterHost
	for _, h := range r.hosts {
		if h.ready && !h.leaving && len(chosen) < n {
			chosen = append(chosen, h)
		}
	}
	first := chosen[0].last
	r.o.Logger.Info("a round begins", "round", r.rounds, "hosts", n, "waiting", len(r.hosts)-n)
	for i, h := range chosen {
		h.ready, h.inRound = false, true
		h.send(HostEvent{Kind: EventBegin, Round: r.rounds, Node: i, Nodes: n, Address: first.Address, Port: first.Port,
			Job: r.o.Job})
	}
	r.rounds++
	r.began = time.Now()
}

// finish ends the job.
func (r *Roster) finish(why string, failed bool) {
	if r.over != nil {
		return
	}
	r.over = &HostEvent{Kind: EventOver, Why: why, Failed: failed}
	for _, h := range r.hosts {
		h.send(*r.over)
	}
	close(r.done)
}

// send tells a host. One that does not listen is lost soon: its reader notices.
func (h *rosterHost) send(e HostEvent) {
	_ = h.conn.SetWriteDeadline(time.Now().Add(wire.Patience))
	if err := wire.Write(h.conn, e, wire.MaxGreeting*16); err != nil {
		_ = h.conn.Close()
	}
}
