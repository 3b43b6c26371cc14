// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// script is a connection at whose other end somebody has said all there is to hear.
type script struct {
	net.Conn
	heard *bytes.Reader
}

func (s script) Read(b []byte) (int, error)  { return s.heard.Read(b) }
func (s script) Write(b []byte) (int, error) { return len(b), nil }
func (s script) SetDeadline(time.Time) error { return nil }
func (s script) RemoteAddr() net.Addr        { return &net.UnixAddr{} }

// FuzzAnswers: no server makes a client panic or take more than the bound.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{0, 3, 0, 0, 0, 0, 0, 0, 0, 'a', 'b', 'c', 1, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 255, 255, 255, 255, 255, 255, 255, 255})
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &Client{conn: script{heard: bytes.NewReader(b)}}
		if v, err := c.Get(t.Context(), "key"); err == nil {
			require.LessOrEqual(t, len(v), MaxValue)
		}
		if v, err := c.CompareSet(t.Context(), "key", nil, []byte("v")); err == nil {
			require.LessOrEqual(t, len(v), MaxValue)
		}
		_, _ = c.Delete(t.Context(), "key")
	})
}
