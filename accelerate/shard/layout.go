// SPDX-License-Identifier: Apache-2.0

package shard

// Cell is the grid of cuts: a shard begins at a multiple of so many elements of a parameter, or takes it whole. The
// squared norm of a gradient is added up from float64 partials of as many elements (tensor.SumSquares), so that each
// partial is formed by one rank, and clipping has the bits of one rank.
const Cell = 4096

// align is the grid, in elements, on which small parameters begin: kernels like it.
const align = 16

// Layout says where the parameters of a flat buffer lie. The buffer consists of equal shards of whole cells.
type Layout struct {
	Offsets []int // of each parameter's first element
	Sizes   []int // of each parameter, in elements
	Shard   int   // elements of a shard
	Ranks   int
}

// NewLayout lays parameters of the given sizes out for so many ranks. A large one begins at a cell's border; small ones
// share cells, so that less than one cell per rank and two per large parameter are left empty.
func NewLayout(sizes []int, ranks int) Layout { return newLayout(sizes, ranks, Cell) }

func newLayout(sizes []int, ranks, cell int) Layout {
	l := Layout{Sizes: sizes, Offsets: make([]int, len(sizes)), Ranks: ranks}
	at := 0
	for i, n := range sizes {
		if n > cell-at%cell {
			at = up(at, cell)
		}
		l.Offsets[i] = at
		at = up(at+n, align)
	}
	l.Shard = up(up(at, cell)/cell, ranks) / ranks * cell
	return l
}

// up is the next multiple of unit.
func up(n, unit int) int { return (n + unit - 1) / unit * unit }

// Numel is the number of elements of the buffer.
func (l Layout) Numel() int { return l.Shard * l.Ranks }

// Part gives the elements [lo, hi) of parameter i that lie in a rank's shard; none if lo = hi.
func (l Layout) Part(i, rank int) (lo, hi int) {
	begin := l.Offsets[i]
	lo = min(max(rank*l.Shard-begin, 0), l.Sizes[i])
	hi = min(max((rank+1)*l.Shard-begin, 0), l.Sizes[i])
	return lo, hi
}
