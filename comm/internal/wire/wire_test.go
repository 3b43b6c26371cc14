// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"crypto/pbkdf2"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var token = []byte("0123456789abcdef")

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Write(&b, Hello{Kind: "data", Rank: 3}, 100))
	require.ErrorContains(t, Write(&b, Hello{Kind: string(make([]byte, 100))}, 100), "bytes: want at most 100")
	var h Hello
	require.NoError(t, Read(&b, &h, 100))
	require.Equal(t, Hello{Kind: "data", Rank: 3}, h)
	require.ErrorIs(t, Read(&b, &h, 100), io.EOF)
	require.EqualError(t, Read(bytes.NewReader([]byte("GET / HTTP/1.1\r\n")), &h, MaxGreeting),
		"wire: frame of 1195725856 bytes: want at most 4096")
	require.ErrorIs(t, Read(bytes.NewReader([]byte{0, 0, 0, 9, '{'}), &h, MaxGreeting), io.ErrUnexpectedEOF)
	require.ErrorContains(t, Read(bytes.NewReader([]byte{0, 0, 0, 1, '{'}), &h, MaxGreeting),
		"wire: unexpected end of JSON")
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

// newKey is the key of a token.
func newKey(t testing.TB, token []byte, o Options) *Key {
	t.Helper()
	k, err := NewKey(token, o)
	require.NoError(t, err)
	return k
}

// shake runs both sides of a handshake.
func shake(t *testing.T, dial, listen *Key) (said Hello, client, server error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer a.Close()
	b, err := l.Accept()
	require.NoError(t, err)
	defer b.Close()
	done := make(chan error)
	go func() {
		_, err := dial.Greet(a, Hello{Kind: "control", Rank: 7})
		if err != nil {
			_ = a.Close() // as a caller does
		}
		done <- err
	}()
	_, said, server = listen.Receive(b)
	if server != nil {
		require.NoError(t, b.Close())
	}
	return said, <-done, server
}

func TestHandshake(t *testing.T) {
	for _, o := range []Options{{}, {Always: true}} {
		said, client, server := shake(t, newKey(t, token, o), newKey(t, token, o))
		require.NoError(t, client)
		require.NoError(t, server)
		require.Equal(t, Hello{Kind: "control", Rank: 7}, said)

		_, client, server = shake(t, newKey(t, []byte("another"), o), newKey(t, token, o))
		require.ErrorIs(t, client, ErrToken)
		require.ErrorIs(t, server, ErrToken)
	}
}

// Two sides of which one alone needs TLS both say so.
func TestOneSideWantsTLS(t *testing.T) {
	plain, encrypted := newKey(t, token, Options{}), newKey(t, token, Options{Always: true})
	_, client, server := shake(t, plain, encrypted)
	require.ErrorIs(t, client, ErrTLS)
	require.ErrorIs(t, server, ErrTLS)
	_, client, server = shake(t, encrypted, plain)
	require.ErrorIs(t, client, ErrTLS)
	require.ErrorIs(t, server, ErrTLS)
}

// The proof covers what is said and who says it: an answer cannot be sent back, nor a hello be changed.
func TestProofBindsEverything(t *testing.T) {
	key := newKey(t, token, Options{})
	said := conversation{hello: Hello{Kind: "data", Rank: 1}, dialer: []byte("a"), listen: []byte("b"),
		binding: []byte("c")}
	base := key.proof("dial", said)
	require.NotEqual(t, base, key.proof("listen", said), "side")
	require.NotEqual(t, base, newKey(t, []byte("another"), Options{}).proof("dial", said), "token")
	for name, change := range map[string]func(*conversation){
		"nonces": func(c *conversation) { c.dialer, c.listen = c.listen, c.dialer }, "kind": func(c *conversation) {
			c.hello.Kind = "datb"
		},
		"rank": func(c *conversation) { c.hello.Rank = 2 }, "binding": func(c *conversation) { c.binding = nil },
	} {
		other := said
		change(&other)
		require.NotEqual(t, base, key.proof("dial", other), name)
	}
}

// heard is what a stranger who dials, knows nothing and sends two messages, hears from a listener.
func heard(t *testing.T, key *Key, second any) (all []reply) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	done := make(chan error, 1)
	go func() {
		_, _, err := key.Receive(b)
		_ = b.Close()
		done <- err
	}()
	require.NoError(t, a.SetDeadline(time.Now().Add(Patience)))
	require.NoError(t,
		Write(a, greeting{Protocol: protocol, Hello: Hello{Kind: "store"}, Nonce: make([]byte, nonceBytes)},
			MaxGreeting))
	var r reply
	require.NoError(t, Read(a, &r, MaxGreeting))
	all = append(all, r)
	require.NoError(t, Write(a, second, MaxGreeting))
	for Read(a, &r, MaxGreeting) == nil {
		all = append(all, r)
		r = reply{}
	}
	require.Error(t, <-done)
	return all
}

// A listener tells a stranger nothing that depends on the token: whoever could compare it with the proofs of guessed
// tokens would find a weak one without asking again. Who dials proves first.
func TestListenerProvesItselfSecond(t *testing.T) {
	said := conversation{hello: Hello{Kind: "store"}, dialer: make([]byte, nonceBytes)}
	key := newKey(t, token, Options{})
	for _, second := range []any{claim{}, claim{Proof: make([]byte, 32)},
		claim{Proof: newKey(t, []byte("a guess"), Options{}).proof("dial", said)}, "nonsense"} {
		for _, r := range heard(t, key, second) {
			require.Empty(t, r.Proof)
			require.Contains(t, []string{"", saysToken}, r.Error)
			require.Contains(t, []int{0, nonceBytes}, len(r.Nonce))
		}
	}
}

// What people may have thought of is stretched, what a program made is not: both give every process the same secret.
func TestTokensAreStretched(t *testing.T) {
	const made = "00112233445566778899aabbccddeeff00112233445566778899aabbccddee0f"
	require.True(t, generated(made))
	for _, other := range []string{made[:62], "correct horse battery staple", strings.ToUpper(made)} {
		require.False(t, generated(other), other)
	}
	a, err := secret("correct horse battery staple")
	require.NoError(t, err)
	want, err := pbkdf2.Key(sha256.New, "correct horse battery staple", []byte("lockstep job token"), 100_000, 32)
	require.NoError(t, err)
	require.Equal(t, want, a)
}

func TestListenerRefusesStrangersAndServesFriends(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	served := make(chan Hello, 10)
	l, err := Listen("127.0.0.1:0", newKey(t, token, Options{}), func(c net.Conn, h Hello) {
		served <- h
		_ = c.Close()
	})
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
			_, err = newKey(t, []byte("a wrong token"), Options{}).Greet(c, Hello{Kind: "store"})
			require.ErrorIs(t, err, ErrToken)
			err = nil
		case 3: // says nothing and stays
			silent = append(silent, c)
		}
		require.NoError(t, err)
	}
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	_, err = newKey(t, token, Options{}).Greet(c, Hello{Kind: "store", Rank: 2})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Equal(t, Hello{Kind: "store", Rank: 2}, <-served)
	require.Eventually(t, func() bool { return l.Refused() == 15 }, Patience, time.Millisecond)
	require.Len(t, silent, 5)
	require.NoError(t, l.Close())
	require.Empty(t, served)
	_, err = silent[0].Read(make([]byte, 1))
	require.True(t, err != nil && !errors.Is(err, net.ErrClosed), "closed by the listener: %v", err)
}

// When there are too many in the handshake, the oldest one of whoever has the most has to go.
func TestExcessIsOfTheGreediest(t *testing.T) {
	for sources, want := range map[string]int{"aaa": 0, "baaa": 1, "abbab": 1, "abcdcc": 2, "abab": 0} {
		l := &Listener{}
		for _, s := range sources {
			l.strangers = append(l.strangers, stranger{source: string(s)})
		}
		require.Equal(t, want, l.excess(), sources)
	}
}

// There are never more in the handshake than the bound, and the newest is let in.
func TestStrangersAreFew(t *testing.T) {
	key := newKey(t, token, Options{})
	served := make(chan Hello, 1)
	l, err := Listen("127.0.0.1:0", key, func(c net.Conn, h Hello) { served <- h; _ = c.Close() })
	require.NoError(t, err)
	var silent []net.Conn
	for range Strangers + 44 {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		silent = append(silent, c)
	}
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = key.Greet(c, Hello{Kind: "store"})
	require.NoError(t, err)
	<-served
	l.mu.Lock()
	held := len(l.strangers)
	l.mu.Unlock()
	require.LessOrEqual(t, held, Strangers)
	for _, c := range silent[:44] { // the oldest
		require.NoError(t, c.SetReadDeadline(time.Now().Add(Patience)))
		_, err := c.Read(make([]byte, 1))
		require.True(t, err != nil && !errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
	}
	require.NoError(t, l.Close())
}
