// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// AllReduce combines the buffers of all ranks, element by element, and leaves the result in all of them.
func (g *Group) AllReduce(b Buffer, op ReduceOp, options ...CallOption) *Handle {
	return g.issue(Call{Signature: Signature{Op: AllReduce, Reduce: op}}, b, b, options)
}

// ReduceScatter combines the in buffers of all ranks and leaves the k-th of Size equal parts of the result in rank k's
// out. in has Size times out's elements; out may be this rank's part of in.
func (g *Group) ReduceScatter(out, in Buffer, op ReduceOp, options ...CallOption) *Handle {
	return g.issue(Call{Signature: Signature{Op: ReduceScatter, Reduce: op}}, in, out, options)
}

// AllGather puts the in buffers of all ranks one after another, in rank order, into every rank's out, which has Size
// times in's elements; in may be this rank's part of out.
func (g *Group) AllGather(out, in Buffer, options ...CallOption) *Handle {
	return g.issue(Call{Signature: Signature{Op: AllGather}}, in, out, options)
}

// Broadcast copies the root's buffer into those of all ranks.
func (g *Group) Broadcast(b Buffer, root int, options ...CallOption) *Handle {
	return g.issue(Call{Signature: Signature{Op: Broadcast, Root: root}}, b, b, options)
}

// Reduce combines the buffers of all ranks and leaves the result in the root's. The other ranks' buffers keep what they
// held.
func (g *Group) Reduce(b Buffer, op ReduceOp, root int, options ...CallOption) *Handle {
	return g.issue(Call{Signature: Signature{Op: Reduce, Reduce: op, Root: root}}, b, b, options)
}

// Gather puts the in buffers of all ranks one after another, in rank order, into the root's out, which has Size times
// in's elements. The other ranks' out is not looked at.
func (g *Group) Gather(out, in Buffer, root int, options ...CallOption) *Handle {
	if g.Rank() != root {
		out = Buffer{dtype: in.dtype}
	}
	return g.issue(Call{Signature: Signature{Op: Gather, Root: root}}, in, out, options)
}

// Scatter puts the k-th of Size equal parts of the root's in into rank k's out. The other ranks' in is not looked at.
func (g *Group) Scatter(out, in Buffer, root int, options ...CallOption) *Handle {
	if g.Rank() != root {
		in = Buffer{dtype: out.dtype}
	}
	return g.issue(Call{Signature: Signature{Op: Scatter, Root: root}}, in, out, options)
}

// AllToAll sends the k-th of Size equal parts of in to rank k, and puts what the ranks sent, in rank order, into out.
// The buffers have equal lengths and must not overlap.
func (g *Group) AllToAll(out, in Buffer, options ...CallOption) *Handle {
	return g.issue(Call{Signature: Signature{Op: AllToAll}}, in, out, options)
}

// Barrier ends when all ranks have called it.
func (g *Group) Barrier(options ...CallOption) *Handle {
	none := Buffer{dtype: dtype.Uint8}
	return g.issue(Call{Signature: Signature{Op: Barrier}}, none, none, options)
}

// Send sends the buffer to one rank, which must Recv as many elements of the same dtype. It may end before or after the
// receiver has begun. Messages between two ranks arrive in the order in which they were sent, concurrently with
// collective calls and other messages, so that no pattern of messages can deadlock.
func (g *Group) Send(b Buffer, to int, options ...CallOption) *Handle {
	return g.issue(Call{Signature: Signature{Op: Send, Root: to}}, b, Buffer{dtype: b.dtype}, options)
}

// Recv receives what the given rank sends next.
func (g *Group) Recv(b Buffer, from int, options ...CallOption) *Handle {
	return g.issue(Call{Signature: Signature{Op: Recv, Root: from}}, Buffer{dtype: b.dtype}, b, options)
}

// issue checks a call and submits it. A call that cannot be made kills the group, since the other ranks wait for it.
func (g *Group) issue(c Call, in, out Buffer, options []CallOption) *Handle {
	c.In, c.Out, c.DType = in.data, out.data, in.dtype
	c.from, c.to = in.memory, out.memory
	if err := g.check(&c, in, out); err != nil {
		for _, o := range options {
			c.apply(o)
		}
		if c.Label != "" {
			err = fmt.Errorf("%q: %w", c.Label, err)
		}
		h := &Handle{done: make(chan struct{}), call: c}
		h.finish(g.reject(fmt.Errorf("comm: %v: %w", c.Op, err)))
		return h
	}
	return g.submit(c, options)
}

// check validates a call's arguments and sets its count.
func (g *Group) check(c *Call, in, out Buffer) error {
	if err := in.check(); err != nil {
		return fmt.Errorf("input: %w", err)
	}
	if err := out.check(); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	if in.dtype != out.dtype {
		return fmt.Errorf("input of %v, output of %v: want one dtype", in.dtype, out.dtype)
	}
	if c.Op.Reduces() {
		if c.Reduce >= numReduceOps || in.dtype == dtype.Bool && c.Reduce != Min && c.Reduce != Max {
			return fmt.Errorf("%v of %v is not defined", c.Reduce, in.dtype)
		}
	}
	if c.Op.Rooted() && (c.Root < 0 || c.Root >= g.Size()) {
		return fmt.Errorf("root %d: want a rank in [0, %d)", c.Root, g.Size())
	}
	if c.Op.PointToPoint() && (c.Root < 0 || c.Root >= g.Size() || c.Root == g.Rank()) {
		return fmt.Errorf("partner %d: want a rank other than %d in [0, %d)", c.Root, g.Rank(), g.Size())
	}
	if c.Op == AllToAll && in.overlaps(out) {
		return fmt.Errorf("input and output overlap")
	}
	return g.count(c, in, out)
}

// count sets the number of elements of one block and checks that the buffers agree on it.
func (g *Group) count(c *Call, in, out Buffer) error {
	inBlocks, outBlocks := 1, 1
	if c.Op == ReduceScatter || c.Op == Scatter || c.Op == AllToAll {
		inBlocks = g.Size()
	}
	if c.Op == AllGather || c.Op == Gather || c.Op == AllToAll {
		outBlocks = g.Size()
	}
	nin, nout := in.Len(), out.Len()
	takes := c.Op != Recv && (c.Op != Scatter || c.Root == g.Rank())
	gives := c.Op != Send && (c.Op != Gather || c.Root == g.Rank())
	switch {
	case takes && nin%inBlocks != 0:
		return fmt.Errorf("input of %d elements: want a multiple of %d, the number of ranks", nin, inBlocks)
	case takes && gives && nin*outBlocks != nout*inBlocks:
		return fmt.Errorf("input of %d elements and output of %d on %d ranks: want one block of equal length for "+
			"each rank", nin, nout, g.Size())
	case takes:
		c.Count = nin / inBlocks
	default:
		c.Count = nout / outBlocks
	}
	return nil
}
