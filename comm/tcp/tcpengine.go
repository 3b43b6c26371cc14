// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/algorithms"
	"github.com/lockstep-ml/lockstep/comm/internal/failure"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// engine implements [comm.Engine] over connections, with [comm.Prober].
type engine struct {
	*rendezvous.Membership // since it is connected
	*failure.State

	job     *rendezvous.Job
	over    Transport
	group   string
	members []int // ranks in the job
	whole   bool  // it is no part of another group
	rank    int
	peers   []*peer // by rank; nil for this one

	runner     algorithms.Runner
	heads      [][]byte
	signatures [][]byte // the heads' beginnings
	head       []byte

	mu        sync.Mutex    // guards the setting of hierarchy
	hierarchy *hierarchical // nil: all bytes go through connections

	at      atomic.Uint64 // number of the last collective call begun
	probes  bool          // at a deadline the others are asked how far they are
	changed chan struct{} // holds one when the state has changed
}

// peer is the way to one other rank.
type peer struct {
	data     net.Conn // collective calls
	out      *writer
	messages net.Conn
}

// newEngine connects the members, and within hosts maps shared memory where the placement allows; all of them call it.
func newEngine(job *rendezvous.Job, over Transport, group string, members []int) (*engine, error) {
	e, err := newFlat(job, over, group, members)
	if err != nil {
		return nil, err
	}
	e.probes = true
	if err := e.descend(group); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// newFlat connects each member with each.
func newFlat(job *rendezvous.Job, over Transport, group string, members []int) (*engine, error) {
	n := len(members)
	e := &engine{
		State: failure.New(n), job: job, over: over, group: over.Name + "/" + group, members: members,
		rank: slices.Index(members, job.Rank), peers: make([]*peer, n),
		runner: algorithms.Runner{ChunkBytes: over.ChunkBytes},
		heads:  make([][]byte, n), signatures: make([][]byte, n),
		head: make([]byte, headBytes), changed: make(chan struct{}, 1),
	}
	for r := range e.heads {
		e.heads[r] = make([]byte, headBytes)
		e.signatures[r] = e.heads[r][:comm.SignatureBytes]
	}
	job.Hold()
	if err := e.connect(); err != nil {
		return nil, errors.Join(err, e.release())
	}
	e.Membership = job.Register(e.group, members, rendezvous.Listener{Fail: e.fail, Gone: e.left, At: e.at.Load})
	return e, nil
}

func (e *engine) connect() error {
	ctx, cancel := context.WithTimeout(context.Background(), e.job.Timeout)
	defer cancel()
	for r, inJob := range e.members {
		if r == e.rank {
			continue
		}
		data, err := e.over.Connect(ctx, "data/"+e.group, inJob)
		if err != nil {
			return fmt.Errorf("comm/%s: %w", e.over.Name, err)
		}
		e.peers[r] = &peer{data: data, out: newWriter(data)}
		if e.peers[r].messages, err = e.over.Connect(ctx, "messages/"+e.group, inJob); err != nil {
			return fmt.Errorf("comm/%s: %w", e.over.Name, err)
		}
	}
	return nil
}

// Rank returns this rank's number.
func (e *engine) Rank() int { return e.rank }

// Size returns the number of ranks.
func (e *engine) Size() int { return len(e.members) }

// Describe says between how many hosts the connections run.
func (e *engine) Describe() comm.Info {
	if e.hierarchy != nil {
		return comm.Info{Name: e.over.Name,
			Path: fmt.Sprintf("hierarchical: shared memory of %d processes on each of %d hosts, %s between hosts",
				e.hierarchy.local.Size(), e.hierarchy.rail.Size(), e.over.Way)}
	}
	hosts := map[string]bool{}
	for _, r := range e.members {
		hosts[e.job.Peers[r].HostID] = true
	}
	return comm.Info{Name: e.over.Name, Path: fmt.Sprintf("flat: %s between %d processes on %s", e.over.Way,
		len(e.members), quantity.Of(len(hosts), "host"))}
}

// Alloc returns memory that the processes of this host share, if the engine has such, else ordinary memory.
func (e *engine) Alloc(n int) (*comm.Memory, error) {
	if e.hierarchy != nil {
		return e.hierarchy.local.Alloc(n)
	}
	return comm.NewMemory(comm.Aligned(n), nil), nil
}

// Split connects a sub-group.
func (e *engine) Split(name string, members []int) (comm.Engine, error) {
	sub, err := newEngine(e.job, e.over, name, comm.JobRanks(e.members, members))
	if err != nil {
		return nil, err
	}
	return sub, nil
}

// fail is told by the job that another rank failed.
func (e *engine) fail(err error) {
	if e.die(err) {
		e.Tell(err)
	}
}

// left is told by the job that a rank has closed the group.
func (e *engine) left(rank int, why *comm.RankLostError) {
	e.Gone(rank, why)
	e.signal()
}

// die makes running and later calls return; false if the engine was dead.
func (e *engine) die(err error) bool {
	if !e.Set(err) {
		return false
	}
	e.signal()
	e.limit(time.Unix(1, 0))
	e.mu.Lock()
	in := e.hierarchy
	e.mu.Unlock()
	if in != nil {
		in.die(err)
	}
	return true
}

func (e *engine) signal() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// limit sets the deadline of all connections.
func (e *engine) limit(deadline time.Time) {
	for _, p := range e.peers {
		if p != nil {
			_ = p.data.SetDeadline(deadline) // a closed connection needs none
			_ = p.messages.SetDeadline(deadline)
		}
	}
}

// Abort makes calls return on this rank and tells the others.
func (e *engine) Abort(err error) {
	if e.die(err) {
		e.Membership.Abort(err)
	}
}

// Close tells the others and closes the connections.
func (e *engine) Close() error {
	e.Leave()
	var err error
	if e.hierarchy != nil {
		err = e.hierarchy.close()
	}
	return errors.Join(err, e.release())
}

func (e *engine) release() error {
	var errs []error
	for _, p := range e.peers {
		if p == nil {
			continue
		}
		errs = append(errs, p.data.Close())
		p.out.close()
		if p.messages != nil {
			errs = append(errs, p.messages.Close())
		}
	}
	return errors.Join(append(errs, e.job.Release())...)
}

// Run carries one call out.
func (e *engine) Run(c *comm.Call) error {
	switch c.Op {
	case comm.Send:
		return e.send(c)
	case comm.Recv:
		return e.receive(c)
	}
	e.at.Store(c.Seq)
	for _, p := range e.peers {
		if p != nil {
			_ = p.data.SetDeadline(c.Deadline) // an error shows in the next read or write
		}
	}
	if err := e.Err(); err != nil {
		return err
	}
	return e.collective(c)
}

// patience is how long a broken connection waits for the notice that says why.
const patience = time.Second

// explain finds out why a read from or a write to rank failed.
func (e *engine) explain(c *comm.Call, rank int, cause error, missing []int) error {
	timedOut := errors.Is(cause, os.ErrDeadlineExceeded)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		if err := e.Obstacle(rank, c); err != nil {
			return err
		}
		if timedOut {
			return e.timeout(c, missing)
		}
		select {
		case <-e.changed:
			e.signal() // another call may wait for it as well
			time.Sleep(time.Millisecond)
		case <-timer.C:
			if errors.Is(cause, io.EOF) {
				cause = errors.New("its connection closed")
			}
			host, pid := e.Process(rank)
			return &comm.RankLostError{Group: c.Group, Rank: e.members[rank], GroupRank: rank, Host: host, PID: pid,
				Cause: cause.Error(), Call: c.String()}
		}
	}
}

// grace is how long a rank may take to say how far it is.
const grace = 300 * time.Millisecond

// timeout returns the error of a call that passed its deadline. The rank that this one waits for may itself wait for
// another, so all are asked: who does not answer stands still, and who has not begun the call is late. suspects are
// named if all answer and all have begun.
func (e *engine) timeout(c *comm.Call, suspects []int) error {
	if !e.probes || c.Op.PointToPoint() {
		return comm.NewTimeoutError(c, e.rank, suspects)
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	answers := e.Probe(ctx)
	var behind []int
	for r := range e.members {
		if seq, answered := answers[r]; r != e.rank && (!answered || seq < c.Seq) {
			behind = append(behind, r)
		}
	}
	if err := e.Err(); err != nil { // another rank found out meanwhile
		return err
	}
	if behind != nil {
		suspects = behind
	}
	return comm.NewTimeoutError(c, e.rank, suspects)
}
