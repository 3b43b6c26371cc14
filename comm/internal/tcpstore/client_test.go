// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockstep-ml/lockstep/comm/internal/tcpstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server accepts one connection and hands it to talk.
func server(t *testing.T, talk func(c net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err == nil {
			talk(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

// step is a part of a recorded exchange.
type step struct {
	name   string
	client bool // the client says it
	data   []byte
}

// recorded reads what PyTorch's client and servers said to each other.
func recorded(t *testing.T) (list []step) {
	t.Helper()
	text, err := os.ReadFile("testdata/exchanges.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if words[0] == "#" {
			continue
		}
		data, err := hex.DecodeString(words[2])
		require.NoError(t, err)
		list = append(list, step{words[0], words[1] == ">", data})
	}
	return list
}

// The client says, byte for byte, what PyTorch's own says, and understands what PyTorch's servers answer.
func TestRecordedExchanges(t *testing.T) {
	steps := recorded(t)
	require.Len(t, steps, 16)
	heard := make(chan []byte, 1)
	address := server(t, func(c net.Conn) {
		var said bytes.Buffer
		for _, s := range steps {
			if !s.client {
				_, _ = c.Write(s.data)
				continue
			}
			b := make([]byte, len(s.data))
			n, _ := io.ReadFull(c, b)
			said.Write(b[:n])
		}
		_, _ = io.Copy(&said, c)
		heard <- said.Bytes()
	})
	ctx := t.Context()
	c, err := tcpstore.Dial(ctx, address)
	require.NoError(t, err)
	v, err := c.CompareSet(ctx, "/a", nil, []byte("first"))
	require.NoError(t, err)
	require.Equal(t, "first", string(v))
	v, err = c.CompareSet(ctx, "/a", nil, []byte("second"))
	require.NoError(t, err)
	require.Equal(t, "first", string(v))
	require.NoError(t, c.Set(ctx, "/b", []byte("value")))
	v, err = c.Get(ctx, "/b")
	require.NoError(t, err)
	require.Equal(t, "value", string(v))
	for _, want := range []bool{true, false} {
		deleted, err := c.Delete(ctx, "/b")
		require.NoError(t, err)
		require.Equal(t, want, deleted)
	}
	require.NoError(t, c.Close())
	var want []byte
	for _, s := range steps {
		if s.client {
			want = append(want, s.data...)
		}
	}
	require.Equal(t, want, <-heard)
}

// Replies that no TCPStore gives are errors that say so, and cost no memory.
func TestHostileReplies(t *testing.T) {
	length := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	for name, row := range map[string]struct {
		reply []byte // to Dial's question and the one behind it
		want  string
	}{
		"another server": {[]byte("HTTP/1.1 400 Bad Request\r\n"), "byte 0x48: want 0 or 1"},
		"nothing":        {nil, "the answer is not that of a TCPStore of PyTorch 2.2 or newer: it hung up"},
		"an enormous value": {append([]byte{1}, length(1<<62)...),
			"value of 4611686018427387904 bytes: want at most 65536"},
		"a value too large": {append([]byte{1}, length(tcpstore.MaxValue+1)...),
			"value of 65537 bytes: want at most 65536"},
		"a length cut off":     {[]byte{1, 9, 0}, "hung up"},
		"a value cut off":      {append(append([]byte{1}, length(9)...), "four"...), "hung up"},
		"gone after the hello": {[]byte{1}, "hung up"},
	} {
		t.Run(name, func(t *testing.T) {
			address := server(t, func(c net.Conn) {
				_, _ = io.ReadFull(c, make([]byte, 31)) // so that closing does not reset the connection
				_, _ = c.Write(row.reply)
				if len(row.reply) > 0 && row.reply[0] == 1 {
					_, _ = io.ReadFull(c, make([]byte, 1+8+4+8+8+1))
				}
			})
			c, err := tcpstore.Dial(t.Context(), address)
			if err == nil {
				_, err = c.CompareSet(t.Context(), "/key", nil, []byte("v"))
				require.NoError(t, c.Close())
			}
			require.ErrorContains(t, err, row.want)
			require.ErrorContains(t, err, address)
		})
	}
}

// A server that says nothing is waited for until the context ends.
func TestContextEndsWaiting(t *testing.T) {
	stuck := make(chan struct{})
	defer close(stuck)
	silent := func(c net.Conn) {
		go func() {
			<-stuck
			_ = c.Close()
		}()
		_, _ = io.Copy(io.Discard, c)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the test is over")
	time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
	_, err := tcpstore.Dial(ctx, server(t, silent))
	require.ErrorIs(t, err, why)

	address := server(t, func(c net.Conn) {
		_, _ = c.Write([]byte{1})
		silent(c)
	})
	c, err := tcpstore.Dial(t.Context(), address)
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	_, err = c.Get(ctx, "/never")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, c.Close())
}

func TestLimits(t *testing.T) {
	address := server(t, func(c net.Conn) {
		_, _ = c.Write([]byte{0})
		_, _ = io.Copy(io.Discard, c)
	})
	c, err := tcpstore.Dial(t.Context(), address)
	require.NoError(t, err)
	long := strings.Repeat("k", tcpstore.MaxKey+1)
	require.ErrorContains(t, c.Set(t.Context(), long, nil), "key of 4097 bytes: want at most 4096")
	require.ErrorContains(t, c.Set(t.Context(), "/k", make([]byte, tcpstore.MaxValue+1)),
		"value of 65537 bytes: want at most 65536")
	_, err = c.Get(t.Context(), long)
	require.ErrorContains(t, err, "key of 4097 bytes")
	require.NoError(t, c.Close())
}
