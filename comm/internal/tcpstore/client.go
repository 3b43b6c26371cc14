// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// Queries, as PyTorch numbers them (torch/csrc/distributed/c10d/TCPStoreBackend.hpp).
const (
	queryValidate   = 0
	querySet        = 1
	queryCompareSet = 2
	queryGet        = 3
	queryCheck      = 5
	queryWait       = 6
	queryDelete     = 8
)

// magic follows the first query of a connection.
const magic = 0x3C85F7CE

// The bytes by which a server answers queryCheck and queryWait.
const (
	checkReady    = 0
	checkNotReady = 1
	stopWaiting   = 0
)

// MaxKey and MaxValue are the largest key and value that are sent or received, in bytes. PyTorch's own limits are 8 KiB
// and 8 MiB.
const (
	MaxKey   = 4 << 10
	MaxValue = 64 << 10
)

// Patience is how long a server may take for an answer that needs no waiting.
const Patience = 30 * time.Second

// ErrProtocol says that what listens is not a TCPStore, or not one that is understood.
var ErrProtocol = errors.New("the answer is not that of a TCPStore of PyTorch 2.2 or newer")

// Client is a connection to a TCPStore. It belongs to one goroutine. After an error it is of no more use.
type Client struct {
	conn net.Conn
}

// Dial connects to the TCPStore at address (HOST:PORT) and checks that it is one. It makes one attempt.
func Dial(ctx context.Context, address string) (*Client, error) {
	dialer := net.Dialer{Timeout: Patience}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn}
	// The first query has no answer, so that a second one must show who is there.
	hello := binary.LittleEndian.AppendUint32([]byte{queryValidate}, magic)
	hello = appendKeys(append(hello, queryCheck), "/lockstep")
	if err := c.do(ctx, Patience, hello, func() error {
		b, err := c.byte()
		if err == nil && b != checkReady && b != checkNotReady {
			err = fmt.Errorf("%w: byte %#x: want %d or %d", ErrProtocol, b, checkReady, checkNotReady)
		}
		switch {
		case errors.Is(err, io.EOF):
			err = fmt.Errorf("%w: it hung up", ErrProtocol)
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = fmt.Errorf("%w: nothing within %v", ErrProtocol, Patience)
		}
		return err
	}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// RemoteAddr is the server's address.
func (c *Client) RemoteAddr() net.Addr { return c.conn.RemoteAddr() }

// Set gives key a value. The server does not confirm it.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	return c.ask(ctx, func() error { return nil }, querySet, key, value)
}

// CompareSet gives key the value desired if it has the value expected, and returns the value that it then has. An empty
// value stands for a key that does not exist.
func (c *Client) CompareSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	err = c.ask(ctx, func() (err error) {
		value, err = c.value()
		return err
	}, queryCompareSet, key, expected, desired)
	return value, err
}

// Get waits until key has a value, and returns it. It waits until ctx ends.
func (c *Client) Get(ctx context.Context, key string) (value []byte, err error) {
	if len(key) > MaxKey {
		return nil, fmt.Errorf("tcpstore: key of %d bytes: want at most %d", len(key), MaxKey)
	}
	if err := c.do(ctx, 0, appendKeys([]byte{queryWait}, key), func() error {
		b, err := c.byte()
		if err == nil && b != stopWaiting {
			err = fmt.Errorf("%w: byte %#x: want %d", ErrProtocol, b, stopWaiting)
		}
		return err
	}); err != nil {
		return nil, err
	}
	err = c.ask(ctx, func() (err error) {
		value, err = c.value()
		return err
	}, queryGet, key)
	return value, err
}

// Delete removes a key and reports whether there was one.
func (c *Client) Delete(ctx context.Context, key string) (deleted bool, err error) {
	var n uint64
	err = c.ask(ctx, func() error { return binary.Read(c.conn, binary.LittleEndian, &n) }, queryDelete, key)
	return n == 1, err
}

// ask sends a query that needs no waiting, and reads its answer.
func (c *Client) ask(ctx context.Context, answer func() error, number byte, key string, values ...[]byte) error {
	q, err := query(number, key, values...)
	if err != nil {
		return err
	}
	return c.do(ctx, Patience, q, answer)
}

// query is a query's bytes: its number, then each argument behind its length, 8 bytes little-endian. (PyTorch writes
// numbers as the machine has them; all that it supports are little-endian.)
func query(number byte, key string, values ...[]byte) ([]byte, error) {
	if len(key) > MaxKey {
		return nil, fmt.Errorf("tcpstore: key of %d bytes: want at most %d", len(key), MaxKey)
	}
	q := appendText([]byte{number}, []byte(key))
	for _, v := range values {
		if len(v) > MaxValue {
			return nil, fmt.Errorf("tcpstore: value of %d bytes: want at most %d", len(v), MaxValue)
		}
		q = appendText(q, v)
	}
	return q, nil
}

// appendKeys appends a list of one key.
func appendKeys(q []byte, key string) []byte {
	return appendText(binary.LittleEndian.AppendUint64(q, 1), []byte(key))
}

func appendText(q, text []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(q, uint64(len(text))), text...)
}

// do sends a query and reads its answer, until ctx ends or, if patience is not 0, so long.
func (c *Client) do(ctx context.Context, patience time.Duration, q []byte, answer func() error) error {
	var deadline time.Time // none
	if patience > 0 {
		deadline = time.Now().Add(patience)
	}
	if err := c.conn.SetDeadline(deadline); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })()
	_, err := c.conn.Write(q)
	if err == nil {
		err = answer()
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("tcpstore: the store at %v hung up: %w", c.conn.RemoteAddr(), err)
	}
	if err != nil {
		return fmt.Errorf("tcpstore: the store at %v: %w", c.conn.RemoteAddr(), err)
	}
	return nil
}

func (c *Client) byte() (byte, error) {
	var b [1]byte
	_, err := io.ReadFull(c.conn, b[:])
	return b[0], err
}

// value reads a length and so many bytes.
func (c *Client) value() ([]byte, error) {
	var n uint64
	if err := binary.Read(c.conn, binary.LittleEndian, &n); err != nil {
		return nil, err
	}
	if n > MaxValue {
		return nil, fmt.Errorf("%w: value of %d bytes: want at most %d", ErrProtocol, n, MaxValue)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(c.conn, b)
	return b, err
}
