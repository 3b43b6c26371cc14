// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"net"
	"sync"
)

// writer sends buffers to one rank, in order, from its own goroutine, so that two ranks that send to each other never
// wait for each other.
type writer struct {
	conn net.Conn

	mu     sync.Mutex
	cond   sync.Cond
	queue  [][]byte
	queued int // buffers ever queued
	sent   int // buffers that are the caller's again
	err    error
	closed bool
	sender sync.WaitGroup // the goroutine
}

func newWriter(c net.Conn) *writer {
	w := &writer{conn: c}
	w.cond.L = &w.mu
	w.sender.Go(w.loop)
	return w
}

// push queues b, which must stay unchanged until wait has returned for the number that push returns.
func (w *writer) push(b []byte) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(b) > 0 {
		w.queue = append(w.queue, b)
		w.queued++
		w.cond.Broadcast()
	}
	return w.queued
}

// wait returns when so many buffers have been sent, or with the error that ended the sending.
func (w *writer) wait(number int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.sent < number && w.err == nil {
		w.cond.Wait()
	}
	return w.err
}

// flush waits for everything.
func (w *writer) flush() error {
	w.mu.Lock()
	number := w.queued
	w.mu.Unlock()
	return w.wait(number)
}

func (w *writer) loop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.queue) == 0 && !w.closed {
			w.cond.Wait()
		}
		if w.closed {
			return
		}
		batch := net.Buffers(w.queue)
		n := len(batch)
		w.queue = nil
		w.mu.Unlock()
		_, err := batch.WriteTo(w.conn)
		w.mu.Lock()
		if err != nil {
			w.err = err
			w.cond.Broadcast()
			return
		}
		w.sent += n
		w.cond.Broadcast()
	}
}

// close ends the goroutine; the connection's deadline or end wakes it from a write.
func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	w.cond.Broadcast()
	w.mu.Unlock()
	w.sender.Wait()
}
