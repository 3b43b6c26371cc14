// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"cmp"
	"context"
	"net"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/rendezvous"
)

// Join brings the processes of a job together and returns the group of all of them.
func Join(ctx context.Context, c rendezvous.Config, opts comm.Options) (*comm.Group, error) {
	c.Engine = rendezvous.TCP
	return rendezvous.NewEngine(New).Join(ctx, c, opts)
}

// New returns the group of all processes of a job, which it holds open until it is closed. All of them call it.
func New(job *rendezvous.Job, opts comm.Options) (*comm.Group, error) {
	return NewOver(job, connections(job), opts)
}

// connections are those of the job itself.
func connections(job *rendezvous.Job) Transport {
	return Transport{Name: "tcp", Way: "connections", ChunkBytes: 256 << 10, Connect: job.Connect}
}

// Transport is how the bytes of a group go from rank to rank. It is for engines that have their own network, such as
// comm/mpi.
type Transport struct {
	Name string // of the engine
	Way  string // what the bytes go over, for Describe

	// ChunkBytes is how much of a rank's share of a reduction goes at a time, so that adding overlaps sending, and
	// memory is bounded.
	ChunkBytes int

	// Connect returns one of several connections between this process and that of a rank in the job, told apart by
	// their kind. Both call it. A connection is ordered, and each buffer that is written is read in one piece.
	Connect func(ctx context.Context, kind string, rank int) (net.Conn, error)

	// Exchange, unless nil, writes to and reads from several connections at once, and returns when all is done. rank is
	// the one that err is about. Without it reductions go through the connections in chunks.
	Exchange func(send, receive []Part) (rank int, err error)

	// AllReduce, unless nil, does an all-reduce of the group that NewOver makes, not of its parts, where additions may
	// come in any order (comm.Options.FastOrder), once the ranks have met. handled is false for what it does not do, on
	// all ranks alike. While it waits it asks over, whose error ends it.
	AllReduce func(c *comm.Call, over func() error) (handled bool, err error)
}

// Part is what goes to or comes from one rank of a group, over the connection with it.
type Part struct {
	Rank  int
	Conn  net.Conn
	Bytes []byte
}

// NewOver is New for another way from rank to rank.
func NewOver(job *rendezvous.Job, over Transport, opts comm.Options) (*comm.Group, error) {
	e, err := newEngine(job, over, cmp.Or(opts.Name, "world"), comm.AllRanks(job.World))
	if err != nil {
		return nil, err
	}
	e.whole = true
	return comm.New(e, opts), nil
}
