// SPDX-License-Identifier: Apache-2.0

package algorithms

import (
	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Algorithm is a way to reduce.
type Algorithm string

const (
	// Direct: each rank gets the slices of all others that it is to combine, combines them in the tree that package
	// comm specifies, and sends the result to all. It has the bits of one rank.
	Direct Algorithm = "direct"
	// Ring: partial sums go round from neighbour to neighbour, then the results. See Patarasuk and Yuan, Bandwidth
	// Optimal All-reduce Algorithms for Clusters of Workstations, 2009.
	Ring Algorithm = "ring"
)

// Row is a row of the table by which reductions are done: the first that applies counts.
type Row struct {
	When      string
	Algorithm Algorithm
	applies   func(k key) bool
}

// key is what the choice depends on, the same on all ranks.
type key struct {
	op    comm.Op
	dtype dtype.DType
	bytes int // of the whole buffer
	ranks int
	fast  bool
}

// Table is the choice, in the order in which it is made.
var Table = []Row{
	{"tree order (the default)", Direct, func(k key) bool { return !k.fast }},
	{"reduce", Direct, func(k key) bool { return k.op == comm.Reduce }},
	{"at most 2 ranks, where a ring sends the same", Direct, func(k key) bool { return k.ranks <= 2 }},
	{"float16 and bfloat16, which a ring rounds at every rank", Direct, func(k key) bool { return k.dtype.IsHalf() }},
	{"less than 1 MiB per rank", Direct, func(k key) bool { return k.bytes/k.ranks < ringBytes }},
	{"otherwise", Ring, func(key) bool { return true }},
}

// ringBytes is the size of a rank's slice from which on a ring takes no longer. Over the loopback interface, by
// bench/comm with 3, 4 and 8 ranks: with 1 MiB in all a ring takes 1.1 to 1.3 times as long, with 25 MiB as long (0.8
// to 1.4 times, on a noisy machine).
const ringBytes = 1 << 20

// Choose says how a reduction of so many elements per rank and block is done.
func Choose(c *comm.Call, ranks int) Algorithm {
	k := key{op: c.Op, dtype: c.DType, bytes: c.Count * c.DType.Size(), ranks: ranks, fast: c.Fast}
	if c.Op == comm.ReduceScatter {
		k.bytes *= ranks
	}
	for _, row := range Table {
		if row.applies(k) {
			return row.Algorithm
		}
	}
	panic("algorithms: the table has no last row")
}
