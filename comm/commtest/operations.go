// SPDX-License-Identifier: Apache-2.0

package commtest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// arena gives out pieces of ranks' memory: the engine's own, ordinary memory, or one or the other by rank.
type arena struct {
	memory [][]byte // by rank; nil: ordinary
	used   []int
}

// arenaBytes is room for the small cases, or with the large ones.
func arenaBytes() int {
	if testing.Short() {
		return 1 << 20
	}
	return 3*8*(largeCount+8) + 1<<10 // three buffers of the largest dtype
}

// newArena gives out ordinary memory to n ranks.
func newArena(n int) *arena { return &arena{memory: make([][]byte, n), used: make([]int, n)} }

// newArenas returns the three kinds.
func newArenas(t *testing.T, groups []*comm.Group) map[string]*arena {
	n := len(groups)
	all, mixed := newArena(n), newArena(n)
	zeros := make([]byte, arenaBytes())
	for r, b := range alloc(t, groups, len(zeros)) {
		require.True(t, bytes.Equal(b, zeros), "not zeroed")
		all.memory[r] = b
		if r%2 == 0 {
			mixed.memory[r] = b
		}
	}
	return map[string]*arena{"engine's memory": all, "ordinary memory": newArena(n), "mixed memory": mixed}
}

// alloc returns memory of the groups' engines, which is freed when they are closed.
func alloc(t *testing.T, groups []*comm.Group, n int) [][]byte {
	list := make([][]byte, len(groups))
	each(groups, func(g *comm.Group) func() {
		m, err := g.Alloc(n)
		if err != nil {
			return func() { require.NoError(t, err) }
		}
		return func() {
			list[g.Rank()] = m.Bytes
			t.Cleanup(func() { require.NoError(t, m.Free()) })
		}
	}, func(r int, result func()) { result() })
	return list
}

func (a *arena) reset() { clear(a.used) }

// place returns a piece at an address that is aligned for every dtype and no more.
func (a *arena) place(rank, n int) []byte {
	from := a.used[rank] + 8
	a.used[rank] = (from + n + 7) &^ 7
	if a.memory[rank] == nil || from+n > len(a.memory[rank]) {
		return comm.Aligned(n + 8)[8 : n+8]
	}
	return a.memory[rank][from : from+n : from+n]
}

// bench is one group under test and the memory of the current case.
type bench struct {
	t      *testing.T
	groups []*comm.Group
	arena  *arena
	n      int
	count  int
	dtype  dtype.DType
	seed   uint64
}

// reductions come in turn: the next number of elements or ranks has the next, so that every dtype has all of them, in
// every kind of memory.
var reductions = []comm.ReduceOp{comm.Sum, comm.Min, comm.Max, comm.Product}

// reductionOf is the one whose turn it is.
func reductionOf(d dtype.DType, turn int) comm.ReduceOp {
	if d == dtype.Bool {
		return []comm.ReduceOp{comm.Min, comm.Max}[turn%2]
	}
	return reductions[turn%len(reductions)]
}

func (e Engine) operations(t *testing.T, n int) {
	groups := e.start(t, n, comm.Options{})
	arenas := newArenas(t, groups)
	switch {
	case e.Slow:
	case !testing.Short():
		large(t, groups, arenas, ofEachSize[n%2], reductions)
	case n == 4:
		large(t, groups, arenas, []dtype.DType{dtype.Float32, dtype.BFloat16}, []comm.ReduceOp{comm.Sum})
	}
	for kind, a := range arenas {
		counts := []int{0, 1, 7, 33, 1000}
		switch {
		case testing.Short() || e.Slow && kind == "ordinary memory":
			counts = []int{0, 33, 1001}
		case e.Slow:
			counts = nil // it is all the same to the device
		case kind == "mixed memory":
			counts = []int{1, 1001}
		}
		for i, count := range counts {
			for _, d := range append([]dtype.DType{dtype.Bool}, DTypes...) {
				b := &bench{t: t, groups: groups, arena: a, n: n, count: count, dtype: d,
					seed: uint64(count)<<8 | uint64(d)}
				b.moves(fmt.Sprintf("%s, %v × %d", kind, d, count))
				op := reductionOf(d, i+n)
				what := fmt.Sprintf("%s, %v of %v × %d", kind, op, d, count)
				b.allReduce(what, op)
				b.reduceScatter(what, op)
			}
		}
	}
	wait(t, issue(groups, func(_ int, g *comm.Group) *comm.Handle { return g.Barrier() }))
}

func (b *bench) of(list [][]byte, r int) comm.Buffer { return comm.Bytes(list[r], b.dtype) }

// call carries out the calls that f issues.
func (b *bench) call(f func(r int, g *comm.Group) *comm.Handle) {
	b.t.Helper()
	wait(b.t, issue(b.groups, f))
}

func (b *bench) random(blocks int) [][]byte {
	b.seed++
	return random(b.arena.place, b.n, blocks*b.count, b.dtype, b.seed)
}

// same requires equal bytes; it is quicker than require.Equal and shows less.
func (b *bench) same(want, got []byte, what string, rank int) {
	b.t.Helper()
	if !bytes.Equal(want, got) {
		size := b.dtype.Size()
		for i := 0; i < len(want); i += size {
			if !bytes.Equal(want[i:i+size], got[i:i+size]) {
				require.Failf(b.t, "wrong result", "%s, rank %d of %d: element %d is %x: want %x", what, rank, b.n,
					i/size, got[i:i+size], want[i:i+size])
			}
		}
	}
}

// allReduce checks all-reduce and reduce.
func (b *bench) allReduce(what string, op comm.ReduceOp) {
	b.t.Helper()
	b.arena.reset()
	in := b.random(1)
	want := Combine(in, b.dtype, op)
	kept := clone(in)
	b.call(func(r int, g *comm.Group) *comm.Handle { return g.AllReduce(b.of(in, r), op) })
	for r := range in {
		b.same(want, in[r], "all-reduce "+what, r)
		copy(in[r], kept[r])
	}
	root := b.count % b.n
	b.call(func(r int, g *comm.Group) *comm.Handle { return g.Reduce(b.of(in, r), op, root) })
	for r := range in {
		if r == root {
			b.same(want, in[r], "reduce "+what, r)
		} else {
			b.same(kept[r], in[r], "reduce, not the root, "+what, r)
		}
	}
}

func (b *bench) reduceScatter(what string, op comm.ReduceOp) {
	b.t.Helper()
	b.arena.reset()
	in, out := b.random(b.n), b.random(1)
	want := Combine(in, b.dtype, op)
	block := b.count * b.dtype.Size()
	b.call(func(r int, g *comm.Group) *comm.Handle { return g.ReduceScatter(b.of(out, r), b.of(in, r), op) })
	for r := range out {
		b.same(want[r*block:(r+1)*block], out[r], "reduce-scatter "+what, r)
	}
	b.call(func(r int, g *comm.Group) *comm.Handle { // into its own part of the input
		return g.ReduceScatter(comm.Bytes(in[r][r*block:(r+1)*block], b.dtype), b.of(in, r), op)
	})
	for r := range in {
		b.same(want[r*block:(r+1)*block], in[r][r*block:(r+1)*block], "reduce-scatter in place "+what, r)
	}
}

// moves checks the operations that only copy.
func (b *bench) moves(what string) {
	b.t.Helper()
	b.arena.reset()
	block := b.count * b.dtype.Size()
	root := (b.count + 1) % b.n
	one, all, to := b.random(1), b.random(b.n), b.random(b.n)
	row := bytes.Join(one, nil)

	b.call(func(r int, g *comm.Group) *comm.Handle { return g.AllGather(b.of(to, r), b.of(one, r)) })
	for r := range to {
		b.same(row, to[r], "all-gather "+what, r)
		clear(to[r])
		copy(to[r][r*block:], one[r])
	}
	b.call(func(r int, g *comm.Group) *comm.Handle { // this rank's block is there
		return g.AllGather(b.of(to, r), comm.Bytes(to[r][r*block:(r+1)*block], b.dtype))
	})
	for r := range to {
		b.same(row, to[r], "all-gather in place "+what, r)
		clear(to[r])
	}
	b.call(func(r int, g *comm.Group) *comm.Handle { return g.Gather(b.of(to, r), b.of(one, r), root) })
	b.same(row, to[root], "gather "+what, root)

	b.call(func(r int, g *comm.Group) *comm.Handle { return g.AllToAll(b.of(to, r), b.of(all, r)) })
	for r := range to {
		for from := range all {
			b.same(all[from][r*block:(r+1)*block], to[r][from*block:(from+1)*block], "all-to-all "+what, r)
		}
	}
	b.call(func(r int, g *comm.Group) *comm.Handle { return g.Scatter(b.of(one, r), b.of(all, r), root) })
	for r := range one {
		b.same(all[root][r*block:(r+1)*block], one[r], "scatter "+what, r)
	}
	b.call(func(r int, g *comm.Group) *comm.Handle { return g.Broadcast(b.of(all, r), root) })
	for r := range all {
		b.same(all[root], all[r], "broadcast "+what, r)
	}
}

// largeCount is the number of elements of a buffer that goes through many chunks of every engine, and fills none to the
// end.
const largeCount = 1e6 + 3

// ofEachSize are dtypes with elements of 1, 2, 4 and 8 bytes, for even numbers of ranks and for odd ones.
var ofEachSize = [2][]dtype.DType{
	{dtype.Bool, dtype.BFloat16, dtype.Float32, dtype.Float64},
	{dtype.Uint8, dtype.Float16, dtype.Int32, dtype.Int64},
}

// large checks the operations on such buffers, or, where a buffer has a block for each rank, on blocks that make up as
// much. Each dtype has another kind of memory and another reduction, and with another number of ranks others: what
// divides buffers into chunks knows the size of an element alone, and the small buffers have all.
func large(t *testing.T, groups []*comm.Group, arenas map[string]*arena, dtypes []dtype.DType, ops []comm.ReduceOp) {
	n := len(groups)
	kinds := slices.Sorted(maps.Keys(arenas))
	for i, d := range dtypes {
		turn := i + n/2
		kind := kinds[turn%len(kinds)]
		b := &bench{t: t, groups: groups, arena: arenas[kind], n: n, dtype: d, seed: uint64(n)<<8 | uint64(d)}
		op := ops[turn%len(ops)]
		if d == dtype.Bool {
			op = reductionOf(d, turn)
		}
		what := fmt.Sprintf("large, %s, %v of %v", kind, op, d)
		b.count = largeCount
		b.allReduce(what, op)
		b.count = (largeCount + n - 1) / n
		b.reduceScatter(what, op)
		b.moves(fmt.Sprintf("large, %s, %v", kind, d))
	}
}
