// SPDX-License-Identifier: Apache-2.0

package window

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/comm"
)

const (
	line = 64 // bytes; shares of a buffer end at its multiples, so that ranks do not write to one cache line
	// bytes combined before they are copied to the other ranks' buffers: they are still in the nearest cache
	stretch = 16 << 10
)

// collective carries out a call of all ranks.
func (e *Engine) collective(c *comm.Call) error {
	e.calls++
	half := int(e.calls & 1)
	own := e.Slot(e.rank)
	c.Encode(own.heads[half][:])
	own.boxes[half] = Box{}
	visible := !e.gives(c, e.rank) || e.Publish(&own.boxes[half], c.In)
	if err := e.barrier(c); err != nil {
		return err
	}
	for r := range e.heads {
		e.heads[r] = e.Slot(r).heads[half][:comm.SignatureBytes]
	}
	if err := comm.Compare(c, e.heads); err != nil {
		return err
	}
	if c.Op == comm.Barrier || c.Count == 0 {
		return nil
	}
	t, err := e.transfer(c, half, visible)
	if err != nil {
		return err
	}
	return t.run()
}

// gives reports whether the others need to see rank's buffer.
func (e *Engine) gives(c *comm.Call, rank int) bool {
	switch c.Op {
	case comm.Broadcast, comm.Scatter:
		return e.isRoot(c, rank) || e.bridged(c) // they write there what came over the bridge
	case comm.Barrier:
		return false
	}
	return true
}

func (e *Engine) isRoot(c *comm.Call, rank int) bool { return e.first+rank == c.Root }

// transfer is one call whose signatures have been compared.
type transfer struct {
	e       *Engine
	c       *comm.Call
	size    int  // bytes of one element
	blocks  int  // of the input
	visible bool // the others read c.In itself
	chunk   int  // elements of a block that go at a time
	staging bool // some rank's buffer goes through its stage
}

// transfer looks up where the ranks' buffers lie.
func (e *Engine) transfer(c *comm.Call, half int, visible bool) (*transfer, error) {
	t := &transfer{e: e, c: c, size: c.DType.Size(), blocks: 1, visible: visible, chunk: c.Count}
	if c.Op == comm.ReduceScatter || c.Op == comm.Scatter || c.Op == comm.AllToAll {
		t.blocks = e.size
	}
	if c.Op == comm.ReduceScatter {
		t.blocks *= e.groups
	}
	for r := range e.size {
		e.views[r] = nil
		if !e.gives(c, r) {
			continue
		}
		box := &e.Slot(r).boxes[half]
		if r == e.rank && visible {
			e.views[r] = c.In
			continue
		}
		if box.Segment == 0 {
			t.staging = true
			continue
		}
		view, err := e.View(r, box, t.blocks*c.Count*t.size)
		if err != nil {
			return nil, fmt.Errorf("comm: %v: rank %d: %w", c.Signature, c.JobRank(r), err)
		}
		e.views[r] = view
	}
	if t.staging || e.bridged(c) { // a bridge needs the same chunks on both sides, wherever the buffers lie
		half := len(e.Stage(e.rank)) / 2
		if e.bridged(c) && e.seen {
			half = bridgeBytes
		}
		t.chunk = half / (t.blocks * t.size) &^ (line - 1)
		if t.chunk == 0 {
			return nil, fmt.Errorf("comm: %v: a stage of %d bytes is too small for %d ranks", c.Signature, half,
				e.size*e.groups)
		}
	}
	return t, nil
}

// run moves the data, chunk by chunk if it must.
func (t *transfer) run() error {
	if t.staging {
		t.copyIn(0, 0)
		if err := t.e.barrier(t.c); err != nil {
			return err
		}
	}
	for lo, k := 0, 0; lo < t.c.Count; lo, k = lo+t.chunk, k+1 {
		hi := min(lo+t.chunk, t.c.Count)
		if err := t.take(lo, hi, k&1); err != nil {
			return err
		}
		if t.staging && hi < t.c.Count {
			t.copyIn(hi, (k+1)&1)
		}
		if err := t.e.barrier(t.c); err != nil {
			return err
		}
		t.copyOut(lo, hi, k&1)
	}
	return nil
}

// part returns elements [lo, hi) of a block of rank's input, as the others see them.
func (t *transfer) part(rank, block, lo, hi, half int) []byte {
	if view := t.e.views[rank]; view != nil {
		return view[(block*t.c.Count+lo)*t.size : (block*t.c.Count+hi)*t.size]
	}
	stage := t.e.Stage(rank)
	stage = stage[half*len(stage)/2:]
	return stage[block*(hi-lo)*t.size : (block+1)*(hi-lo)*t.size]
}

// copyIn puts the chunk that begins at lo into this rank's stage, if the others cannot see the buffer.
func (t *transfer) copyIn(lo, half int) {
	if t.visible || !t.e.gives(t.c, t.e.rank) || t.c.Op == comm.Broadcast && !t.e.isRoot(t.c, t.e.rank) {
		return
	}
	hi := min(lo+t.chunk, t.c.Count)
	for b := range t.blocks {
		copy(t.part(t.e.rank, b, lo, hi, half), t.c.In[(b*t.c.Count+lo)*t.size:(b*t.c.Count+hi)*t.size])
	}
}

// copyOut fetches a result that was written into this rank's stage.
func (t *transfer) copyOut(lo, hi, half int) {
	if !t.visible && t.written() {
		copy(t.c.Out[lo*t.size:hi*t.size], t.part(t.e.rank, 0, lo, hi, half))
	}
}

// written reports whether all ranks write the result into this one's buffer.
func (t *transfer) written() bool {
	switch t.c.Op {
	case comm.AllReduce:
		return true
	case comm.Reduce:
		return t.e.isRoot(t.c, t.e.rank)
	case comm.Broadcast:
		return t.e.bridged(t.c) && !t.e.isRoot(t.c, t.e.rank)
	}
	return false
}

// take does this rank's part of a chunk.
func (t *transfer) take(lo, hi, half int) error {
	c, me := t.c, t.e.rank
	out := func(block int) []byte { return c.Out[(block*c.Count+lo)*t.size : (block*c.Count+hi)*t.size] }
	switch {
	case !t.e.bridged(c):
	case c.Op == comm.ReduceScatter:
		return t.bridgeBlocks(out(0), lo, hi, half)
	default:
		return t.bridgeShare(lo, hi, half)
	}
	switch c.Op {
	case comm.AllReduce, comm.Reduce:
		t.reduceShare(lo, hi, half)
	case comm.ReduceScatter:
		for r := range t.e.inputs {
			t.e.inputs[r] = t.part(r, me, lo, hi, half)
		}
		t.e.combiner.Combine(out(0), t.e.inputs, c.DType, c.Reduce, c.Fast)
	case comm.Broadcast, comm.Scatter:
		if c.Op == comm.Scatter {
			copy(out(0), t.part(c.Root, me, lo, hi, half))
		} else if me != c.Root {
			copy(out(0), t.part(c.Root, 0, lo, hi, half))
		}
	case comm.AllGather, comm.Gather:
		if c.Op == comm.Gather && me != c.Root {
			return nil
		}
		for r := range t.e.size {
			from := t.part(r, 0, lo, hi, half)
			if r == me {
				from = c.In[lo*t.size : hi*t.size]
			}
			if &out(r)[0] != &from[0] { // in place, others read it now
				copy(out(r), from)
			}
		}
	case comm.AllToAll:
		for r := range t.e.size {
			copy(out(r), t.part(r, me, lo, hi, half))
		}
	}
	return nil
}

// reduceShare combines this rank's share of a chunk and writes it where it belongs: into all buffers, or the root's.
func (t *transfer) reduceShare(lo, hi, half int) {
	e := t.e
	from, to := Share(hi-lo, e.size, e.rank, line)
	step := stretch / t.size
	for at := from; at < to; at += step {
		end := min(at+step, to)
		for r := range e.inputs {
			e.inputs[r] = t.part(r, 0, lo, hi, half)[at*t.size : end*t.size]
		}
		if t.c.Op == comm.Reduce {
			e.combiner.Combine(e.inputs[t.c.Root], e.inputs, t.c.DType, t.c.Reduce, t.c.Fast)
			continue
		}
		e.combiner.Combine(e.inputs[e.rank], e.inputs, t.c.DType, t.c.Reduce, t.c.Fast)
		e.spread()
	}
}

// Share returns the k-th of n parts of count elements, cut at multiples of unit.
func Share(count, n, k, unit int) (lo, hi int) {
	units := (count + unit - 1) / unit
	return min(units*k/n*unit, count), min(units*(k+1)/n*unit, count)
}
