// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"
)

// Strangers is the number of connections that may be in the handshake at once. One more costs the oldest of whoever has
// the most.
const Strangers = 256

// Listener accepts connections and hands on those that pass the handshake. Others are closed, and logged at the debug
// level.
type Listener struct {
	listener net.Listener
	key      *Key
	serve    func(net.Conn, Hello)
	wrong    func(from net.Addr, claimed Hello, why error) // may be nil

	mu        sync.Mutex
	strangers []stranger // in the handshake, the oldest first
	closed    bool
	refused   int
	handled   sync.WaitGroup
}

// stranger is a connection in the handshake.
type stranger struct {
	conn   net.Conn
	source string // who is at the other end, as far as the kernel says
}

// Listen begins to accept on address (port 0 picks a free one). serve is called on its own goroutine for each
// connection that passed, and owns it.
func Listen(address string, key *Key, serve func(net.Conn, Hello)) (*Listener, error) {
	nl, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return ListenOn(nl, key, serve, nil), nil
}

// ListenOn is Listen on a TCP socket that listens already, which it takes over. wrong, unless nil, is told of each
// connection that was refused with [ErrToken], and what it claimed to be, or with [ErrTLS].
func ListenOn(nl net.Listener, key *Key, serve func(net.Conn, Hello),
	wrong func(from net.Addr, claimed Hello, why error)) *Listener {
	l := &Listener{listener: nl, key: key, serve: serve, wrong: wrong}
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
	for {
		c, err := l.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(time.Millisecond) // a connection that died in the queue, or no descriptor left: the next may do
			continue
		}
		if !l.admit(stranger{conn: c, source: source(c)}) {
			_ = c.Close()
			return
		}
		l.handled.Go(func() {
			proven, h, err := l.key.Receive(c)
			l.dismiss(c, err)
			if err != nil {
				slog.Debug("wire: connection refused", "from", c.RemoteAddr().String(), "error", err)
				if l.wrong != nil && (errors.Is(err, ErrToken) || errors.Is(err, ErrTLS)) {
					l.wrong(c.RemoteAddr(), h, err)
				}
				_ = c.Close()
				return
			}
			l.serve(proven, h)
		})
	}
}

// admit lets a connection into the handshake; false if the listener is closed.
func (l *Listener) admit(s stranger) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if len(l.strangers) == Strangers {
		i := l.excess()
		_ = l.strangers[i].conn.Close() // ends its handshake
		l.strangers = slices.Delete(l.strangers, i, i+1)
	}
	l.strangers = append(l.strangers, s)
	return true
}

// excess returns which connection has to go: the oldest one of the source that has the most, so that one source cannot
// push out another.
func (l *Listener) excess() int {
	most, of := 0, map[string]int{}
	for _, s := range l.strangers {
		of[s.source]++
		most = max(most, of[s.source])
	}
	return slices.IndexFunc(l.strangers, func(s stranger) bool { return of[s.source] == most })
}

// dismiss ends what admit began.
func (l *Listener) dismiss(c net.Conn, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.strangers = slices.DeleteFunc(l.strangers, func(s stranger) bool { return s.conn == c })
	if err != nil {
		l.refused++
	}
}

// Close stops accepting, ends handshakes and waits for all calls of serve to return.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.closed = true
	for _, s := range l.strangers {
		_ = s.conn.Close()
	}
	l.mu.Unlock()
	err := l.listener.Close()
	l.handled.Wait()
	return err
}
