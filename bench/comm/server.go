// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"

	"github.com/lockstep-ml/lockstep/comm"
)

// server is the parameter server of the field's documents, as a peer: ranks send what they have to rank 0, which adds
// it up and sends the sum to each. All data go through one process, (N-1) times as many bytes in and out as a rank has.
// Rank 0 is a rank, too, and adds up in order of ranks.
type server struct {
	arrived [][]float32 // on rank 0: from each other rank
}

func newServer(g *comm.Group, n int) *server {
	s := &server{}
	if g.Rank() == 0 {
		s.arrived = make([][]float32, g.Size()-1)
		for i := range s.arrived {
			s.arrived[i] = make([]float32, n)
		}
	}
	return s
}

func (s *server) allReduce(ctx context.Context, g *comm.Group, data []float32) error {
	if g.Rank() > 0 {
		return wait(ctx, g.Send(comm.Of(data), 0), g.Recv(comm.Of(data), 0))
	}
	handles := make([]*comm.Handle, len(s.arrived))
	for i, b := range s.arrived {
		handles[i] = g.Recv(comm.Of(b), i+1)
	}
	for i, b := range s.arrived {
		if err := handles[i].Wait(ctx); err != nil {
			return err
		}
		for j, x := range b {
			data[j] += x
		}
	}
	for i := range s.arrived {
		handles[i] = g.Send(comm.Of(data), i+1)
	}
	return wait(ctx, handles...)
}

func wait(ctx context.Context, handles ...*comm.Handle) error {
	for _, h := range handles {
		if err := h.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
