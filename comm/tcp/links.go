// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"io"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/internal/algorithms"
)

// links implements [algorithms.Links] for one call, whose errors it explains.
type links struct {
	e *engine
	c *comm.Call
}

func (l links) Rank() int { return l.e.rank }

func (l links) Size() int { return len(l.e.peers) }

// Begin queues what is to be sent, unless the transport exchanges parts at once.
func (l links) Begin(send, receive []algorithms.Part) algorithms.Round {
	if l.e.over.Exchange != nil {
		return &swap{l, send, receive}
	}
	t := &transfer{links: l, send: send, receive: receive, numbers: make([]int, len(send))}
	for i, p := range send {
		t.numbers[i] = l.e.peers[p.Rank].out.push(p.Bytes)
	}
	return t
}

// transfer is a round over writers and connections.
type transfer struct {
	links
	send, receive []algorithms.Part
	numbers       []int // of what is sent, in its rank's writer
}

func (t *transfer) Received() error {
	for _, p := range t.receive {
		if _, err := io.ReadFull(t.e.peers[p.Rank].data, p.Bytes); err != nil {
			return t.e.explain(t.c, p.Rank, err, []int{p.Rank})
		}
	}
	return nil
}

func (t *transfer) Sent() error {
	for i, p := range t.send {
		if err := t.e.peers[p.Rank].out.wait(t.numbers[i]); err != nil {
			return t.e.explain(t.c, p.Rank, err, []int{p.Rank})
		}
	}
	return nil
}

// swap is a round of a transport that sends and receives at once, when the round is received.
type swap struct {
	links
	send, receive []algorithms.Part
}

func (s *swap) Received() error {
	if rank, err := s.e.over.Exchange(s.parts(s.send), s.parts(s.receive)); err != nil {
		return s.e.explain(s.c, rank, err, []int{rank})
	}
	return nil
}

func (s *swap) Sent() error { return nil }

func (s *swap) parts(list []algorithms.Part) []Part {
	parts := make([]Part, len(list))
	for i, p := range list {
		parts[i] = Part{p.Rank, s.e.peers[p.Rank].data, p.Bytes}
	}
	return parts
}
