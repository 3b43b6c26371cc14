// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Owned is what a rank owns of a parameter: the elements from Lo on of its flat order.
type Owned struct {
	Name   string
	Shape  []int // of the whole parameter
	Lo     int
	Tensor *tensor.Tensor // a vector
}

// Owned lists what this rank owns of the parameters that are cut: of the trained ones and, where parameters come and
// go, of the frozen ones. Parameters of which it owns nothing are not there.
func (s *Sharder) Owned() []Owned {
	if s.owned != nil {
		return s.owned
	}
	for _, u := range s.units {
		for _, f := range u.flats {
			for i, p := range f.params {
				if lo, hi := f.layout.Part(i, s.group.Rank()); lo < hi {
					s.owned = append(s.owned, Owned{p.Name, p.Shape(), lo, f.piece(s, f.own, i)})
				}
			}
		}
	}
	return s.owned
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
