// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// script is a connection at whose other end somebody has said all there is to hear.
type script struct {
	heard *bytes.Reader
	said  bytes.Buffer
}

func (s *script) Read(b []byte) (int, error)       { return s.heard.Read(b) }
func (s *script) Write(b []byte) (int, error)      { return s.said.Write(b) }
func (s *script) Close() error                     { return nil }
func (s *script) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (s *script) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// frames are messages as they come over a connection.
func frames(t testing.TB, messages ...any) []byte {
	var b bytes.Buffer
	for _, m := range messages {
		require.NoError(t, Write(&b, m, MaxFrame))
	}
	return b.Bytes()
}

// FuzzListener: a stranger never passes the listener's handshake, whatever it sends, and hears no proof.
func FuzzListener(f *testing.F) {
	plain, encrypted := newKey(f, token, Options{}), newKey(f, token, Options{Always: true})
	g := greeting{Protocol: protocol, Hello: Hello{Kind: "store", Rank: 1}, Nonce: make([]byte, nonceBytes)}
	f.Add(frames(f, g, claim{Proof: make([]byte, 32)}))
	f.Add(frames(f, g))
	f.Add(frames(f, greeting{Protocol: "lockstep/1"}))
	f.Add([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3})
	f.Fuzz(func(t *testing.T, heard []byte) {
		for _, key := range []*Key{plain, encrypted} {
			c := &script{heard: bytes.NewReader(heard)}
			_, _, err := key.Receive(c)
			require.Error(t, err)
			require.NotContains(t, c.said.String(), `"proof"`)
		}
	})
}

// FuzzDialler: a stranger at whose port a rank has dialled never passes for a rank, whatever it answers.
func FuzzDialler(f *testing.F) {
	plain, encrypted := newKey(f, token, Options{}), newKey(f, token, Options{Always: true})
	n := make([]byte, nonceBytes)
	f.Add(frames(f, reply{Nonce: n}, reply{Proof: make([]byte, 32)}))
	f.Add(frames(f, reply{Error: saysTLS}))
	f.Add(frames(f, reply{Nonce: n}, reply{Error: saysToken}))
	f.Add([]byte{21, 3, 3, 0, 2, 2, 70})
	f.Fuzz(func(t *testing.T, heard []byte) {
		for _, key := range []*Key{plain, encrypted} {
			_, err := key.Greet(&script{heard: bytes.NewReader(heard)}, Hello{Kind: "store", Rank: 1})
			require.Error(t, err)
		}
	})
}
