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
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// Engine implements [comm.Engine] over connections.
type Engine struct {
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

	hierarchy *hierarchical // nil: all bytes go through connections

	failure atomic.Pointer[error]
	gone    []atomic.Pointer[comm.RankLostError]
	at      atomic.Uint64 // number of the last collective call begun
	probes  bool          // at a deadline the others are asked how far they are
	changed chan struct{} // holds one when failure or gone has changed

	mu       sync.Mutex // guards what follows, and the setting of hierarchy
	onFail   func(error)
	notified bool
}

// peer is the way to one other rank.
type peer struct {
	data     net.Conn // collective calls
	out      *writer
	messages net.Conn
}

// newEngine connects the members, and within hosts maps shared memory where the placement allows; all of them call it.
func newEngine(job *rendezvous.Job, over Transport, group string, members []int) (*Engine, error) {
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
func newFlat(job *rendezvous.Job, over Transport, group string, members []int) (*Engine, error) {
	n := len(members)
	e := &Engine{
		job: job, over: over, group: over.Name + "/" + group, members: members, rank: slices.Index(members, job.Rank),
		peers:  make([]*peer, n),
		runner: algorithms.Runner{ChunkBytes: over.ChunkBytes},
		heads:  make([][]byte, n), signatures: make([][]byte, n),
		head: make([]byte, headBytes),
		gone: make([]atomic.Pointer[comm.RankLostError], n), changed: make(chan struct{}, 1),
	}
	for r := range e.heads {
		e.heads[r] = make([]byte, headBytes)
		e.signatures[r] = e.heads[r][:comm.SignatureBytes]
	}
	job.Hold()
	if err := e.connect(); err != nil {
		return nil, errors.Join(err, e.release())
	}
	job.Register(e.group, members, rendezvous.Listener{Fail: e.fail, Gone: e.left, At: e.at.Load})
	return e, nil
}

func (e *Engine) connect() error {
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
func (e *Engine) Rank() int { return e.rank }

// Size returns the number of ranks.
func (e *Engine) Size() int { return len(e.members) }

// Describe says between how many hosts the connections run.
func (e *Engine) Describe() comm.Info {
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
func (e *Engine) Alloc(n int) (*comm.Memory, error) {
	if e.hierarchy != nil {
		return e.hierarchy.local.Alloc(n)
	}
	return comm.NewMemory(comm.Aligned(n), nil), nil
}

// Split connects a sub-group.
func (e *Engine) Split(name string, members []int) (comm.Engine, error) {
	inJob := make([]int, len(members))
	for i, r := range members {
		inJob[i] = e.members[r]
	}
	sub, err := newEngine(e.job, e.over, name, inJob)
	if err != nil {
		return nil, err
	}
	return sub, nil
}

// OnFailure registers the function that is told of the failure of another rank.
func (e *Engine) OnFailure(failed func(error)) {
	e.mu.Lock()
	e.onFail = failed
	err := e.failure.Load()
	tell := err != nil && !e.notified
	e.notified = e.notified || tell
	e.mu.Unlock()
	if tell {
		failed(*err)
	}
}

// fail is told by the job that another rank failed.
func (e *Engine) fail(err error) {
	if !e.die(err) {
		return
	}
	e.mu.Lock()
	failed := e.onFail
	e.notified = failed != nil
	e.mu.Unlock()
	if failed != nil {
		failed(err)
	}
}

// left is told by the job that a rank has closed the group.
func (e *Engine) left(rank int, why *comm.RankLostError) {
	e.gone[rank].Store(why)
	e.signal()
}

// die makes running and later calls return; false if the engine was dead.
func (e *Engine) die(err error) bool {
	if !e.failure.CompareAndSwap(nil, &err) {
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

func (e *Engine) signal() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// limit sets the deadline of all connections.
func (e *Engine) limit(deadline time.Time) {
	for _, p := range e.peers {
		if p != nil {
			_ = p.data.SetDeadline(deadline) // a closed connection needs none
			_ = p.messages.SetDeadline(deadline)
		}
	}
}

// Abort makes calls return on this rank and tells the others.
func (e *Engine) Abort(err error) {
	if e.die(err) {
		e.job.Abort(e.group, e.rank, err)
	}
}

// Close tells the others and closes the connections.
func (e *Engine) Close() error {
	e.job.Unregister(e.group)
	var err error
	if e.hierarchy != nil {
		err = e.hierarchy.close()
	}
	return errors.Join(err, e.release())
}

func (e *Engine) release() error {
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
func (e *Engine) Run(c *comm.Call) error {
	switch {
	case c.Op == comm.Send:
		return e.send(c)
	case c.Op == comm.Recv:
		return e.receive(c)
	}
	e.at.Store(c.Seq)
	for _, p := range e.peers {
		if p != nil {
			_ = p.data.SetDeadline(c.Deadline) // an error shows in the next read or write
		}
	}
	if err := e.failure.Load(); err != nil {
		return *err
	}
	return e.collective(c)
}

// patience is how long a broken connection waits for the notice that says why.
const patience = time.Second

// explain finds out why a read from or a write to rank failed.
func (e *Engine) explain(c *comm.Call, rank int, cause error, missing []int) error {
	timedOut := errors.Is(cause, os.ErrDeadlineExceeded)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		lost := e.gone[rank].Load() // before the failure: a rank that fails tells of it before it leaves
		if err := e.failure.Load(); err != nil {
			return *err
		}
		if lost != nil {
			named := *lost
			named.Group, named.Call = c.Group, c.String()
			return &named
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
			p := e.job.Peers[e.members[rank]]
			return &comm.RankLostError{Group: c.Group, Rank: e.members[rank], GroupRank: rank, Host: p.Host, PID: p.PID,
				Cause: cause.Error(), Call: c.String()}
		}
	}
}

// Probe implements [comm.Prober].
func (e *Engine) Probe(ctx context.Context) map[int]uint64 {
	return e.job.Probe(ctx, e.group, e.members)
}

// Process implements [comm.Prober].
func (e *Engine) Process(rank int) (host string, pid int) {
	p := e.job.Peers[e.members[rank]]
	return p.Host, p.PID
}

// grace is how long a rank may take to say how far it is.
const grace = 300 * time.Millisecond

// timeout returns the error of a call that passed its deadline. The rank that this one waits for may itself wait for
// another, so all are asked: who does not answer stands still, and who has not begun the call is late. suspects are
// named if all answer and all have begun.
func (e *Engine) timeout(c *comm.Call, suspects []int) error {
	if !e.probes || c.Op.PointToPoint() {
		return comm.NewTimeoutError(c, e.rank, suspects)
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	answers := e.Probe(ctx)
	var silent, late []int
	for r := range e.members {
		seq, answered := answers[r]
		switch {
		case r == e.rank:
		case !answered:
			silent = append(silent, r)
		case seq < c.Seq:
			late = append(late, r)
		}
	}
	if err := e.failure.Load(); err != nil { // another rank found out meanwhile
		return *err
	}
	if silent == nil && late == nil {
		return comm.NewTimeoutError(c, e.rank, suspects)
	}
	missing := append(silent, late...)
	slices.Sort(missing)
	return comm.NewTimeoutError(c, e.rank, missing)
}
