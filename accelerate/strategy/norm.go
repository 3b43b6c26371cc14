// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"context"
	"math"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Cell is how many elements of a gradient a partial sum of squares is of (tensor.SumSquares). Where a parameter is cut
// at multiples of it, one rank forms each partial, and a norm has the bits of one rank.
const Cell = 4096

// cellsAtATime bounds what Norm holds at once: 8 bytes for each cell, 8 MiB.
const cellsAtATime = 1 << 20

// Norm is the L2 norm of the gradients of params, which ranks have parts of: own gives this rank's part of the gradient
// of parameter i, nil if it has none, and the element at which it begins, a multiple of Cell. The partial sums of
// squares of all ranks are added over each of the groups, which may be nil, and then in the order of params. It is
// collective. Each element counts on one rank alone.
func Norm(ctx context.Context, c *tensor.Ctx, params []tensor.Named, own func(i int) (g *tensor.Tensor, first int),
	groups ...*comm.Group) (float64, error) {
	sum := 0.0
	for lo := 0; lo < len(params); {
		hi, cells := lo+1, cellsOf(params[lo])
		for hi < len(params) && cells+cellsOf(params[hi]) <= cellsAtATime {
			cells += cellsOf(params[hi])
			hi++
		}
		partials := make([]float64, cells)
		if err := tensor.Try(func() { fillPartials(c.NoGrad(), partials, params, lo, hi, own) }); err != nil {
			return 0, err
		}
		for _, g := range groups {
			if g == nil {
				continue
			}
			if err := g.AllReduce(comm.Of(partials), comm.Sum, comm.Label("norms of gradients")).Wait(ctx); err != nil {
				return 0, err
			}
		}
		for _, x := range partials {
			sum += x
		}
		lo = hi
	}
	return math.Sqrt(sum), nil
}

func cellsOf(p tensor.Named) int { return (p.Numel() + Cell - 1) / Cell }

// fillPartials sets the partial sums of this rank's parts of parameters lo to hi; those of other ranks stay 0.
func fillPartials(c *tensor.Ctx, all []float64, params []tensor.Named, lo, hi int,
	own func(i int) (*tensor.Tensor, int)) {
	c.Scope(func(c *tensor.Ctx) []*tensor.Tensor {
		var grads []*tensor.Tensor
		var at []int
		for i, begin := lo, 0; i < hi; i++ {
			if g, first := own(i); g != nil {
				grads, at = append(grads, g), append(at, begin+first/Cell)
			}
			begin += cellsOf(params[i])
		}
		sums := tensor.ToSlice[float64](c, tensor.SumSquaresAll(c, grads))
		for i, g := range grads {
			n := (g.Numel() + Cell - 1) / Cell
			copy(all[at[i]:], sums[:n])
			sums = sums[n:]
		}
		return nil
	})
}
