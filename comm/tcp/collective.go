// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// A head is a signature, and a byte that is 1 if the ranks of the same host see the buffer where it lies.
const (
	shown     = comm.SignatureBytes
	headBytes = comm.SignatureBytes + 1
)

// collective carries out a call of all ranks: signatures first, in both directions, with the bytes behind them.
func (e *Engine) collective(c *comm.Call) error {
	c.Encode(e.head)
	e.head[shown] = 0
	if e.inner != nil && e.inner.local.Shows(c) {
		e.head[shown] = 1
	}
	e.heads[e.rank] = append(e.heads[e.rank][:0], e.head...)
	for _, p := range e.peers {
		if p != nil {
			p.out.push(e.head)
		}
	}
	err := e.meet(c)
	if err == nil && (e.over.Exchange != nil || e.over.AllReduce != nil) {
		err = e.flush(c) // the others wait for this rank's head, and it may soon have no thread to spare for that
	}
	handled := false
	if err == nil && c.Fast && c.Op == comm.AllReduce && c.Count > 0 && e.whole && e.over.AllReduce != nil {
		handled, err = e.over.AllReduce(c, e.overdue(c))
	}
	switch {
	case err != nil || handled || c.Op == comm.Barrier || c.Count == 0:
	case e.inner != nil && hierarchical(c.Op):
		err = e.inner.run(c)
	default:
		x := &exchange{e: e, c: c, size: c.DType.Size(), result: c.DType}
		err = x.run()
	}
	if err != nil {
		return err
	}
	return e.flush(c) // the buffers, and the head, are free when all is sent
}

// flush waits until everything that was queued has been sent.
func (e *Engine) flush(c *comm.Call) error {
	for r, p := range e.peers {
		if p != nil {
			if err := p.out.flush(); err != nil {
				return e.explain(c, r, err, []int{r})
			}
		}
	}
	return nil
}

// overdue returns a function that says why a call need not be waited for any longer: a rank failed or was lost, or the
// deadline has passed. The ranks have met: one that closes the group has had its part of the call, and this one soon
// has its own.
func (e *Engine) overdue(c *comm.Call) func() error {
	left := make([]time.Time, len(e.gone))
	return func() error {
		if err := e.failure.Load(); err != nil {
			return *err
		}
		now := time.Now()
		for r := range e.gone {
			switch {
			case e.gone[r].Load() == nil:
			case left[r].IsZero():
				left[r] = now
			case now.Sub(left[r]) > patience:
				return e.explain(c, r, io.EOF, nil)
			}
		}
		if !c.Deadline.IsZero() && now.After(c.Deadline) {
			return e.timeout(c, nil)
		}
		return nil
	}
}

// meet reads and compares the signatures of all ranks.
func (e *Engine) meet(c *comm.Call) error {
	for r, p := range e.peers {
		if p == nil {
			continue
		}
		if _, err := io.ReadFull(p.data, e.heads[r]); err != nil {
			var missing []int
			if errors.Is(err, os.ErrDeadlineExceeded) && e.failure.Load() == nil {
				missing = e.late(r)
			}
			return e.explain(c, r, err, missing)
		}
	}
	return comm.Compare(c, e.signatures)
}

// late lists, after the deadline, the ranks from first on whose signature is not there.
func (e *Engine) late(first int) []int {
	missing := []int{first}
	for r := first + 1; r < len(e.peers); r++ {
		if p := e.peers[r]; p != nil {
			_ = p.data.SetReadDeadline(time.Now().Add(2 * time.Millisecond)) // an error shows in the read
			if _, err := io.ReadFull(p.data, e.heads[r]); err != nil {
				missing = append(missing, r)
			}
		}
	}
	return missing
}

// exchange is one call whose signatures have been compared.
type exchange struct {
	e      *Engine
	c      *comm.Call
	size   int         // of an element
	result dtype.DType // of an all-reduce's result: the call's, or what its elements are rounded to
}

func (x *exchange) run() error {
	c, me := x.c, x.e.rank
	block := c.Count * x.size
	part := func(b []byte) func(int) []byte {
		return func(r int) []byte { return b[r*block : (r+1)*block] }
	}
	all := func(b []byte) func(int) []byte { return func(int) []byte { return b } }
	atOnce := x.e.over.Exchange != nil
	switch c.Op {
	case comm.AllReduce, comm.Reduce:
		if atOnce {
			return x.reduceAtOnce()
		}
		return x.reduce()
	case comm.ReduceScatter:
		if atOnce {
			return x.reduceScatterAtOnce()
		}
		return x.reduceScatter()
	case comm.AllGather:
		return x.move(all(c.In), part(c.Out))
	case comm.AllToAll:
		return x.move(part(c.In), part(c.Out))
	case comm.Broadcast, comm.Scatter:
		give := all(c.In)
		if c.Op == comm.Scatter {
			give = part(c.In)
		}
		if me != c.Root {
			return x.read(c.Root, c.Out)
		}
		x.give(give)
	case comm.Gather:
		if me == c.Root {
			return x.take(all(c.In), part(c.Out))
		}
		x.e.peers[c.Root].out.push(c.In)
	}
	return nil
}

// read fills b from one rank.
func (x *exchange) read(rank int, b []byte) error {
	if _, err := io.ReadFull(x.e.peers[rank].data, b); err != nil {
		return x.e.explain(x.c, rank, err, []int{rank})
	}
	return nil
}

// give queues for every other rank what it is to have; for this rank itself it copies, if there is a place.
func (x *exchange) give(what func(rank int) []byte) {
	for r, p := range x.e.peers {
		switch {
		case p != nil:
			p.out.push(what(r))
		case x.c.Op == comm.Scatter:
			copy(x.c.Out, what(r))
		}
	}
}

// take reads from every other rank, and copies from this one.
func (x *exchange) take(what, where func(rank int) []byte) error {
	for r, p := range x.e.peers {
		if p == nil {
			keep(what(r), where(r))
			continue
		}
		if err := x.read(r, where(r)); err != nil {
			return err
		}
	}
	return nil
}

// keep copies what a rank has for itself, unless it lies there.
func keep(from, to []byte) {
	if &from[0] != &to[0] {
		copy(to, from)
	}
}

// move gives to all and takes from all.
func (x *exchange) move(what, where func(rank int) []byte) error {
	if x.e.over.Exchange == nil {
		x.give(what)
		return x.take(what, where)
	}
	keep(what(x.e.rank), where(x.e.rank))
	return x.swap(what, where)
}

// swap sends to and receives from the other ranks at once, by the transport's Exchange. A rank may have nothing for
// another.
func (x *exchange) swap(what, where func(rank int) []byte) error {
	e := x.e
	var send, receive []Part
	add := func(to []Part, r int, b []byte) []Part {
		if len(b) == 0 {
			return to
		}
		return append(to, Part{r, e.peers[r].data, b})
	}
	for r, p := range e.peers {
		if p != nil {
			send, receive = add(send, r, what(r)), add(receive, r, where(r))
		}
	}
	if rank, err := e.over.Exchange(send, receive); err != nil {
		return e.explain(x.c, rank, err, []int{rank})
	}
	return nil
}
