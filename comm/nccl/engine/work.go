// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/backend"
	backendcuda "github.com/lockstep-ml/lockstep/internal/backend/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/nccl"
)

// work is one call while it is queued.
type work struct {
	e       *Engine
	c       *comm.Call
	ranks   nccl.Comm // refuses calls, or does anything, once it was given up
	n, rank int
	in, out span
	scraps  []backend.Buffer
}

// release gives scratch memory back, to work that the stream does later.
func (w *work) release() {
	for _, b := range w.scraps {
		w.e.be.Free(b)
	}
}

// scratch is memory for count elements.
func (w *work) scratch(count int, dt dtype.DType) (span, error) {
	b, err := w.e.stream.Alloc(count * dt.Size())
	if err != nil {
		return span{}, err
	}
	w.scraps = append(w.scraps, b)
	return span{b, backendcuda.Use(w.e.stream, b), 0, count, dt}, nil
}

// queue queues what the call needs.
func (w *work) queue() error {
	switch c := w.c; {
	case c.Count == 0:
		return nil
	case c.Op.Reduces() && c.Fast && c.Op != comm.Reduce && c.DType != dtype.Bool:
		return w.libraryReduce()
	case c.Op == comm.AllReduce || c.Op == comm.Reduce:
		return w.allReduce()
	case c.Op == comm.ReduceScatter:
		result, err := w.reduceSlice(w.in, func(r int) (lo, hi int) { return r * c.Count, (r + 1) * c.Count }, w.out)
		if err == nil && result.at != w.out.at {
			err = w.copy(w.out, result)
		}
		return err
	case c.Op == comm.AllGather:
		return w.ranks.AllGather(w.e.queue, w.out.at, w.in.at, c.Count*c.DType.Size(), nccl.Uint8)
	case c.Op == comm.Broadcast:
		return w.ranks.Broadcast(w.e.queue, w.in.at, c.Count*c.DType.Size(), nccl.Uint8, c.Root)
	}
	return w.move()
}

// libraryReduce lets NCCL combine in its own order.
func (w *work) libraryReduce() error {
	op := map[comm.ReduceOp]nccl.RedOp{comm.Sum: nccl.Sum, comm.Product: nccl.Prod, comm.Min: nccl.Min,
		comm.Max: nccl.Max}[w.c.Reduce]
	if w.c.Op == comm.ReduceScatter {
		return w.ranks.ReduceScatter(w.e.queue, w.out.at, w.in.at, w.c.Count, dataTypes[w.c.DType], op)
	}
	return w.ranks.AllReduce(w.e.queue, w.out.at, w.in.at, w.c.Count, dataTypes[w.c.DType], op)
}

var dataTypes = map[dtype.DType]nccl.DataType{dtype.Float32: nccl.Float32, dtype.Float64: nccl.Float64,
	dtype.BFloat16: nccl.BFloat16, dtype.Float16: nccl.Float16, dtype.Int32: nccl.Int32, dtype.Int64: nccl.Int64,
	dtype.Uint8: nccl.Uint8}

// sliceGrain is what slices of a reduction are multiples of, in elements, so that each begins at an aligned address.
const sliceGrain = 64

// allReduce is the tree: each rank combines a slice of all, and sends it to all, or to the root.
func (w *work) allReduce() error {
	count := w.c.Count
	each := (count + w.n - 1) / w.n
	each = (each + sliceGrain - 1) / sliceGrain * sliceGrain
	slice := func(r int) (lo, hi int) { return min(r*each, count), min((r+1)*each, count) }
	lo, hi := slice(w.rank)
	keeps := w.c.Op == comm.Reduce && w.rank != w.c.Root // its buffer stays what it is
	to := w.out.part(lo, hi)
	if keeps {
		var err error
		if to, err = w.scratch(hi-lo, w.c.DType); err != nil {
			return err
		}
	}
	result, err := w.reduceSlice(w.in, slice, to)
	if err != nil {
		return err
	}
	if result.at != to.at {
		if err := w.copy(to, result); err != nil {
			return err
		}
	}
	give := func(r int) span {
		if w.c.Op == comm.Reduce && r != w.c.Root {
			return span{}
		}
		return to
	}
	return w.exchange(give, func(r int) span {
		if keeps {
			return span{}
		}
		return w.out.part(slice(r))
	})
}

// reduceSlice sends each rank its slice of in, and combines this rank's slices in the tree that package tree has: to
// may be part of in. The result lies there or in scratch memory.
func (w *work) reduceSlice(in span, slice func(r int) (lo, hi int), to span) (span, error) {
	lo, hi := slice(w.rank)
	parts := make([]span, w.n)
	for r := range parts {
		if r == w.rank {
			parts[r] = in.part(lo, hi)
			continue
		}
		var err error
		if parts[r], err = w.scratch(hi-lo, w.c.DType); err != nil {
			return span{}, err
		}
	}
	err := w.exchange(func(r int) span { return in.part(slice(r)) }, func(r int) span { return parts[r] })
	if err != nil || hi == lo {
		return to, err
	}
	return w.combine(parts, to)
}

// combine runs a binary counter over the ranks: position k of the stack holds a subtree, and equal ones merge. Half
// types are combined in float32 and rounded once, into to.
func (w *work) combine(parts []span, to span) (span, error) {
	half := w.c.DType.IsHalf()
	var stack []span
	var ranks []int
	for r, part := range parts {
		if half {
			wide, err := w.scratch(part.n, dtype.Float32)
			if err != nil {
				return span{}, err
			}
			w.launch(backend.OpCopy, wide, part)
			part = wide
		}
		stack, ranks = append(stack, part), append(ranks, 1)
		for n := len(ranks); n > 1 && (ranks[n-1] == ranks[n-2] || r == len(parts)-1); n = len(ranks) {
			a, b := stack[n-2], stack[n-1]
			into := a
			switch last := ranks[n-1]+ranks[n-2] == len(parts); {
			case last && !half:
				into = to
			case a.buf == w.in.buf: // the caller's
				into = b
			}
			if err := w.merge(into, a, b); err != nil {
				return span{}, err
			}
			stack, ranks = append(stack[:n-2], into), append(ranks[:n-2], ranks[n-2]+ranks[n-1])
		}
	}
	if half {
		w.launch(backend.OpCopy, to, stack[0])
		return to, nil
	}
	return stack[0], nil
}

// merge combines two spans.
func (w *work) merge(into, a, b span) error {
	op, ok := map[comm.ReduceOp]backend.Op{comm.Sum: backend.OpAdd, comm.Product: backend.OpMul,
		comm.Min: backend.OpMinimum, comm.Max: backend.OpMaximum}[w.c.Reduce]
	if w.c.DType == dtype.Bool {
		op, ok = map[comm.ReduceOp]backend.Op{comm.Min: backend.OpAnd, comm.Max: backend.OpOr}[w.c.Reduce]
	}
	if !ok {
		return fmt.Errorf("%v of %v is not defined", w.c.Reduce, w.c.DType)
	}
	w.launch(op, into, a, b)
	return nil
}

func (w *work) launch(op backend.Op, out span, in ...span) {
	call := backend.Call{Op: op, NOut: 1, NIn: len(in)}
	call.Out[0] = out.view()
	for i, s := range in {
		call.In[i] = s.view()
	}
	w.e.stream.Launch(&call)
}

func (w *work) copy(to, from span) error {
	return w.e.queue.CopyOnDevice(to.at, from.at, from.n*from.dt.Size())
}

// exchange sends each other rank a span and receives one from it. Empty ones are left out, on both sides.
func (w *work) exchange(give, take func(r int) span) error {
	return w.ranks.Group(func() error {
		for r := range w.n {
			if r == w.rank {
				continue
			}
			if s := give(r); s.n > 0 {
				if err := w.ranks.Send(w.e.queue, s.at, s.n*s.dt.Size(), nccl.Uint8, r); err != nil {
					return err
				}
			}
			if s := take(r); s.n > 0 {
				if err := w.ranks.Recv(w.e.queue, s.at, s.n*s.dt.Size(), nccl.Uint8, r); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// move does gather, scatter and all-to-all: blocks that go from rank to rank as they are.
func (w *work) move() error {
	c, count := w.c, w.c.Count
	block := func(s span, r int) span { return s.part(r*count, (r+1)*count) }
	give := func(r int) span {
		switch {
		case c.Op == comm.AllToAll, c.Op == comm.Scatter && w.rank == c.Root:
			return block(w.in, r)
		case c.Op == comm.Gather && r == c.Root:
			return w.in
		}
		return span{}
	}
	take := func(r int) span {
		switch {
		case c.Op == comm.AllToAll, c.Op == comm.Gather && w.rank == c.Root:
			return block(w.out, r)
		case c.Op == comm.Scatter && r == c.Root:
			return w.out
		}
		return span{}
	}
	if from, to := give(w.rank), take(w.rank); from.n > 0 && to.n > 0 && from.at != to.at { // stays on this rank
		if err := w.copy(to, from); err != nil {
			return err
		}
	}
	return w.exchange(give, take)
}
