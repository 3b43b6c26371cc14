// SPDX-License-Identifier: Apache-2.0

package comm

import "sync"

// queue runs calls one after another on a goroutine of its own, which starts with the first call.
type queue struct {
	run func(*Handle)

	mu      sync.Mutex
	seq     uint64 // of the last call
	calls   []*Handle
	head    int
	wake    chan struct{} // capacity 1
	started bool
	closed  bool
	ended   chan struct{}
}

func newQueue(run func(*Handle)) *queue {
	return &queue{run: run, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// push numbers h, records it and appends it to the queue, all at once, so that numbers follow the queue. false: the
// queue is closed.
func (q *queue) push(h *Handle, flight *recorder) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.seq++
	h.call.Seq = q.seq
	h.entry = flight.queue(h.call.Signature)
	q.calls = append(q.calls, h)
	if !q.started {
		q.started = true
		go q.loop()
	}
	q.signal()
	return true
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) loop() {
	defer close(q.ended)
	for {
		h, closed := q.pop()
		switch {
		case h != nil:
			q.run(h)
		case closed:
			return
		default:
			<-q.wake
		}
	}
}

func (q *queue) pop() (h *Handle, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.calls) {
		q.calls, q.head = q.calls[:0], 0
		return nil, q.closed
	}
	h = q.calls[q.head]
	q.calls[q.head] = nil
	q.head++
	if q.head > 1024 && q.head*2 > len(q.calls) { // a queue that never runs empty must not grow for ever
		n := copy(q.calls, q.calls[q.head:])
		clear(q.calls[n:])
		q.calls, q.head = q.calls[:n], 0
	}
	return h, false
}

// close lets the queued calls run and returns when the goroutine has ended.
func (q *queue) close() {
	q.mu.Lock()
	started := q.started
	q.closed = true
	q.signal()
	q.mu.Unlock()
	if started {
		<-q.ended
	}
}
