// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"context"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Placed implements strategy.Shards. Whole parameters that are here go.
func (s *Sharder) Placed() []tensor.Placed {
	_ = tensor.Try(s.leaveAll) // a group that has failed says so in the next call
	if s.placed != nil {
		return s.placed
	}
	for _, u := range s.units {
		for _, f := range u.flats {
			for i := range f.params {
				if own := f.local(s, f.own, i); own != nil {
					s.placed = append(s.placed, tensor.Placed{Placement: f.placement(s, i), Tensor: own})
				}
			}
		}
	}
	for _, p := range s.job.Placed() {
		if !s.Cut(p.Name) {
			s.placed = append(s.placed, p)
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
	return s.slots[i].flat.placement(s, s.slots[i].at), true
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
