// SPDX-License-Identifier: Apache-2.0

package comm

import (
	"slices"
	"sync"
)

// queue runs calls one after another on its own goroutine, which starts with the first call.
type queue struct {
	run     func(*Handle)
	running sync.WaitGroup // the goroutine

	mu      sync.Mutex
	changed sync.Cond // calls or closed
	seq     uint64    // of the last call
	calls   []*Handle
	closed  bool
}

func newQueue(run func(*Handle)) *queue {
	q := &queue{run: run}
	q.changed.L = &q.mu
	return q
}

// push numbers h, records it and appends it to the queue, all at once, so that numbers and places in the line follow
// the queue. line is nil for calls that have no place there. false: the queue is closed.
func (q *queue) push(h *Handle, flight *recorder, line *line) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	if q.seq == 0 {
		q.running.Go(q.loop)
	}
	q.seq++
	h.call.Seq = q.seq
	h.entry = flight.queue(h.call.Signature)
	if line != nil {
		h.call.turn = line.join()
	}
	q.calls = append(q.calls, h)
	q.changed.Signal()
	return true
}

func (q *queue) loop() {
	for h := q.pop(); h != nil; h = q.pop() {
		q.run(h)
	}
}

// pop waits for a call and takes it off the queue; nil: the queue is closed, and all calls have been taken.
func (q *queue) pop() *Handle {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.calls) == 0 {
		if q.closed {
			return nil
		}
		q.changed.Wait()
	}
	h := q.calls[0]
	q.calls = slices.Delete(q.calls, 0, 1)
	return h
}

// close lets the queued calls run and returns when the goroutine has ended.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.changed.Signal()
	q.mu.Unlock()
	q.running.Wait()
}
