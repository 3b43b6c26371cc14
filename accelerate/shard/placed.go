// SPDX-License-Identifier: Apache-2.0

package shard

import "github.com/lockstep-ml/lockstep/tensor"

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
