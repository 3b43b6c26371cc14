// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Placed lists what this rank owns of the parameters that are cut: of the trained ones and, where parameters come and
// go, of the frozen ones. The tensors are vectors. Parameters of which it owns nothing are not there.
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

// Placement is what this rank owns of the trained parameter of a name; ok is false if there is none.
func (s *Sharder) Placement(name string) (p tensor.Placement, ok bool) {
	i := s.index(name)
	if i < 0 {
		return p, false
	}
	return s.slots[i].flat.placement(s.slots[i].at, s.group.Rank()), true
}

// Cut reports whether ranks own a part each of the parameter of a name; of others, every rank has the whole.
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

// Group is the ranks that train the model, those of all replicas.
func (s *Sharder) Group() *comm.Group { return s.options.All }

// First reports whether this rank is one of the first replica. The others own the same.
func (s *Sharder) First() bool { return s.options.Replicas == nil || s.options.Replicas.Rank() == 0 }
