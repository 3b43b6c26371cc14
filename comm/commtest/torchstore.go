// SPDX-License-Identifier: Apache-2.0

package commtest

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TorchStore is a fake of the TCPStore that torchrun's agent serves: enough of PyTorch's protocol for ranks to meet. It
// is as credulous as the real one, but closes a connection that does not begin as PyTorch 2.2's do.
type TorchStore struct {
	listener net.Listener
	serving  sync.WaitGroup

	mu      sync.Mutex
	values  map[string][]byte
	changed chan struct{} // closed and replaced when values change
	conns   map[net.Conn]struct{}
	served  int
}

// NewTorchStore serves a store on a free port of the loopback interface until the test ends.
func NewTorchStore(t testing.TB) *TorchStore {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &TorchStore{listener: l, values: map[string][]byte{}, changed: make(chan struct{}),
		conns: map[net.Conn]struct{}{}}
	s.serving.Go(s.accept)
	t.Cleanup(func() {
		_ = l.Close()
		s.mu.Lock()
		for c := range s.conns {
			_ = c.Close()
		}
		s.set("", nil) // wakes those who wait
		s.mu.Unlock()
		s.serving.Wait()
	})
	return s
}

// Addr is the store's HOST:PORT.
func (s *TorchStore) Addr() string { return s.listener.Addr().String() }

// Port is the port alone.
func (s *TorchStore) Port() string { return strconv.Itoa(s.listener.Addr().(*net.TCPAddr).Port) }

// Value returns what a key has, nil if it is not there.
func (s *TorchStore) Value(key string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values[key]
}

// Set gives a key a value.
func (s *TorchStore) Set(key string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(key, value)
}

// Served is the number of queries answered so far.
func (s *TorchStore) Served() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served
}

func (s *TorchStore) set(key string, value []byte) {
	s.values[key] = value
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *TorchStore) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		s.serving.Go(func() {
			s.serve(c)
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
			_ = c.Close()
		})
	}
}

// serve answers one client.
func (s *TorchStore) serve(c net.Conn) {
	var hello [5]byte
	if _, err := io.ReadFull(c, hello[:]); err != nil || !bytes.Equal(hello[:], []byte{0, 0xce, 0xf7, 0x85, 0x3c}) {
		return
	}
	r := &torchReader{Reader: c}
	for {
		answer := s.answer(r)
		if r.err != nil {
			return
		}
		s.mu.Lock()
		s.served++
		s.mu.Unlock()
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// answer reads a query and returns the reply.
func (s *TorchStore) answer(r *torchReader) []byte {
	switch q := r.byte(); q {
	case 1: // SET
		key, value := string(r.text()), r.text()
		if r.err == nil {
			s.Set(key, value)
		}
		return nil
	case 2: // COMPARE_SET
		return s.compareSet(string(r.text()), r.text(), r.text(), r.err)
	case 3: // GET
		return torchText(s.Value(string(r.text())))
	case 5: // CHECK
		if _, missing := s.missing(r.keys()); missing {
			return []byte{1}
		}
		return []byte{0}
	case 6: // WAIT
		keys := r.keys()
		for changed, missing := s.missing(keys); missing; changed, missing = s.missing(keys) {
			<-changed
		}
		return []byte{0}
	case 8: // DELETE_KEY
		key := string(r.text())
		s.mu.Lock()
		defer s.mu.Unlock()
		_, ok := s.values[key]
		delete(s.values, key)
		if ok {
			return binary.LittleEndian.AppendUint64(nil, 1)
		}
		return make([]byte, 8)
	default:
		r.fail()
		return nil
	}
}

func (s *TorchStore) compareSet(key string, expected, desired []byte, err error) []byte {
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, ok := s.values[key]
	switch {
	case !ok && len(expected) > 0:
		return torchText(expected) // so says the real one
	case !ok || bytes.Equal(now, expected):
		s.set(key, desired)
		return torchText(desired)
	}
	return torchText(now)
}

// missing reports whether a key has no value, and what is closed when one changes. A store that is closed has them all.
func (s *TorchStore) missing(keys []string) (changed <-chan struct{}, missing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, closed := s.values[""]; closed {
		return s.changed, false
	}
	for _, k := range keys {
		if _, ok := s.values[k]; !ok {
			return s.changed, true
		}
	}
	return s.changed, false
}

func torchText(text []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
}

// torchReader reads a query's parts; after an error they are empty.
type torchReader struct {
	io.Reader
	err error
}

func (r *torchReader) fail() { r.err = io.ErrUnexpectedEOF }

func (r *torchReader) bytes(n uint64) []byte {
	if r.err == nil && n > 1<<20 {
		r.fail()
	}
	if r.err != nil {
		return make([]byte, min(n, 8))
	}
	b := make([]byte, n)
	_, r.err = io.ReadFull(r.Reader, b)
	return b
}

func (r *torchReader) byte() byte     { return r.bytes(1)[0] }
func (r *torchReader) number() uint64 { return binary.LittleEndian.Uint64(r.bytes(8)) }
func (r *torchReader) text() []byte   { return r.bytes(r.number()) }

func (r *torchReader) keys() (list []string) {
	for n := r.number(); n > 0 && r.err == nil; n-- {
		list = append(list, string(r.text()))
	}
	return list
}
