// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"context"
	"encoding/binary"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/comm"
)

// Peers are ranks that have something to do together, and this rank's place among them. Methods that take a context
// are collective: all of the peers call them in the same order.
type Peers struct {
	rank  int
	size  int
	group *comm.Group // nil: this rank is alone, or not connected
}

// PeersOf are the ranks of a group.
func PeersOf(g *comm.Group) Peers { return Peers{g.Rank(), g.Size(), g} }

// Allocated is how many bytes this rank holds in memory of the group, such as gradients that ranks exchange. What lies
// on the device is apart, see tensor.Device.MemStats.
func (p *Peers) Allocated() int64 {
	if p.group == nil {
		return 0
	}
	return p.group.Allocated()
}

// Rank is this rank's number among the peers, from 0.
func (p *Peers) Rank() int { return p.rank }

// WorldSize is the number of peers.
func (p *Peers) WorldSize() int { return p.size }

// Group is the peers' group; nil of a rank that is alone, or not connected.
func (p *Peers) Group() *comm.Group { return p.group }

// Barrier waits until all peers have called it, as accelerate's wait_for_everyone does.
func (p *Peers) Barrier(ctx context.Context) error {
	if p.group == nil {
		return nil
	}
	return p.group.Barrier().Wait(ctx)
}

// Agree makes all peers take the same decisions: each flag becomes true on every rank if
// it is true on one. Decisions to stop, save or evaluate must go through it; otherwise
// one rank would wait for the others.
func (p *Peers) Agree(ctx context.Context, flags ...*bool) error {
	return p.agree(ctx, nil, flags)
}

// AgreeAt is Agree that also sets at, a number such as the time by a rank's clock, to the first peer's on all of them.
func (p *Peers) AgreeAt(ctx context.Context, at *float64, flags ...*bool) error {
	return p.agree(ctx, at, flags)
}

func (p *Peers) agree(ctx context.Context, at *float64, flags []*bool) error {
	if p.group == nil {
		return nil
	}
	v := make([]uint8, len(flags), len(flags)+8)
	for i, f := range flags {
		if *f {
			v[i] = 1
		}
	}
	if at != nil { // the other peers' zeros are the least bytes
		bits := uint64(0)
		if p.rank == 0 {
			bits = math.Float64bits(*at)
		}
		v = binary.LittleEndian.AppendUint64(v, bits)
	}
	if err := p.group.AllReduce(comm.Of(v), comm.Max, comm.Label("control")).Wait(ctx); err != nil {
		return err
	}
	for i, f := range flags {
		*f = v[i] == 1
	}
	if at != nil {
		*at = math.Float64frombits(binary.LittleEndian.Uint64(v[len(flags):]))
	}
	return nil
}

// SumFloats adds vectors over all peers, element by element. Where all ranks but one have
// zeros, the sum is that rank's value, bit for bit. Ranks use this to share figures that
// are then added in a fixed order.
func (p *Peers) SumFloats(ctx context.Context, v []float64, what string) error {
	if p.group == nil {
		return nil
	}
	return p.group.AllReduce(comm.Of(v), comm.Sum, comm.Label(what)).Wait(ctx)
}

// GatherBytes returns the bytes of all peers, in rank order, on every rank.
func (p *Peers) GatherBytes(ctx context.Context, mine []byte) ([][]byte, error) {
	if p.group == nil {
		return [][]byte{mine}, nil
	}
	sizes := make([]int64, p.size)
	if err := p.group.AllGather(comm.Of(sizes), comm.Of([]int64{int64(len(mine))}),
		comm.Label("sizes")).Wait(ctx); err != nil {
		return nil, err
	}
	longest := slices.Max(sizes)
	in, out := make([]byte, longest), make([]byte, longest*int64(len(sizes)))
	copy(in, mine)
	if err := p.group.AllGather(comm.Of(out), comm.Of(in), comm.Label("gathered bytes")).Wait(ctx); err != nil {
		return nil, err
	}
	parts := make([][]byte, len(sizes))
	for r, n := range sizes {
		parts[r] = out[int64(r)*longest:][:n:n]
	}
	return parts, nil
}
