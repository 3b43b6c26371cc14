// SPDX-License-Identifier: Apache-2.0

package window

import (
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/tree"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Bridge carries out this rank's part of a call with the ranks of the same number in the other groups; in has dtype d.
// For an all-reduce in is its share of the combined buffer, not rounded yet, and out where the result goes, in the
// call's dtype; for a broadcast they are its share of the root's buffer, the same memory; for a reduce-scatter in is
// one block for each group and out this group's place in it.
type Bridge func(c *comm.Call, in, out []byte, d dtype.DType) error

// SetBridge makes every all-reduce, reduce-scatter and broadcast one over several groups of equal size, of which this
// is the given one; their roots and blocks are numbered over all groups. It comes before the first call.
func (e *Engine) SetBridge(b Bridge, group, groups int) {
	e.bridge, e.groups, e.first = b, groups, group*e.size
}

// bridgeBytes is the size of a chunk that crosses a bridge, of all ranks of a group together, where no buffer goes
// through a stage.
const bridgeBytes = 8 << 20

// Shows reports whether the ranks of this group will see this rank's buffer where it lies.
func (e *Engine) Shows(c *comm.Call) bool {
	return !e.gives(c, e.rank) || e.Publish(&e.trial, c.In)
}

// SetSeen says of the next call whether Shows is true on all ranks of all groups. They must agree on it, since it
// decides how large the chunks are that cross the bridge.
func (e *Engine) SetSeen(all bool) { e.seen = all }

// bridged reports whether a call is one over several groups.
func (e *Engine) bridged(c *comm.Call) bool {
	return e.bridge != nil && (c.Op == comm.AllReduce || c.Op == comm.ReduceScatter || c.Op == comm.Broadcast)
}

// room returns memory for n bytes of partial results.
func (e *Engine) room(n int) []byte {
	if len(e.partial) < n {
		e.partial = comm.Aligned(n)
	}
	return e.partial[:n]
}

// bridgeShare takes this rank's share of a chunk, combined or the root's, over the bridge and writes it into all
// buffers. What is still to be added crosses as it is, and the sums as they will be, rounded.
func (t *transfer) bridgeShare(lo, hi, half int) error {
	e, c := t.e, t.c
	from, to := Share(hi-lo, e.size, e.rank, line)
	if from == to {
		return nil // on this side as on the others
	}
	for r := range e.inputs {
		e.inputs[r] = t.part(r, 0, lo, hi, half)[from*t.size : to*t.size]
	}
	if c.Op == comm.Broadcast {
		return t.bridgeBroadcast((to - from) * t.size)
	}
	acc := tree.Accumulator(c.DType)
	partial := e.room((to - from) * acc.Size())
	e.combiner.Partial(partial, e.inputs, c.DType, c.Reduce, c.Fast)
	own := e.inputs[e.rank]
	if err := e.bridge(c, partial, own, acc); err != nil {
		return err
	}
	e.spread()
	return nil
}

// spread copies what this rank has made of the inputs over those of the others.
func (e *Engine) spread() {
	for r, in := range e.inputs {
		if r != e.rank {
			copy(in, e.inputs[e.rank])
		}
	}
}

// bridgeBroadcast is bridgeShare for n bytes that need no combining: the root's, where it is in this group.
func (t *transfer) bridgeBroadcast(n int) error {
	e, c := t.e, t.c
	share := e.room(n)
	for r, in := range e.inputs {
		if e.isRoot(c, r) {
			share = in
		}
	}
	if err := e.bridge(c, share, share, c.DType); err != nil {
		return err
	}
	for r, in := range e.inputs {
		if !e.isRoot(c, r) {
			copy(in, share)
		}
	}
	return nil
}

// bridgeBlocks combines, for each group, the block of the rank there that has this one's number, and takes them over
// the bridge.
func (t *transfer) bridgeBlocks(out []byte, lo, hi, half int) error {
	e, c := t.e, t.c
	acc := tree.Accumulator(c.DType)
	n := (hi - lo) * acc.Size()
	partial := e.room(e.groups * n)
	for g := range e.groups {
		for r := range e.inputs {
			e.inputs[r] = t.part(r, g*e.size+e.rank, lo, hi, half)
		}
		e.combiner.Partial(partial[g*n:(g+1)*n], e.inputs, c.DType, c.Reduce, c.Fast)
	}
	own := partial[e.first/e.size*n:][:n]
	if err := e.bridge(c, partial, own, acc); err != nil {
		return err
	}
	tree.Finish(out, own, c.DType)
	return nil
}
