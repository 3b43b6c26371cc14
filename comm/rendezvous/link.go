// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/wire"
)

// link is the control connection to one other process.
type link struct {
	mu   sync.Mutex
	conn net.Conn
}

// notice is a message on a link.
type notice struct {
	// "abort" or "leave" a group; "probe" its progress; "bye": the process leaves the job in good order
	Kind  string `json:"kind"`
	Group string `json:"group,omitempty"`
	Error []byte `json:"error,omitempty"` // comm.EncodeError
	ID    uint64 `json:"id,omitempty"`    // of a probe and its "answer"
	Seq   uint64 `json:"seq,omitempty"`   // the progress
}

func (l *link) send(n notice) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	// a process that does not read its notices must not hold this one up
	_ = l.conn.SetWriteDeadline(time.Now().Add(time.Second))
	return wire.Write(l.conn, n, wire.MaxFrame)
}

// Listener is what an engine is told about one group; the ranks are the group's. Functions may be called from several
// goroutines, and before Register returns.
type Listener struct {
	Fail func(err error)                         // another rank aborted, or is lost
	Gone func(rank int, why *comm.RankLostError) // a rank has left: waiting for what it has not sent is an error
	At   func() uint64                           // answers a probe: the number of the last call begun; may be nil
}

// Membership is this process's place in a group of a job's processes. It ends with Leave.
type Membership struct {
	job      *Job
	group    string
	members  []int // ranks of the job, by rank of the group
	rank     int   // this process's
	listener Listener
	failure  atomic.Pointer[error] // the first that another rank told of, or was
	left     sync.Map              // ranks of the group that have closed it
}

func (m *Membership) fail(err error) {
	m.failure.CompareAndSwap(nil, &err)
	m.listener.Fail(err)
}

// departure is the end of a process, as seen from here.
type departure struct {
	why    string
	polite bool // it said good-bye: only waiting for it is an error
	silent bool // it did not end: nothing was heard of it for too long
}

// closed reports whether a read failed because the other side has ended.
func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// maxEarly is for how many groups that this process has not made yet notices are kept.
const maxEarly = 1024

type early struct {
	from int
	notice
}

// Register tells the listener of everything that concerns the group of the given members, this process among them, from
// now on, and of what came before.
func (j *Job) Register(group string, members []int, l Listener) *Membership {
	m := &Membership{job: j, group: group, members: members, rank: slices.Index(members, j.Rank), listener: l}
	j.mu.Lock()
	j.groups[group] = m
	before := j.early[group]
	delete(j.early, group)
	var lost []int
	for _, r := range members {
		if j.lost[r].why != "" {
			lost = append(lost, r)
		}
	}
	j.mu.Unlock()
	for _, e := range before {
		m.tell(e.from, e.notice)
	}
	for _, r := range lost {
		j.tellLost(m, r)
	}
	return m
}

// Leave ends what Register began and tells the other members that this rank has left the group. If it leaves
// because of a failure, it says which: some of the others may not know of it yet, and would take this rank for the
// first that was lost.
func (m *Membership) Leave() {
	m.job.mu.Lock()
	delete(m.job.groups, m.group)
	m.job.mu.Unlock()
	if err := m.failure.Load(); err != nil {
		m.Abort(*err)
	}
	m.post(notice{Kind: "leave"})
}

// Abort tells the other members why this rank gives the group up. It comes before Leave.
func (m *Membership) Abort(err error) {
	m.post(notice{Kind: "abort", Error: comm.EncodeError(err, m.job.Rank, m.rank)})
}

// Process returns where a rank of the group runs. It implements part of [comm.Prober].
func (m *Membership) Process(rank int) (host string, pid int) {
	p := m.job.Peers[m.members[rank]]
	return p.Host, p.PID
}

// post sends a notice about the group to the other members.
func (m *Membership) post(n notice) {
	n.Group = m.group
	for _, r := range m.members {
		if l := m.job.links[r]; l != nil {
			_ = l.send(n) // its end is noticed by the reader
		}
	}
}

// read takes notices from one process until it ends.
func (j *Job) read(rank int, l *link) {
	for {
		var n notice
		if err := wire.Read(l.conn, &n, wire.MaxFrame); err != nil {
			j.ended(rank, departure{why: "its process ended or its host is out of reach", silent: !closed(err)})
			return
		}
		if n.Kind == "bye" {
			j.ended(rank, departure{why: "it left the job", polite: true})
			return
		}
		if n.Kind == "probe" || n.Kind == "answer" {
			j.probed(rank, l, n)
			continue
		}
		j.mu.Lock()
		m := j.groups[n.Group]
		if _, known := j.early[n.Group]; m == nil && len(j.early[n.Group]) < 2*j.World &&
			(known || len(j.early) < maxEarly) {
			j.early[n.Group] = append(j.early[n.Group], early{from: rank, notice: n})
		}
		j.mu.Unlock()
		if m != nil {
			m.tell(rank, n)
		}
	}
}

// tell hands a notice on to an engine.
func (m *Membership) tell(from int, n notice) {
	rank := slices.Index(m.members, from)
	if rank < 0 {
		return
	}
	switch n.Kind {
	case "abort":
		m.fail(comm.DecodeError(n.Error, from, rank))
	case "leave":
		m.left.Store(rank, true)
		m.listener.Gone(rank, &comm.RankLostError{Rank: from, GroupRank: rank, Cause: "it closed the group"})
	}
}

// ended notes that a process is gone and tells all groups that it is a member of.
func (j *Job) ended(rank int, d departure) {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return
	}
	j.lost[rank] = d
	close(j.gone[rank])
	groups := slices.Collect(maps.Values(j.groups))
	j.mu.Unlock()
	for _, m := range groups {
		j.tellLost(m, rank)
	}
}

// tellLost tells one group of the end of a process. One that ended without a word takes the group with it, unless it
// had closed it. That comes a moment later than the word that it is gone: a call that waits for the process fails of
// that, and one that has all that it needs of it still succeeds, as the last call of a job may when the process was
// the first to end. One that is silent has ended nothing, and takes the group with it at once.
func (j *Job) tellLost(m *Membership, jobRank int) {
	rank := slices.Index(m.members, jobRank)
	if rank < 0 {
		return
	}
	j.mu.Lock()
	d := j.lost[jobRank]
	j.mu.Unlock()
	lost := &comm.RankLostError{Rank: jobRank, GroupRank: rank, Cause: d.why}
	lost.Host, lost.PID = m.Process(rank)
	m.listener.Gone(rank, lost)
	if _, left := m.left.Load(rank); left || d.polite {
		return
	}
	if d.silent {
		m.fail(lost)
		return
	}
	time.AfterFunc(lastWords, func() {
		j.mu.Lock()
		still := !j.closed && j.groups[m.group] == m
		j.mu.Unlock()
		if still {
			m.fail(lost)
		}
	})
}

// answer is what a rank of the job says to a probe.
type answer struct {
	rank int
	seq  uint64
}

// Probe asks the processes of the other members how far they are, and returns the answers that come before ctx ends, by
// rank of the group. Those that stand still do not answer. It implements part of [comm.Prober].
func (m *Membership) Probe(ctx context.Context) map[int]uint64 {
	j, heard := m.job, make(chan answer, 2*len(m.members))
	j.mu.Lock()
	j.lastProbe++
	id := j.lastProbe
	j.probes[id] = heard
	j.mu.Unlock()
	defer func() {
		j.mu.Lock()
		delete(j.probes, id)
		j.mu.Unlock()
	}()
	m.post(notice{Kind: "probe", ID: id})
	answers := map[int]uint64{}
	for len(answers) < len(m.members)-1 {
		select {
		case a := <-heard:
			if r := slices.Index(m.members, a.rank); r >= 0 {
				answers[r] = a.seq
			}
		case <-ctx.Done():
			return answers
		}
	}
	return answers
}

// probed answers a probe, or takes an answer.
func (j *Job) probed(rank int, l *link, n notice) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if n.Kind == "probe" {
		reply := notice{Kind: "answer", ID: n.ID}
		if m := j.groups[n.Group]; m != nil && m.listener.At != nil {
			reply.Seq = m.listener.At()
		}
		go func() { _ = l.send(reply) }() // its end is noticed by the reader, which must not wait for a full connection
		return
	}
	select {
	case j.probes[n.ID] <- answer{rank, n.Seq}:
	default: // nobody asks any more, or it has answered often enough
	}
}
