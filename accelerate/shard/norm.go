// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"context"
	"math"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// cellsAtATime bounds what Squares holds at once: 8 bytes for each cell, 8 MiB.
const cellsAtATime = 1 << 20

// Norm implements strategy.Strategy: it adds up the squares of the local gradients over all ranks, with the bits of one
// rank.
func (s *Sharder) Norm(ctx context.Context) (float64, error) {
	sum := 0.0
	for lo := 0; lo < len(s.params); {
		hi, cells := lo+1, cellsOf(s.params[lo])
		for hi < len(s.params) && cells+cellsOf(s.params[hi]) <= cellsAtATime {
			cells += cellsOf(s.params[hi])
			hi++
		}
		partials, err := s.partials(lo, hi, cells)
		if err != nil {
			return 0, err
		}
		h := s.group.AllReduce(comm.Of(partials), comm.Sum, comm.Label("norms of gradients"))
		if err := h.Wait(ctx); err != nil {
			return 0, err
		}
		for _, x := range partials {
			sum += x
		}
		lo = hi
	}
	return math.Sqrt(sum), nil
}

func cellsOf(p tensor.Named) int { return up(p.Numel(), Cell) / Cell }

// partials are the sums of squares of each cell of the parameters lo to hi, which have so many cells: of this rank's
// local tensors, and 0 elsewhere.
func (s *Sharder) partials(lo, hi, cells int) ([]float64, error) {
	all, begin := make([]float64, cells), 0 // where a parameter's partials begin
	err := tensor.Try(func() {
		s.c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
			var grads []*tensor.Tensor
			var at []int
			for i := lo; i < hi; i++ {
				if own := s.local[i]; own != nil && own.Grad() != nil {
					p := s.slots[i]
					first := p.flat.pack.within(p.at, s.group.Rank()).Start
					grads, at = append(grads, own.Grad()), append(at, begin+first/Cell)
				}
				begin += cellsOf(s.params[i])
			}
			sums := tensor.ToSlice[float64](c, tensor.SumSquaresAll(c, grads))
			for i, g := range grads {
				n := up(g.Numel(), Cell) / Cell
				copy(all[at[i]:], sums[:n])
				sums = sums[n:]
			}
			return nil
		})
	})
	return all, err
}
