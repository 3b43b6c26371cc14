// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/lockstep-ml/lockstep/comm"
)

// A head is a signature, and a byte that is 1 if the ranks of the same host see the buffer where it lies.
const (
	shown     = comm.SignatureBytes
	headBytes = comm.SignatureBytes + 1
)

// collective carries out a call of all ranks: signatures first, in both directions, with the bytes behind them.
func (e *engine) collective(c *comm.Call) error {
	c.Encode(e.head)
	e.head[shown] = 0
	if e.hierarchy != nil && e.hierarchy.local.Shows(c) {
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
	case e.hierarchy != nil && hasLevels(c.Op):
		err = e.hierarchy.run(c)
	default:
		err = e.runner.Run(links{e, c}, c, c.DType)
	}
	if err != nil {
		return err
	}
	return e.flush(c) // the buffers, and the head, are free when all is sent
}

// flush waits until everything that was queued has been sent.
func (e *engine) flush(c *comm.Call) error {
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
func (e *engine) overdue(c *comm.Call) func() error {
	left := make([]time.Time, len(e.peers))
	return func() error {
		if err := e.Err(); err != nil {
			return err
		}
		now := time.Now()
		for r := range e.peers {
			switch {
			case !e.Left(r):
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
func (e *engine) meet(c *comm.Call) error {
	for r, p := range e.peers {
		if p == nil {
			continue
		}
		if _, err := io.ReadFull(p.data, e.heads[r]); err != nil {
			var missing []int
			if errors.Is(err, os.ErrDeadlineExceeded) && e.Err() == nil {
				missing = e.late(r)
			}
			return e.explain(c, r, err, missing)
		}
	}
	return comm.Compare(c, e.signatures)
}

// late lists, after the deadline, the ranks from first on whose signature is not there.
func (e *engine) late(first int) []int {
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
