// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/internal/safetensors"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Gathered are tensors of which several ranks have parts. Rank 0 gets them whole, one at a time.
type Gathered struct {
	g     *comm.Group
	index safetensors.Placements
	parts map[string][]gatheredPart // by the key of a tensor, in the order of the ranks
}

// gatheredPart is what a rank sends of a tensor.
type gatheredPart struct {
	rank int
	at   tensor.Placement
	mine *Placed // on that rank
}

// Gather prepares the ranks' parts of tensors for Gathered.Read. The parts of all ranks must make up whole tensors, as
// in Content. It is collective; a nil g is one rank.
func Gather(ctx context.Context, g *comm.Group, parts []Placed) (*Gathered, error) {
	list, err := entries(parts)
	lists, err := agree(ctx, g, "gather", list, err)
	if err != nil {
		return nil, fmt.Errorf("gathering tensors: %w", err)
	}
	turns := firsts(lists)
	files := make([]string, len(lists)) // that there would be
	for r := range files {
		files[r] = shardFile(r, len(files))
	}
	index, err := indexOf(g, lists, turns, files)
	if err != nil {
		return nil, fmt.Errorf("gathering tensors: %w", err)
	}
	all := &Gathered{g: g, index: index, parts: map[string][]gatheredPart{}}
	for r, list := range lists {
		for i, p := range list {
			if !turns[r][i] {
				continue
			}
			part := gatheredPart{rank: r, at: p.Placement}
			if r == all.rank() {
				part.mine = &parts[i]
			}
			key := p.Set + "/" + p.Name
			all.parts[key] = append(all.parts[key], part)
		}
	}
	return all, nil
}

func (a *Gathered) rank() int {
	if a.g == nil {
		return 0
	}
	return a.g.Rank()
}

// Names lists the tensors of a set in the order of their names.
func (a *Gathered) Names(set string) []string { return slices.Sorted(maps.Keys(a.index[set])) }

// Describe returns dtype and shape of a tensor; ok is false if there is none of that name.
func (a *Gathered) Describe(set, name string) (dt tensor.DType, shape []int, ok bool) {
	t, ok := a.index[set][name]
	return t.DType, t.Shape, ok
}

// Read returns the elements of a tensor, little-endian, on rank 0, and nil on other ranks. It is collective: all ranks
// read the same tensors in the same order.
func (a *Gathered) Read(ctx context.Context, set, name string) ([]byte, error) {
	dt, shape, ok := a.Describe(set, name)
	if !ok {
		return nil, fmt.Errorf("no rank has tensor %q of %s", name, set)
	}
	all := tensor.WholePlacement(name, shape...)
	var whole []byte
	if a.rank() == 0 {
		whole = comm.Aligned(all.Numel() * dt.Size())
	}
	var waits []func() error
	for _, part := range a.parts[set+"/"+name] {
		if err := a.move(ctx, part, dt, all, whole, &waits); err != nil {
			return nil, fmt.Errorf("gathering %v of %s: %w", part.at, set, err)
		}
	}
	for _, wait := range waits {
		if err := wait(); err != nil {
			return nil, fmt.Errorf("gathering %s of %s: %w", name, set, err)
		}
	}
	return whole, nil
}

// move brings a part from its rank into the whole on rank 0. What it begins ends with waits.
func (a *Gathered) move(ctx context.Context, part gatheredPart, dt tensor.DType, all tensor.Placement, whole []byte,
	waits *[]func() error) error {
	label := comm.Label("gather " + all.Name)
	switch {
	case part.mine != nil:
		data, err := part.mine.elements()
		switch {
		case err != nil:
			return err
		case part.rank == 0:
			placement.Copy(whole, all, data, part.at, dt.Size())
		default:
			sent := a.g.Send(comm.Bytes(data, dt), 0, label)
			*waits = append(*waits, func() error { return sent.Wait(ctx) })
		}
	case a.rank() == 0:
		data := whole
		if part.at.Numel() < all.Numel() {
			data = comm.Aligned(part.at.Numel() * dt.Size())
		}
		got := a.g.Recv(comm.Bytes(data, dt), part.rank, label)
		*waits = append(*waits, func() error {
			err := got.Wait(ctx)
			if err == nil && part.at.Numel() < all.Numel() {
				placement.Copy(whole, all, data, part.at, dt.Size())
			}
			return err
		})
	}
	return nil
}

// elements are those that Write writes, in memory that can be sent.
func (p *Placed) elements() ([]byte, error) {
	data := comm.Aligned(p.Numel() * p.DType.Size())
	b := bytes.NewBuffer(data[:0])
	if err := p.Write(b); err != nil {
		return nil, err
	}
	if b.Len() != len(data) {
		return nil, fmt.Errorf("Write wrote %d bytes: want %d", b.Len(), len(data))
	}
	return b.Bytes(), nil
}
