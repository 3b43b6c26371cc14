// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"context"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/placement"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Placed implements strategy.Shards.
func (s *Sharder) Placed() []tensor.Placed {
	if s.placed != nil {
		return s.placed
	}
	for _, u := range s.units {
		for _, f := range u.flats {
			for i := range f.params {
				if own := f.local(s, f.own, i); own != nil {
					s.placed = append(s.placed, tensor.Placed{Placement: f.placement(i, s.group.Rank()), Tensor: own})
				}
			}
		}
	}
	return s.placed
}

// Placement implements strategy.Shards.
func (s *Sharder) Placement(name string) (p tensor.Placement, ok bool) {
	i := s.index(name)
	if i < 0 {
		return p, false
	}
	return s.slots[i].flat.placement(s.slots[i].at, s.group.Rank()), true
}

// Cut implements strategy.Shards.
func (s *Sharder) Cut(name string) bool {
	for _, u := range s.units {
		for _, f := range u.flats {
			for _, p := range f.params {
				if p.Name == name {
					return p.Numel() > 0
				}
			}
		}
	}
	return false
}

func (s *Sharder) index(name string) int {
	return slices.IndexFunc(s.params, func(p tensor.Named) bool { return p.Name == name })
}

// Gather implements strategy.Shards.
func (s *Sharder) Gather(ctx context.Context, name string, dt tensor.DType, mine *tensor.Tensor) (whole []byte,
	err error) {
	i := s.index(name)
	if i < 0 {
		return nil, fmt.Errorf("shard: there is no trained parameter %q", name)
	}
	var parts []tensor.Placement // of the ranks
	longest := 0
	for r := range s.group.Size() {
		parts = append(parts, s.slots[i].flat.placement(s.slots[i].at, r))
		longest = max(longest, parts[r].Numel())
	}
	in := comm.Aligned(longest * dt.Size())
	if mine != nil {
		if err := tensor.Try(func() { copy(in, tensor.ReadBytes(s.c, mine)) }); err != nil {
			return nil, err
		}
	}
	var out []byte
	if s.group.Rank() == 0 {
		out = comm.Aligned(len(in) * len(parts))
	}
	if err := s.group.Gather(comm.Bytes(out, dt), comm.Bytes(in, dt), 0,
		comm.Label("state of "+name)).Wait(ctx); err != nil {
		return nil, fmt.Errorf("shard: gathering the state of %s: %w", name, err)
	}
	all := tensor.WholePlacement(name, s.params[i].Shape()...)
	whole = make([]byte, all.Numel()*dt.Size())
	if out == nil {
		return whole, nil
	}
	for r, p := range parts {
		placement.Copy(whole, all, out[r*len(in):], p, dt.Size())
	}
	return whole, nil
}

// Publish implements strategy.Shards: the whole parameters on every rank become what the ranks made of their local
// tensors.
func (s *Sharder) Publish(ctx context.Context) error {
	var handles []*comm.Handle
	for _, f := range s.flats {
		if err := tensor.Try(func() { f.written(s) }); err != nil {
			return err
		}
		if !f.comes && !s.shared {
			if err := tensor.Try(func() {
				handles = append(handles, s.group.AllGather(comm.OfTensor(s.c, f.whole.Tensor),
					comm.OfTensor(s.c, f.own), comm.Label("gather "+f.name)))
			}); err != nil {
				return err
			}
		}
	}
	for _, h := range handles {
		if err := h.Wait(ctx); err != nil {
			return fmt.Errorf("shard: gathering parameters: %w", err)
		}
	}
	return s.meet("parameters are written")
}
