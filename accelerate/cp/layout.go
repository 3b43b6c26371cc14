// SPDX-License-Identifier: Apache-2.0

package cp

import "fmt"

// Layout is which rank has which chunks of every sequence.
type Layout struct {
	Chunks int // of a sequence: a power of two
	Size   int // ranks along cp
	Rank   int // this one

	contiguous bool // each rank has neighbouring chunks: the control of a test of the ranks' work
}

// NewLayout checks a layout. 0 chunks stands for two per rank.
func NewLayout(chunks, size, rank int) (Layout, error) {
	switch {
	case chunks == 0 && size > 1:
		chunks = 2 * size
	case chunks == 0:
		chunks = 1
	}
	l := Layout{Chunks: chunks, Size: size, Rank: rank}
	switch {
	case size < 1 || rank < 0 || rank >= size:
		return l, fmt.Errorf("cp: rank %d of %d: want one in [0, %d)", rank, size, max(size, 1))
	case size&(size-1) != 0:
		return l, fmt.Errorf("cp: cp_size %d: want a power of two, so that the sums of the ranks form a tree", size)
	case chunks < 1 || chunks&(chunks-1) != 0 || size > 1 && chunks < 2*size:
		return l, fmt.Errorf("cp: cp_chunks %d with cp_size %d: want a power of two that is at least %d, two for each "+
			"rank", chunks, size, 2*size)
	}
	return l, nil
}

// Order lists the chunks of all ranks, rank by rank: the first chunk and the last, the second and the last but one, and
// so on. It is the order of sums over chunks.
func (l Layout) Order() []int {
	if l.Chunks == 1 {
		return []int{0}
	}
	order := make([]int, 0, l.Chunks)
	for i := range l.Chunks {
		if l.contiguous {
			order = append(order, i)
		}
	}
	for i := range (l.Chunks - len(order)) / 2 {
		order = append(order, i, l.Chunks-1-i)
	}
	return order
}

// PerRank is how many chunks each rank has.
func (l Layout) PerRank() int { return l.Chunks / l.Size }

// Own lists this rank's chunks in the order of sums.
func (l Layout) Own() []int {
	n := l.PerRank()
	return l.Order()[l.Rank*n : (l.Rank+1)*n]
}

// Length is the number of tokens of a chunk of sequences of so many: the last ones may have padding.
func (l Layout) Length(tokens int) int { return (tokens + l.Chunks - 1) / l.Chunks }

// blocks is how many chunks of keys the queries of a chunk may see.
func (l Layout) blocks(chunk int, causal bool) int {
	if causal {
		return chunk + 1
	}
	return l.Chunks
}
