// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"log/slog"
	"net"
	"sync"
)

// strangers is the number of connections that may be in the handshake at once; further ones wait in the kernel's queue.
const strangers = 64

// Listener accepts connections and hands on those that pass the handshake. Others are closed, and logged at the debug level.
type Listener struct {
	listener net.Listener
	token    []byte
	serve    func(net.Conn, Hello)

	mu      sync.Mutex
	open    map[net.Conn]struct{}
	closed  bool
	refused int
	handled sync.WaitGroup
}

// Listen begins to accept on address (port 0 picks a free one). serve is called on a goroutine of its own for each connection that passed, and owns it.
func Listen(address string, token []byte, serve func(net.Conn, Hello)) (*Listener, error) {
	nl, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return ListenOn(nl, token, serve), nil
}

// ListenOn is Listen on a TCP socket that listens already, which it takes over.
func ListenOn(nl net.Listener, token []byte, serve func(net.Conn, Hello)) *Listener {
	l := &Listener{listener: nl, token: token, serve: serve, open: map[net.Conn]struct{}{}}
	l.handled.Add(1)
	go l.accept()
	return l
}

// Addr returns the address that the listener is bound to.
func (l *Listener) Addr() *net.TCPAddr { return l.listener.Addr().(*net.TCPAddr) }

// Refused returns the number of connections that failed the handshake.
func (l *Listener) Refused() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

func (l *Listener) accept() {
	defer l.handled.Done()
	places := make(chan struct{}, strangers)
	for {
		places <- struct{}{}
		c, err := l.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			<-places // a connection that died in the queue, or no descriptor left: the next may do
			continue
		}
		if !l.track(c) {
			_ = c.Close()
			return
		}
		l.handled.Go(func() {
			h, err := Receive(c, l.token)
			<-places
			l.untrack(c, err)
			if err != nil {
				slog.Debug("wire: connection refused", "from", c.RemoteAddr().String(), "error", err)
				_ = c.Close()
				return
			}
			l.serve(c, h)
		})
	}
}

func (l *Listener) track(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.open[c] = struct{}{}
	}
	return !l.closed
}

func (l *Listener) untrack(c net.Conn, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
	if err != nil {
		l.refused++
	}
}

// Close stops accepting, ends handshakes and waits for all calls of serve to return.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.closed = true
	for c := range l.open {
		_ = c.Close()
	}
	l.mu.Unlock()
	err := l.listener.Close()
	l.handled.Wait()
	return err
}
