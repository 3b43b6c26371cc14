// SPDX-License-Identifier: Apache-2.0

// Package window is the engine for ranks that see each other's memory: goroutines of one process, or processes that map
// the same segments.
//
// A call has these steps. Each rank writes its signature and the address of its buffer where all ranks can read
// them, and waits at a barrier. All ranks compare the signatures. Each rank then reads what it needs from the
// buffers of the others; in a reduction it combines its share of the elements and writes the result into all
// buffers. After a second barrier the buffers belong to their ranks again. Buffers in shared memory are never
// copied. Other buffers go through a staging area in chunks; it has two halves, so one barrier per chunk is enough.
//
// It is NOT an engine by itself: a [Fabric] gives it the memory (comm/local, comm/shm).
package window

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/failure"
	"github.com/lockstep-ml/lockstep/comm/internal/tree"
)

// Waiting goes from looking to yielding to sleeping, since ranks often arrive together and cores may be fewer than
// ranks.
const (
	looks  = 200                   // loads in a row
	yields = 50                    // loads with a yield between them
	nap    = 20 * time.Millisecond // the longest sleep without a look at the deadline and the group's health
)

// Engine implements [comm.Engine] over a fabric, with [comm.Sharer] and [comm.Prober].
type Engine struct {
	Fabric
	*failure.State
	rank int
	size int

	calls    uint32 // begun; like what follows, of the goroutine of collective calls
	epoch    uint32 // barriers passed
	combiner tree.Combiner
	views    [][]byte
	inputs   [][]byte
	heads    [][]byte

	bridge  Bridge
	groups  int // that the bridge joins
	first   int // number of this group's rank 0 among the ranks of all
	seen    bool
	trial   Box // that nobody reads
	partial []byte

	sent, received []uint32 // pieces, by partner; each of one goroutine

	at atomic.Uint64 // number of the last collective call begun
}

// New returns the engine over f.
func New(f Fabric) *Engine {
	n := f.Size()
	e := &Engine{
		Fabric: f, State: failure.New(n), rank: f.Rank(), size: n, groups: 1,
		views: make([][]byte, n), inputs: make([][]byte, n), heads: make([][]byte, n),
		sent: make([]uint32, n), received: make([]uint32, n),
	}
	f.Bind(e)
	return e
}

// Split makes the engine of a sub-group.
func (e *Engine) Split(name string, members []int) (comm.Engine, error) {
	f, err := e.Fabric.Split(name, members)
	if err != nil {
		return nil, err
	}
	return New(f), nil
}

// Run carries one call out.
func (e *Engine) Run(c *comm.Call) error {
	if err := e.Err(); err != nil {
		return err
	}
	switch c.Op {
	case comm.Send:
		return e.send(c)
	case comm.Recv:
		return e.receive(c)
	}
	e.at.Store(c.Seq)
	return e.collective(c)
}

// At returns the number of the last collective call begun.
func (e *Engine) At() uint64 { return e.at.Load() }

// Fail is called by the fabric when another rank failed: whatever waits returns err. Only the first failure counts.
func (e *Engine) Fail(err error) {
	if e.Set(err) {
		e.Tell(err)
	}
}

// Abort makes calls return on this rank and tells the others.
func (e *Engine) Abort(err error) {
	if e.Set(err) {
		e.Fabric.Abort(err)
	}
}

// raise sets a counter of this rank and wakes those who wait for it.
func (e *Engine) raise(c *Counter, n uint32) {
	c.n.Store(n)
	if c.sleepers.Load() != 0 {
		c.sleepers.Store(0)
		e.Unpark(&c.n)
	}
}

// await waits until rank has raised the counter to want. missing lists, at the deadline, who is late.
func (e *Engine) await(counter *Counter, want uint32, rank int, c *comm.Call, missing func() []int) error {
	for i := 0; ; i++ {
		n := counter.n.Load()
		if int32(n-want) >= 0 {
			return nil
		}
		if i < looks {
			continue
		}
		if err := e.Obstacle(rank, c); err != nil {
			if counter.reached(want) { // it arrived first and left then
				return nil
			}
			return err
		}
		if i < looks+yields {
			runtime.Gosched()
			continue
		}
		left := time.Until(c.Deadline)
		if left <= 0 {
			return comm.NewTimeoutError(c, e.rank, missing())
		}
		counter.sleepers.Store(1)
		e.Park(&counter.n, n, min(left, nap))
	}
}

// barrier returns when all ranks have called it as often as this one.
func (e *Engine) barrier(c *comm.Call) error {
	e.epoch++
	e.raise(&e.Slot(e.rank).arrived, e.epoch)
	for r := range e.size {
		if r == e.rank {
			continue
		}
		if err := e.await(&e.Slot(r).arrived, e.epoch, r, c, e.late); err != nil {
			return err
		}
	}
	return nil
}

// late lists the ranks that have not come to this rank's barrier.
func (e *Engine) late() []int {
	var ranks []int
	for r := range e.size {
		if !e.Slot(r).arrived.reached(e.epoch) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}
