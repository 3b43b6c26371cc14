// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var token = []byte("0123456789abcdef")

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Write(&b, Hello{Kind: "data", Rank: 3}, 100))
	require.ErrorContains(t, Write(&b, Hello{Kind: string(make([]byte, 100))}, 100), "bytes, want at most 100")
	var h Hello
	require.NoError(t, Read(&b, &h, 100))
	require.Equal(t, Hello{Kind: "data", Rank: 3}, h)
	require.ErrorIs(t, Read(&b, &h, 100), io.EOF)
	require.EqualError(t, Read(bytes.NewReader([]byte("GET / HTTP/1.1\r\n")), &h, MaxGreeting), "wire: frame of 1195725856 bytes, want at most 4096")
	require.ErrorIs(t, Read(bytes.NewReader([]byte{0, 0, 0, 9, '{'}), &h, MaxGreeting), io.ErrUnexpectedEOF)
	require.ErrorContains(t, Read(bytes.NewReader([]byte{0, 0, 0, 1, '{'}), &h, MaxGreeting), "wire: unexpected end of JSON")
}

// FuzzRead: no input makes Read panic or take more memory than its limit.
func FuzzRead(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		var g greeting
		_ = Read(bytes.NewReader(b), &g, MaxGreeting)
	})
}

// shake runs both sides of a handshake.
func shake(t *testing.T, dial, listen []byte) (said Hello, client, server error) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	done := make(chan error)
	go func() {
		err := Greet(a, dial, Hello{Kind: "control", Rank: 7})
		if err != nil {
			_ = a.Close() // as a caller does
		}
		done <- err
	}()
	said, server = Receive(b, listen)
	if server != nil {
		require.NoError(t, b.Close())
	}
	return said, <-done, server
}

func TestHandshake(t *testing.T) {
	said, client, server := shake(t, token, token)
	require.NoError(t, client)
	require.NoError(t, server)
	require.Equal(t, Hello{Kind: "control", Rank: 7}, said)

	_, client, server = shake(t, []byte("another"), token)
	require.ErrorIs(t, client, ErrToken)
	require.ErrorIs(t, server, ErrToken)
}

// The proof covers what is said and who says it: an answer cannot be sent back, nor a hello be changed.
func TestProofBindsEverything(t *testing.T) {
	base := proof(token, "dial", []byte("a"), []byte("b"), Hello{Kind: "data", Rank: 1})
	for name, other := range map[string][]byte{
		"side": proof(token, "listen", []byte("a"), []byte("b"), Hello{Kind: "data", Rank: 1}), "nonces": proof(token, "dial", []byte("b"), []byte("a"), Hello{Kind: "data", Rank: 1}),
		"kind": proof(token, "dial", []byte("a"), []byte("b"), Hello{Kind: "datb", Rank: 1}), "rank": proof(token, "dial", []byte("a"), []byte("b"), Hello{Kind: "data", Rank: 2}),
		"token": proof([]byte("another"), "dial", []byte("a"), []byte("b"), Hello{Kind: "data", Rank: 1}),
	} {
		require.NotEqual(t, base, other, name)
	}
}

func TestListenerRefusesStrangersAndServesFriends(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	served := make(chan Hello, 10)
	l, err := Listen("127.0.0.1:0", token, func(c net.Conn, h Hello) { served <- h; _ = c.Close() })
	require.NoError(t, err)
	require.True(t, l.Addr().IP.IsLoopback())
	var silent []net.Conn
	for i := range 20 {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		switch i % 4 {
		case 0:
			_, err = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		case 1:
			_, err = c.Write(bytes.Repeat([]byte{0xff}, 1000))
		case 2:
			err = Greet(c, []byte("a wrong token"), Hello{Kind: "store"})
			require.ErrorIs(t, err, ErrToken)
			err = nil
		case 3: // says nothing and stays
			silent = append(silent, c)
		}
		require.NoError(t, err)
	}
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, Greet(c, token, Hello{Kind: "store", Rank: 2}))
	require.NoError(t, c.Close())
	require.Equal(t, Hello{Kind: "store", Rank: 2}, <-served)
	require.Eventually(t, func() bool { return l.Refused() == 15 }, Patience, time.Millisecond)
	require.Len(t, silent, 5)
	require.NoError(t, l.Close())
	require.Empty(t, served)
	_, err = silent[0].Read(make([]byte, 1))
	require.True(t, err != nil && !errors.Is(err, net.ErrClosed), "closed by the listener: %v", err)
}
