// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/nccl"
)

// NCCL is a library of collectives between the devices of this package in one process. Calls run on the streams they
// are queued on, at their pace, and wait there for the other ranks: for ever, if those do not come, as NCCL's kernels
// do. Sums are added from the last rank to the first, unlike ours.
type NCCL struct {
	mu     sync.Mutex
	ids    uint64
	hubs   map[nccl.ID]*hub
	faults map[int]error
	stuck  map[int]bool
	calls  int // that were queued, on all ranks
	live   int // communicators' parts that were not given back
}

// NewNCCL returns a library.
func NewNCCL() *NCCL {
	return &NCCL{hubs: map[nccl.ID]*hub{}, faults: map[int]error{}, stuck: map[int]bool{}}
}

// Fail makes work that a rank queues from now on end with an asynchronous error.
func (l *NCCL) Fail(rank int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults[rank] = err
}

// Stick makes work that a rank queues from now on wait until the communicator is aborted.
func (l *NCCL) Stick(rank int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stuck[rank] = true
}

// Calls is the number of calls that ranks have queued so far.
func (l *NCCL) Calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// Live is the number of ranks' communicators that were neither closed nor aborted.
func (l *NCCL) Live() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.live
}

// Version names the fake.
func (l *NCCL) Version() string { return "fake" }

// UniqueID makes a name.
func (l *NCCL) UniqueID() (id nccl.ID, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids++
	copy(id[:], "fake")
	binary.LittleEndian.PutUint64(id[8:], l.ids)
	return id, nil
}

// hub is what the ranks of a communicator share.
type hub struct {
	n       int
	mu      sync.Mutex
	changed sync.Cond
	ranks   []*comm // nil: has not come
	sent    map[message][]byte
	meets   map[int]*meet // by number of the collective call
}

// message is the number-th from one rank to another.
type message struct{ from, to, number int }

// meet is a collective call while the ranks come to it.
type meet struct {
	what string
	in   [][]byte
	left int // ranks that have not taken the result
}

// Init waits for all ranks.
func (l *NCCL) Init(dev cuda.Device, n, rank int, id nccl.ID, over func() error) (nccl.Comm, error) {
	h, ok := dev.(*handle)
	if !ok {
		return nil, errors.New("ncclCommInitRank: invalid argument (4): a device of another driver")
	}
	l.mu.Lock()
	if l.hubs[id] == nil {
		l.hubs[id] = &hub{n: n, ranks: make([]*comm, n), sent: map[message][]byte{}, meets: map[int]*meet{}}
		l.hubs[id].changed.L = &l.hubs[id].mu
	}
	hub := l.hubs[id]
	l.mu.Unlock()
	c := &comm{lib: l, hub: hub, dev: h.device, rank: rank, sends: make([]int, n), receives: make([]int, n)}
	hub.mu.Lock()
	defer hub.mu.Unlock()
	if rank < 0 || rank >= n || n != hub.n || hub.ranks[rank] != nil {
		return nil, fmt.Errorf("ncclCommInitRank: invalid argument (4): rank %d of %d", rank, n)
	}
	for _, other := range hub.ranks {
		if other != nil && other.dev == c.dev {
			return nil, errors.New("ncclCommInitRank: invalid usage (5): duplicate GPU detected")
		}
	}
	hub.ranks[rank] = c
	hub.changed.Broadcast()
	for slices.Contains(hub.ranks, nil) {
		if err := over(); err != nil {
			return nil, err
		}
		hub.rest()
	}
	l.mu.Lock()
	l.live++
	l.mu.Unlock()
	return c, nil
}

// rest gives other goroutines a turn, with mu held before and after.
func (h *hub) rest() {
	h.mu.Unlock()
	time.Sleep(100 * time.Microsecond)
	h.mu.Lock()
}

// comm is one rank's part.
type comm struct {
	lib  *NCCL
	hub  *hub
	dev  *device
	rank int

	using           sync.Mutex // by one goroutine at a time
	group           []queued
	grouping        bool
	sends, receives []int // by rank: numbers of the next messages
	collective      int   // number of the next

	// guarded by hub.mu
	aborted bool
	err     error
}

// queued is a call on a stream.
type queued struct {
	s     *stream
	out   cuda.Ptr // what it fills
	bytes int
	send  func() error                // deposits, and does not wait
	take  func() (ok bool, err error) // waits; false: it was aborted
}

// Group queues the calls of f as one.
func (c *comm) Group(f func() error) error {
	if !c.using.TryLock() {
		return errors.New("ncclGroupStart: invalid usage (5): two goroutines use the communicator")
	}
	defer c.using.Unlock()
	c.group, c.grouping = nil, true
	err := f()
	c.grouping = false
	if err != nil || len(c.group) == 0 {
		return err
	}
	return c.push(c.group)
}

// add queues a call, now or with its group.
func (c *comm) add(q queued) error {
	if c.grouping {
		c.group = append(c.group, q)
		return nil
	}
	if !c.using.TryLock() {
		return errors.New("invalid usage (5): two goroutines use the communicator")
	}
	defer c.using.Unlock()
	return c.push([]queued{q})
}

// push puts calls on their stream: all deposit first, then all wait.
func (c *comm) push(calls []queued) error {
	c.lib.mu.Lock()
	c.lib.calls += len(calls)
	fault, stuck := c.lib.faults[c.rank], c.lib.stuck[c.rank]
	c.lib.mu.Unlock()
	return calls[0].s.push(false, func() error {
		if fault != nil {
			c.fail(fault)
		}
		if stuck || fault != nil {
			return c.never(calls)
		}
		for _, q := range calls {
			if q.send != nil {
				if err := q.send(); err != nil {
					return err
				}
			}
		}
		for _, q := range calls {
			if q.take != nil {
				ok, err := q.take()
				if err == nil && !ok {
					err = c.garbage(q)
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// wait waits until done is true, which is asked under hub.mu, or the communicator is aborted: then it returns false.
func (c *comm) wait(done func() bool) bool {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	for !done() {
		if c.aborted {
			return false
		}
		c.hub.changed.Wait()
	}
	return true
}

// never waits until the communicator is aborted. What the calls were to fill is garbage then.
func (c *comm) never(calls []queued) error {
	c.wait(func() bool { return false })
	for _, q := range calls {
		if err := c.garbage(q); err != nil {
			return err
		}
	}
	return nil
}

func (c *comm) garbage(q queued) error {
	if q.bytes == 0 {
		return nil
	}
	return c.store("an aborted call", q.out, bytes.Repeat([]byte{0xFF}, q.bytes))
}

func (c *comm) fail(err error) {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.hub.changed.Broadcast()
}

// Send queues a message.
func (c *comm) Send(s cuda.Stream, p cuda.Ptr, count int, dt nccl.DataType, to int) error {
	if to < 0 || to >= c.hub.n || to == c.rank {
		return fmt.Errorf("ncclSend: invalid argument (4): to rank %d", to)
	}
	m := message{c.rank, to, c.sends[to]}
	c.sends[to]++
	return c.add(queued{s: s.(*stream), send: func() error {
		raw, err := c.load("ncclSend", p, count*dt.Size())
		if err != nil {
			return err
		}
		c.hub.mu.Lock()
		defer c.hub.mu.Unlock()
		c.hub.sent[m] = raw
		c.hub.changed.Broadcast()
		return nil
	}})
}

// Recv queues taking a message.
func (c *comm) Recv(s cuda.Stream, p cuda.Ptr, count int, dt nccl.DataType, from int) error {
	if from < 0 || from >= c.hub.n || from == c.rank {
		return fmt.Errorf("ncclRecv: invalid argument (4): from rank %d", from)
	}
	m := message{from, c.rank, c.receives[from]}
	c.receives[from]++
	return c.add(queued{s: s.(*stream), out: p, bytes: count * dt.Size(), take: func() (bool, error) {
		var raw []byte
		if !c.wait(func() (ok bool) {
			raw, ok = c.hub.sent[m]
			delete(c.hub.sent, m)
			return ok
		}) {
			return false, nil
		}
		if len(raw) != count*dt.Size() {
			c.fail(fmt.Errorf("ncclRecv: %d bytes from rank %d: want %d", len(raw), from, count*dt.Size()))
			return false, nil
		}
		return true, c.store("ncclRecv", p, raw)
	}})
}

// together queues a collective call: result makes what this rank stores of what all gave.
func (c *comm) together(s cuda.Stream, what string, out, in cuda.Ptr, given, filled int,
	result func(in [][]byte) []byte) error {
	number := c.collective
	c.collective++
	h := c.hub
	var m *meet
	return c.add(queued{s: s.(*stream), out: out, bytes: filled,
		send: func() error {
			raw, err := c.load(what, in, given)
			if err != nil {
				return err
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			if m = h.meets[number]; m == nil {
				m = &meet{what: what, in: make([][]byte, h.n), left: h.n}
				h.meets[number] = m
			}
			if m.what != what {
				if c.err == nil {
					c.err = fmt.Errorf("%s, where another rank calls %s", what, m.what)
				}
				return nil
			}
			m.in[c.rank] = raw
			h.changed.Broadcast()
			return nil
		},
		take: func() (bool, error) {
			if !c.wait(func() bool { return !slices.ContainsFunc(m.in, func(b []byte) bool { return b == nil }) }) {
				return false, nil
			}
			all := result(m.in)
			h.mu.Lock()
			if m.left--; m.left == 0 {
				delete(h.meets, number)
			}
			h.mu.Unlock()
			return true, c.store(what, out, all)
		}})
}

// AllReduce combines from the last rank to the first.
func (c *comm) AllReduce(s cuda.Stream, out, in cuda.Ptr, count int, dt nccl.DataType, op nccl.RedOp) error {
	return c.together(s, fmt.Sprintf("ncclAllReduce(%d of %d, %d)", count, dt, op), out, in, count*dt.Size(),
		count*dt.Size(), func(in [][]byte) []byte { return combine(in, dt, op) })
}

// ReduceScatter is AllReduce of which each rank keeps a part.
func (c *comm) ReduceScatter(s cuda.Stream, out, in cuda.Ptr, count int, dt nccl.DataType, op nccl.RedOp) error {
	n := count * dt.Size()
	return c.together(s, fmt.Sprintf("ncclReduceScatter(%d of %d, %d)", count, dt, op), out, in, n*c.hub.n, n,
		func(in [][]byte) []byte { return combine(in, dt, op)[c.rank*n : (c.rank+1)*n] })
}

// AllGather puts what all gave side by side.
func (c *comm) AllGather(s cuda.Stream, out, in cuda.Ptr, count int, dt nccl.DataType) error {
	n := count * dt.Size()
	return c.together(s, fmt.Sprintf("ncclAllGather(%d of %d)", count, dt), out, in, n, n*c.hub.n,
		func(in [][]byte) []byte { return slices.Concat(in...) })
}

// Broadcast copies the root's.
func (c *comm) Broadcast(s cuda.Stream, p cuda.Ptr, count int, dt nccl.DataType, root int) error {
	given := 0
	if c.rank == root {
		given = count * dt.Size()
	}
	return c.together(s, fmt.Sprintf("ncclBroadcast(%d of %d, %d)", count, dt, root), p, p, given,
		count*dt.Size(), func(in [][]byte) []byte { return in[root] })
}

// load reads memory of the device that a kernel has written.
func (c *comm) load(call string, p cuda.Ptr, n int) ([]byte, error) {
	raw := make([]byte, n)
	if n == 0 {
		return raw, nil
	}
	if ok, err := c.dev.mem.Defined(uint64(p), n); err != nil || !ok {
		return nil, failed(call, illegalAddress, "%d bytes at %#x are undefined, or none of the device's", n, p)
	}
	if err := c.dev.mem.Read(raw, uint64(p)); err != nil {
		return nil, failed(call, illegalAddress, "%v", err)
	}
	return raw, nil
}

func (c *comm) store(call string, p cuda.Ptr, raw []byte) error {
	if err := c.dev.mem.Write(uint64(p), raw); err != nil {
		return failed(call, illegalAddress, "%v", err)
	}
	return nil
}

// AsyncError is the first error of queued work.
func (c *comm) AsyncError() error {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	return c.err
}

// Abort lets queued work end.
func (c *comm) Abort() error { return c.end() }

// Close gives the part back.
func (c *comm) Close() error { return c.end() }

func (c *comm) end() error {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	if c.aborted {
		return errors.New("ncclCommDestroy: invalid argument (4): given back twice")
	}
	c.aborted = true
	c.hub.changed.Broadcast()
	c.lib.mu.Lock()
	defer c.lib.mu.Unlock()
	c.lib.live--
	return nil
}

// combine combines from the last to the first.
func combine(in [][]byte, dt nccl.DataType, op nccl.RedOp) []byte {
	out := slices.Clone(in[len(in)-1])
	for i := len(in) - 2; i >= 0; i-- {
		for at := 0; at < len(out); at += dt.Size() {
			combineElement(out[at:], in[i][at:], dt, op)
		}
	}
	return out
}

func combineElement(a, b []byte, dt nccl.DataType, op nccl.RedOp) {
	le := binary.LittleEndian
	switch dt {
	case nccl.Float32:
		x, y := math.Float32frombits(le.Uint32(a)), math.Float32frombits(le.Uint32(b))
		le.PutUint32(a, math.Float32bits(number(x, y, op)))
	case nccl.Float64:
		x, y := math.Float64frombits(le.Uint64(a)), math.Float64frombits(le.Uint64(b))
		le.PutUint64(a, math.Float64bits(number(x, y, op)))
	case nccl.BFloat16:
		x, y := dtype.BF16(le.Uint16(a)).Float32(), dtype.BF16(le.Uint16(b)).Float32()
		le.PutUint16(a, uint16(dtype.ToBF16(number(x, y, op))))
	case nccl.Float16:
		x, y := dtype.F16(le.Uint16(a)).Float32(), dtype.F16(le.Uint16(b)).Float32()
		le.PutUint16(a, uint16(dtype.ToF16(number(x, y, op))))
	case nccl.Int32:
		le.PutUint32(a, uint32(number(int32(le.Uint32(a)), int32(le.Uint32(b)), op)))
	case nccl.Int64:
		le.PutUint64(a, uint64(number(int64(le.Uint64(a)), int64(le.Uint64(b)), op)))
	case nccl.Int8:
		a[0] = byte(number(int8(a[0]), int8(b[0]), op))
	case nccl.Uint8:
		a[0] = number(a[0], b[0], op)
	}
}

func number[T float32 | float64 | int32 | int64 | int8 | uint8](x, y T, op nccl.RedOp) T {
	switch op {
	case nccl.Sum:
		return x + y
	case nccl.Prod:
		return x * y
	case nccl.Min:
		return min(x, y)
	}
	return max(x, y)
}
