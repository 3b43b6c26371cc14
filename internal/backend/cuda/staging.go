// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

const (
	ringBytes  = 4 << 20 // of pinned memory per stream and direction
	pieceBytes = 1 << 20 // the largest copy: while one is under way, the host fills the next
	stageGrain = 64
)

// staging is a stream's pinned host memory: a ring through which writes go, and one through which reads come. Both are
// made when they are first used.
type staging struct {
	out, in ring
	faults  []byte
}

// ring is pinned memory that is used in turn.
type ring struct {
	mem   []byte
	head  int     // where the next piece goes
	under []piece // that copies may still use, the oldest first
	// ordered is set if the owner of the ring takes the pieces back itself, one by one.
	ordered bool
}

// piece is a part of a ring that a copy uses.
type piece struct {
	begin, end int
	e          cuda.Event
}

// room returns the next n ≤ pieceBytes bytes of a ring, when the copies that used them are done.
func (r *ring) room(s *stream, n int) ([]byte, error) {
	if r.mem == nil {
		mem, err := s.d.dev.AllocHost(ringBytes)
		if err != nil {
			return nil, err
		}
		r.mem = mem
	}
	if r.head+n > len(r.mem) {
		r.head = 0
	}
	for range 2 { // what small copies used, before there are many
		if len(r.under) == 0 || r.ordered {
			break
		}
		if done, err := r.under[0].e.Done(); err != nil || !done {
			break
		}
		if err := r.reclaim(s, false); err != nil {
			return nil, err
		}
	}
	for len(r.under) > 0 && overlap(r.under[0], r.head, r.head+n) {
		if err := r.reclaim(s, true); err != nil {
			return nil, err
		}
	}
	return r.mem[r.head : r.head+n : r.head+n], nil
}

func overlap(p piece, begin, end int) bool { return p.begin < end && begin < p.end }

// reclaim waits for the oldest copy.
func (r *ring) reclaim(s *stream, wait bool) error {
	p := r.under[0]
	if wait {
		if err := p.e.Sync(); err != nil {
			return err
		}
	}
	r.under = r.under[:copy(r.under, r.under[1:])]
	s.d.giveEvent(p.e)
	return nil
}

// taken notes that a copy that was queued uses the next n bytes.
func (r *ring) taken(s *stream, n int) error {
	e, err := s.d.takeEvent()
	if err != nil {
		return err
	}
	r.under = append(r.under, piece{r.head, r.head + n, e})
	r.head += roundUp(n, stageGrain)
	return s.q.Record(e)
}

// Write copies host bytes into dst. It waits for the device only where the ring is full of copies that are not done.
func (s *stream) Write(dst backend.Buffer, offset int, src []byte) {
	at := s.span(dst, offset, len(src))
	for len(src) > 0 {
		n := min(len(src), pieceBytes)
		mem, err := s.stage.out.room(s, n)
		s.must(err)
		copy(mem, src)
		s.must(s.q.CopyToDevice(at, mem))
		s.must(s.stage.out.taken(s, n))
		at, src = at+cuda.Ptr(n), src[n:]
	}
}

// Read waits for all earlier work of the stream and copies device bytes out.
func (s *stream) Read(dst []byte, src backend.Buffer, offset int) {
	at := s.span(src, offset, len(dst))
	r := &s.stage.in
	for len(r.under) > 0 { // of a read that ended with a fault
		s.must(r.reclaim(s, true))
	}
	r.head, r.ordered = 0, true
	var queued, read int
	var waiting [][]byte
	for read < len(dst) {
		for queued < len(dst) && len(waiting) < ringBytes/pieceBytes-1 {
			n := min(len(dst)-queued, pieceBytes)
			mem, err := r.room(s, n)
			s.must(err)
			s.must(s.q.CopyToHost(mem, at+cuda.Ptr(queued)))
			s.must(r.taken(s, n))
			queued, waiting = queued+n, append(waiting, mem)
		}
		if queued == len(dst) {
			break
		}
		s.must(r.reclaim(s, true))
		read += copy(dst[read:], waiting[0])
		waiting = waiting[1:]
	}
	s.await()
	for _, mem := range waiting {
		s.must(r.reclaim(s, false))
		read += copy(dst[read:], mem)
	}
}

// span is the address of bytes of a buffer that work of the stream uses.
func (s *stream) span(b backend.Buffer, offset, n int) cuda.Ptr {
	own := s.d.own(b)
	if own.freed.Load() || offset < 0 || n < 0 || offset+n > own.n {
		panic(&backend.Fault{Backend: s.d.name, Op: backend.OpCopy, Msg: fmt.Sprintf(
			"bytes %d to %d of a buffer of %d bytes (in use: %t)", offset, offset+n, own.n, !own.freed.Load())})
	}
	own.usedBy(s)
	return own.at + cuda.Ptr(offset)
}

// report is pinned memory for the fault block.
func (t *staging) report(s *stream) []byte {
	if t.faults == nil {
		mem, err := s.d.dev.AllocHost(faultBytes)
		s.must(err)
		t.faults = mem
	}
	return t.faults[:faultBytes]
}

func (t *staging) close(s *stream) error {
	var errs []error
	for _, r := range []*ring{&t.out, &t.in} {
		for _, p := range r.under {
			s.d.giveEvent(p.e)
		}
		if r.mem != nil {
			errs = append(errs, s.d.dev.FreeHost(r.mem))
		}
		*r = ring{}
	}
	if t.faults != nil {
		errs = append(errs, s.d.dev.FreeHost(t.faults))
	}
	t.faults = nil
	return errors.Join(errs...)
}
