// SPDX-License-Identifier: Apache-2.0

package comm

import "sync"

// lane runs calls one after another on a goroutine of its own, which starts with the first call.
type lane struct {
	run func(*Handle)

	mu      sync.Mutex
	seq     uint64 // of the last call
	queue   []*Handle
	head    int
	wake    chan struct{} // capacity 1
	started bool
	closed  bool
	ended   chan struct{}
}

func newLane(run func(*Handle)) *lane {
	return &lane{run: run, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// push numbers h, records it and appends it to the queue, all at once, so that numbers follow the queue. false: the
// lane is closed.
func (l *lane) push(h *Handle, flight *recorder) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.seq++
	h.call.Seq = l.seq
	h.entry = flight.queue(h.call.Signature)
	l.queue = append(l.queue, h)
	if !l.started {
		l.started = true
		go l.loop()
	}
	l.signal()
	return true
}

func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *lane) loop() {
	defer close(l.ended)
	for {
		h, closed := l.pop()
		switch {
		case h != nil:
			l.run(h)
		case closed:
			return
		default:
			<-l.wake
		}
	}
}

func (l *lane) pop() (h *Handle, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.head == len(l.queue) {
		l.queue, l.head = l.queue[:0], 0
		return nil, l.closed
	}
	h = l.queue[l.head]
	l.queue[l.head] = nil
	l.head++
	if l.head > 1024 && l.head*2 > len(l.queue) { // a queue that never runs empty must not grow for ever
		n := copy(l.queue, l.queue[l.head:])
		clear(l.queue[n:])
		l.queue, l.head = l.queue[:n], 0
	}
	return h, false
}

// close lets the queued calls run and returns when the goroutine has ended.
func (l *lane) close() {
	l.mu.Lock()
	started := l.started
	l.closed = true
	l.signal()
	l.mu.Unlock()
	if started {
		<-l.ended
	}
}
