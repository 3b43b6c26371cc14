// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"io"
	"net"

	"github.com/lockstep-ml/lockstep/comm"
)

// send writes a message to one rank.
func (e *engine) send(c *comm.Call) error {
	p := e.peers[c.Root]
	_ = p.messages.SetWriteDeadline(c.Deadline) // an error shows in the write
	if err := e.Err(); err != nil {
		return err
	}
	head := make([]byte, comm.SignatureBytes)
	c.Encode(head)
	parts := net.Buffers{head, c.In}
	if _, err := parts.WriteTo(p.messages); err != nil {
		return e.explain(c, c.Root, err, []int{c.Root})
	}
	return nil
}

// receive reads the next message from one rank.
func (e *engine) receive(c *comm.Call) error {
	p := e.peers[c.Root]
	_ = p.messages.SetReadDeadline(c.Deadline) // an error shows in the read
	if err := e.Err(); err != nil {
		return err
	}
	head := make([]byte, comm.SignatureBytes)
	if _, err := io.ReadFull(p.messages, head); err != nil {
		return e.explain(c, c.Root, err, []int{c.Root})
	}
	if err := comm.CompareMessage(c, e.rank, head); err != nil {
		return err
	}
	if _, err := io.ReadFull(p.messages, c.Out); err != nil {
		return e.explain(c, c.Root, err, []int{c.Root})
	}
	return nil
}
