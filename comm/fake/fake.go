// SPDX-License-Identifier: Apache-2.0

// Package fake is an engine that moves nothing: every call ends immediately and leaves its buffers unchanged, but the
// engine records counts, bytes and times. Use it to plan: one process plays any rank of a group of any size, to count
// the traffic of a strategy or to measure a step without communication. Start with [New].
//
// The results of its calls are wrong by design, unless all ranks would hold the same zeros.
package fake

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
)

// Totals is what has been asked of an engine, for one kind of call.
type Totals struct {
	Calls int
	Bytes int64 // that this rank would send, see [comm.Call.Sent]
	// Last is when the last call ran.
	Last time.Time
}

// Engine implements [comm.Engine]. Its sub-groups count into it as well.
type Engine struct {
	// Mirror makes AllGather give every rank's part what this rank gives, as if all had the same. Ranks that compare
	// settings or agree on something before they compute then continue. Set it before the first call.
	Mirror bool

	rank, size int
	totals     *totals
}

type totals struct {
	mu   sync.Mutex
	byOp map[comm.Op]Totals
}

// New returns the group of rank among size ranks and its engine. It panics if rank is not in [0, size).
func New(rank, size int, opts comm.Options) (*comm.Group, *Engine) {
	if rank < 0 || rank >= size {
		panic(fmt.Sprintf("fake: rank %d of %d: want a rank in [0, size)", rank, size))
	}
	e := &Engine{rank: rank, size: size, totals: &totals{byOp: map[comm.Op]Totals{}}}
	return comm.New(e, opts), e
}

// Totals returns what has been asked so far, by kind of call.
func (e *Engine) Totals() map[comm.Op]Totals {
	e.totals.mu.Lock()
	defer e.totals.mu.Unlock()
	return maps.Clone(e.totals.byOp)
}

// Run counts a call.
func (e *Engine) Run(c *comm.Call) error {
	e.totals.mu.Lock()
	defer e.totals.mu.Unlock()
	t := e.totals.byOp[c.Op]
	t.Calls++
	t.Bytes += c.Sent(e.rank, e.size)
	t.Last = time.Now()
	e.totals.byOp[c.Op] = t
	if e.Mirror && c.Op == comm.AllGather {
		for at := 0; at < len(c.Out) && len(c.In) > 0; at += len(c.In) {
			copy(c.Out[at:], c.In)
		}
	}
	return nil
}

// CountsOnly tells the group that tensors which do not lie in host memory need not be copied there.
func (e *Engine) CountsOnly() {}

// Rank returns the rank that is played.
func (e *Engine) Rank() int { return e.rank }

// Size returns the number of ranks that are pretended.
func (e *Engine) Size() int { return e.size }

// Describe says that nothing is moved.
func (e *Engine) Describe() comm.Info {
	return comm.Info{Name: "fake", Path: fmt.Sprintf("counts only: rank %d of %d", e.rank, e.size)}
}

// Alloc returns ordinary memory.
func (e *Engine) Alloc(n int) (*comm.Memory, error) { return comm.NewMemory(comm.Aligned(n), nil), nil }

// Split pretends a sub-group.
func (e *Engine) Split(_ string, members []int) (comm.Engine, error) {
	return &Engine{Mirror: e.Mirror, rank: slices.Index(members, e.rank), size: len(members), totals: e.totals}, nil
}

// OnFailure does nothing: no other rank can fail.
func (e *Engine) OnFailure(func(error)) {}

// Abort does nothing: there is nobody to tell.
func (e *Engine) Abort(error) {}

// Close does nothing.
func (e *Engine) Close() error { return nil }
