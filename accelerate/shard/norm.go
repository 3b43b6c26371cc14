// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"context"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Norm implements strategy.Strategy: it adds up the squares of the local gradients over all ranks, with the bits of one
// rank.
func (s *Sharder) Norm(ctx context.Context) (float64, error) {
	return s.job.Norm(ctx, s.params, func(i int) (*tensor.Tensor, int) {
		if s.local[i] == nil {
			return nil, 0
		}
		p := s.slots[i]
		return s.local[i].Grad(), p.flat.pack.Within(p.at, s.group.Rank()).Start
	}, s.group)
}
