// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// relay stands before the port where rank 0 is met, for the ranks of the second launcher.
type relay struct {
	listener net.Listener
	to       string

	mu      sync.Mutex
	ends    map[net.Conn]bool
	refuses bool
	stalled chan struct{} // closed when it continues; nil unless it is stalled

	running sync.WaitGroup
}

func newRelay(port int) (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l, to: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), ends: map[net.Conn]bool{}}
	r.running.Go(r.serve)
	return r, nil
}

func (r *relay) port() int { return r.listener.Addr().(*net.TCPAddr).Port }

func (r *relay) serve() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		far, err := net.DialTimeout("tcp", r.to, time.Second)
		if err != nil || !r.hold(near, far) {
			_ = near.Close() // nobody listens yet, or it is cut
			if far != nil {
				_ = far.Close() // see above
			}
			continue
		}
		r.running.Go(func() { r.carry(near, far) })
		r.running.Go(func() { r.carry(far, near) })
	}
}

// hold notes a pair of connections, unless the relay is cut.
func (r *relay) hold(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		r.ends[c] = !r.refuses
	}
	return !r.refuses
}

// carry copies what comes from one end to the other.
func (r *relay) carry(from, to net.Conn) {
	buffer := make([]byte, 4096)
	for {
		n, err := from.Read(buffer)
		r.mu.Lock()
		wait := r.stalled
		r.mu.Unlock()
		if wait != nil {
			<-wait
		}
		if _, e := to.Write(buffer[:n]); err == nil {
			err = e
		}
		if err != nil {
			if tcp, ok := to.(*net.TCPConn); ok && errors.Is(err, io.EOF) {
				_ = tcp.CloseWrite() // the other direction may continue
				return
			}
			_, _ = from.Close(), to.Close() // one of them is broken
			return
		}
	}
}

// cut breaks all connections and lets none come until it is undone.
func (r *relay) cut() (undo func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuses = true
	r.hangUp()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.refuses = false
	}
}

func (r *relay) hangUp() {
	for c := range r.ends {
		_ = c.Close() // its carriers notice
	}
	clear(r.ends)
}

// stall keeps what comes until it is undone.
func (r *relay) stall() (undo func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stalled = make(chan struct{})
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		close(r.stalled)
		r.stalled = nil
	}
}

func (r *relay) close() error {
	err := r.listener.Close()
	r.mu.Lock()
	r.hangUp()
	r.mu.Unlock()
	r.running.Wait()
	return err
}
