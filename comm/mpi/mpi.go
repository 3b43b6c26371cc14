// SPDX-License-Identifier: Apache-2.0

//go:build mpi && unix

package mpi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
	"github.com/lockstep-ml/lockstep/comm/tcp"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func init() { rendezvous.RegisterEngine("mpi", New) }

// Join brings the processes of a job together and returns the group of all of them.
func Join(ctx context.Context, c rendezvous.Config, opts comm.Options) (*comm.Group, error) {
	return rendezvous.NewEngine(New).Join(ctx, c, opts)
}

// New returns the group of all processes of a job, whose bytes go over MPI. All of them call it. They must be the
// processes of one MPI job.
func New(job *rendezvous.Job, opts comm.Options) (*comm.Group, error) {
	lib, err := acquire()
	if err != nil {
		return nil, err
	}
	me := job.Peers[job.Rank]
	t := tcp.Transport{
		Name: "mpi", Way: lib.version, ChunkBytes: chunkBytes, Exchange: exchange,
		Connect: func(ctx context.Context, kind string, rank int) (net.Conn, error) {
			line, err := job.Connect(ctx, kind, rank)
			if err != nil {
				return nil, err
			}
			peer := job.Peers[rank]
			if _, err := acquire(); err != nil {
				return nil, errors.Join(err, line.Close())
			}
			c, err := newConn(lib, line, peer.PID == me.PID && peer.HostID == me.HostID)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("rank %d: %w", rank, err), line.Close(), release())
			}
			return c, nil
		},
	}
	// MPI tells collective calls apart by their order alone: one group makes them.
	if lib.size == job.World && lib.rank == job.Rank && lib.groups.Add(1) == 1 {
		t.AllReduce = lib.fastAllReduce
	}
	g, err := tcp.NewOver(job, t, opts)
	return g, errors.Join(err, release()) // each connection holds the library
}

// fastAllReduce is MPI's own sum of all ranks, whose order depends on the library, the number of ranks and the network.
func (l *library) fastAllReduce(c *comm.Call, over func() error) (handled bool, err error) {
	types := map[dtype.DType]uintptr{dtype.Float32: l.abi.float, dtype.Float64: l.abi.double}
	dt := types[c.DType]
	if dt == 0 || c.Reduce != comm.Sum || len(c.In) != len(c.Out) || c.Count > math.MaxInt32 {
		return false, nil
	}
	if &c.In[0] != &c.Out[0] {
		copy(c.Out, c.In)
	}
	return true, l.allReduce(c.Out, c.Count, dt, over)
}

// chunkBytes is the share of a rank that is exchanged at a time. Less costs more calls, more costs memory: so much for
// each rank.
const chunkBytes = 8 << 20
