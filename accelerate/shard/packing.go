// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"github.com/lockstep-ml/lockstep/accelerate/strategy"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Cell is the grid of cuts: a shard begins at a multiple of so many elements of a parameter, or takes it whole. So each
// partial of a norm is formed by one rank, and clipping has the bits of one rank.
const Cell = strategy.Cell

// align is the grid, in elements, on which small parameters begin: kernels like it.
const align = 16

// packing is where the parameters of a flat buffer lie. The buffer consists of equal shards of whole cells.
type packing struct {
	offsets []int // of each parameter's first element
	sizes   []int // of each parameter, in elements
	shard   int   // elements of a shard
	ranks   int
}

// pack places parameters of the given sizes for so many ranks. A large one begins at a cell's border; small ones share
// cells, so that less than one cell per rank and two per large parameter are left empty.
func pack(sizes []int, ranks, cell int) packing {
	p := packing{sizes: sizes, offsets: make([]int, len(sizes)), ranks: ranks}
	at := 0
	for i, n := range sizes {
		if n > cell-at%cell {
			at = up(at, cell)
		}
		p.offsets[i] = at
		at = up(at+n, align)
	}
	p.shard = up(up(at, cell)/cell, ranks) / ranks * cell
	return p
}

// up is the next multiple of unit.
func up(n, unit int) int { return (n + unit - 1) / unit * unit }

// numel is the number of elements of the buffer.
func (p packing) numel() int { return p.shard * p.ranks }

// within is the range of parameter i's elements that lie in a rank's shard.
func (p packing) within(i, rank int) tensor.Range {
	begin := p.offsets[i]
	return tensor.Range{Start: min(max(rank*p.shard-begin, 0), p.sizes[i]),
		Stop: min(max((rank+1)*p.shard-begin, 0), p.sizes[i])}
}
