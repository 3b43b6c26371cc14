// SPDX-License-Identifier: Apache-2.0

//go:build mpi && unix

package mpi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lockstep-ml/lockstep/comm/tcp"
)

// conn is a net.Conn whose bytes are MPI messages: each Write is one, and needs a Read of as many bytes. Beside it is
// the connection over which the two sides agreed, the line, which says when the other side has closed or died.
type conn struct {
	net.Conn // the line

	lib              *library
	peer             int // in MPI_COMM_WORLD
	sendTag, readTag int

	readBy, writeBy atomic.Int64 // deadlines in nanoseconds since 1970; 0: none
	closed          atomic.Bool
	ended           atomic.Int64 // when the line ended, likewise
	watched         chan struct{}
}

// newConn agrees with the other side of a line on tags. Both call it. shared says that both are in this process.
func newConn(lib *library, line net.Conn, shared bool) (*conn, error) {
	c := &conn{Conn: line, lib: lib, watched: make(chan struct{})}
	me, err := c.tell(uint32(lib.rank), uint32(lib.size))
	if err != nil {
		return nil, err
	}
	c.peer = int(me[0])
	if int(me[1]) != lib.size || (c.peer == lib.rank) != shared || c.peer >= lib.size {
		return nil, fmt.Errorf("comm/mpi: rank %d of %d of an MPI job met rank %d of %d: want processes of one MPI "+
			"job; start them with mpirun or srun --mpi", lib.rank, lib.size, c.peer, me[1])
	}
	if c.readTag, err = lib.newTag(c.peer); err != nil {
		return nil, err
	}
	tag, err := c.tell(uint32(c.readTag), 0)
	if err != nil {
		return nil, err
	}
	c.sendTag = int(tag[0])
	go c.watch()
	return c, nil
}

// tell exchanges two numbers over the line.
func (c *conn) tell(a, b uint32) (theirs [2]uint32, err error) {
	var out, in [8]byte
	binary.LittleEndian.PutUint32(out[:], a)
	binary.LittleEndian.PutUint32(out[4:], b)
	if _, err = c.Conn.Write(out[:]); err == nil {
		_, err = io.ReadFull(c.Conn, in[:])
	}
	return [2]uint32{binary.LittleEndian.Uint32(in[:]), binary.LittleEndian.Uint32(in[4:])}, err
}

// goodbye is what comes over the line when the other side closes; without it that process has died.
var goodbye = []byte{'.'}

// watch notes when the line ends.
func (c *conn) watch() {
	defer close(c.watched)
	said, _ := io.ReadAll(io.LimitReader(c.Conn, int64(len(goodbye))))
	if len(said) == 0 && !c.closed.Load() {
		c.lib.broken.Store(true)
	}
	c.ended.Store(time.Now().UnixNano())
}

// lag is how long what was sent before a line ended may be on its way.
const lag = 250 * time.Millisecond

// Read receives one message into b.
func (c *conn) Read(b []byte) (int, error) { return c.carry(b[:min(len(b), maxMessage)], false) }

// Write sends b, in messages of at most maxMessage bytes.
func (c *conn) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var sent int
		sent, err = c.carry(b[n:min(n+maxMessage, len(b))], true)
		n += sent
	}
	return n, err
}

// carry waits until a message is complete, or need not be waited for.
func (c *conn) carry(b []byte, sent bool) (int, error) {
	over := func() error { return c.over(sent) }
	if len(b) == 0 {
		return 0, nil
	}
	if err := over(); err != nil {
		return 0, err
	}
	r, err := c.begin(b, sent, over)
	if err != nil {
		return 0, err
	}
	if c.lib.await(r); r.err != nil {
		return 0, r.err
	}
	return len(b), nil
}

// begin begins to send or to receive a message.
func (c *conn) begin(b []byte, sent bool, over func() error) (*request, error) {
	tag := c.readTag
	if sent {
		tag = c.sendTag
	}
	return c.lib.message(b, sent, c.peer, tag, over)
}

// over is why a message is not waited for any longer: the deadline has passed, or an end of the connection is closed.
func (c *conn) over(sent bool) error {
	now := time.Now().UnixNano()
	ended, limit, gone := c.ended.Load(), c.readBy.Load(), io.EOF
	if sent {
		limit, gone = c.writeBy.Load(), syscall.EPIPE
	}
	switch {
	case c.closed.Load():
		return net.ErrClosed
	case limit != 0 && now >= limit:
		return os.ErrDeadlineExceeded
	case ended != 0 && now-ended > int64(lag):
		return gone
	}
	return nil
}

// exchange is that of a tcp.Transport. If one part fails, the others are given up. All sends begin before the first
// receive: a rank that finds a message waiting as it begins to receive copies it there and then, and the sender would
// wait that long for what this rank has for it.
func exchange(send, receive []tcp.Part) (rank int, err error) {
	var lib *library
	var requests []*request
	var ranks []int                  // of the requests
	fail := func(r int, why error) { // the first error counts
		if err == nil {
			rank, err = r, why
		}
	}
	begin := func(p tcp.Part, sent bool) {
		c := p.Conn.(*conn)
		lib = c.lib
		over := func() error {
			fail(p.Rank, c.over(sent))
			return err
		}
		for b := range slices.Chunk(p.Bytes, maxMessage) {
			if over() != nil {
				return
			}
			r, why := c.begin(b, sent, over)
			if why != nil {
				fail(p.Rank, why)
				return
			}
			requests, ranks = append(requests, r), append(ranks, p.Rank)
		}
	}
	for _, p := range send {
		begin(p, true)
	}
	for _, p := range receive {
		begin(p, false)
	}
	if len(requests) > 0 {
		lib.await(requests...)
	}
	for i, r := range requests {
		fail(ranks[i], r.err)
	}
	return rank, err
}

// SetDeadline sets the time after which reads and writes return os.ErrDeadlineExceeded.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline is SetDeadline for reads.
func (c *conn) SetReadDeadline(t time.Time) error { c.readBy.Store(nanoseconds(t)); return nil }

// SetWriteDeadline is SetDeadline for writes.
func (c *conn) SetWriteDeadline(t time.Time) error { c.writeBy.Store(nanoseconds(t)); return nil }

func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// Close ends the connection.
func (c *conn) Close() error {
	c.closed.Store(true)
	_, _ = c.Conn.Write(goodbye) // to one who may have gone
	err := c.Conn.Close()
	<-c.watched
	return errors.Join(err, release())
}
