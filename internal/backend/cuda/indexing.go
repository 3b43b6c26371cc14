// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"math/bits"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// indexingOps are those of kernels/indexing.cu.
var indexingOps = map[backend.Op]row{
	backend.OpEmbedding:     {embedding, anyType},
	backend.OpEmbeddingGrad: {embeddingGrad, floats},
	backend.OpGather:        {gather, anyType},
	backend.OpScatterAdd:    {scatterAdd, signed},
}

// rowBlock is the block of threads for rows of so many units: as many threads a row as there is work for, in warps.
func rowBlock(units int) [3]uint32 {
	across := uint32(min(threads, max(32, roundUp(units, 32))))
	return [3]uint32{across, threads / across, 1}
}

func embedding(s *stream, c *backend.Call) {
	table, ids, out := &c.In[0], &c.In[1], &c.Out[0]
	vocabulary, cols := table.Rows()
	n := ids.Numel()
	s.wantRows(c, table, "input", 0)
	s.wantVector(c, out, table.DType, n*cols, "output")
	s.wantIndices(c, ids, n)
	if n == 0 {
		return
	}
	from, to, bytes := s.addr(table), s.addr(out), cols*table.DType.Size()
	name, unit := "embedding_1", 1
	switch at := from | to | cuda.Ptr(bytes); {
	case at%16 == 0:
		name, unit = "embedding_16", 16
	case at%2 == 0:
		name, unit = "embedding_2", 2
	}
	units := bytes / unit
	var a args
	a.ptr(from)
	s.indices(&a, ids)
	a.ptr(to)
	a.i64(n)
	a.i64(units)
	a.i64(vocabulary)
	s.packFault(&a, c)
	block := rowBlock(units)
	s.kernel(name, [3]uint32{s.blocks(c, n, int(block[1])), min(65535, blocksFor(units, 4*int(block[0]))), 1}, block, 0,
		&a)
}

// blocks is blocksFor where every block is needed.
func (s *stream) blocks(c *backend.Call, n, perBlock int) uint32 {
	if (n+perBlock-1)/perBlock > 1<<31-1 {
		s.fault(c, "%d rows are too many for a kernel", n)
	}
	return blocksFor(n, perBlock)
}

// The geometry of the sort in kernels/indexing.cu.
const (
	sortBins    = 256
	sortTile    = 2048
	sortThreads = 256
)

// sort sorts pairs of keys up to limit and positions stably. fill queues what makes the pairs.
func (s *stream) sort(n, limit int, fill func(keys, positions cuda.Ptr)) (keys, positions cuda.Ptr) {
	tiles := (n + sortTile - 1) / sortTile
	var lists [2][2]cuda.Ptr
	for i := range lists {
		lists[i] = [2]cuda.Ptr{s.scratch(4 * n), s.scratch(4 * n)}
	}
	if n == 0 {
		return lists[0][0], lists[0][1]
	}
	fill(lists[0][0], lists[0][1])
	counts, from := s.scratch(4*sortBins*tiles), 0
	for shift := 0; shift < bits.Len(uint(limit)); shift += 8 {
		s.sortPass(lists[from], lists[1-from], counts, n, tiles, shift)
		from = 1 - from
	}
	return lists[from][0], lists[from][1]
}

// sortPass sorts by 8 bits of the keys.
func (s *stream) sortPass(from, to [2]cuda.Ptr, counts cuda.Ptr, n, tiles, shift int) {
	grid, block := [3]uint32{uint32(tiles), 1, 1}, [3]uint32{sortThreads, 1, 1}
	var a args
	a.ptr(from[0])
	a.ptr(counts)
	a.i32(n)
	a.i32(shift)
	s.kernel("sort_count", grid, block, 0, &a)
	a = args{}
	a.ptr(counts)
	a.i32(sortBins * tiles)
	s.kernel("sort_scan", [3]uint32{1, 1, 1}, [3]uint32{1024, 1, 1}, 0, &a)
	a = args{}
	a.ptr(from[0])
	a.ptr(from[1])
	a.ptr(to[0])
	a.ptr(to[1])
	a.ptr(counts)
	a.i32(n)
	a.i32(shift)
	s.kernel("sort_place", grid, block, 0, &a)
}

func embeddingGrad(s *stream, c *backend.Call) {
	ids, dy, table := &c.In[0], &c.In[1], &c.Out[0]
	vocabulary, cols := table.Rows()
	n, dt, limit := ids.Numel(), table.DType, vocabulary+c.Ints[1]
	s.wantIndices(c, ids, n)
	s.wantVector(c, dy, dt, n*cols, "dy")
	s.wantVector(c, table, dt, vocabulary*cols, "dtable")
	if n > 1<<30 || limit >= 1<<32 {
		s.fault(c, "%d ids below %d: want at most %d and %d", n, limit, 1<<30, 1<<32-1)
	}
	sortedIDs, positions := s.sort(n, limit, func(keys, positions cuda.Ptr) {
		var a args
		s.indices(&a, ids)
		a.ptr(keys)
		a.ptr(positions)
		a.i32(n)
		a.i64(limit)
		s.packFault(&a, c)
		s.kernel("embedding_keys", [3]uint32{blocksFor(n, threads), 1, 1}, block256, 0, &a)
	})
	if vocabulary*cols == 0 {
		return
	}
	starts := s.scratch(4 * (vocabulary + 1)) // of each id's positions
	var a args
	a.ptr(sortedIDs)
	a.ptr(starts)
	a.i32(n)
	a.i64(vocabulary)
	s.kernel("sort_starts", [3]uint32{s.blocks(c, vocabulary+1, threads), 1, 1},
		block256, 0, &a)
	a = args{}
	a.ptr(s.addr(dy))
	a.ptr(positions)
	a.ptr(starts)
	a.ptr(s.addr(table))
	a.i64(vocabulary)
	a.i32(cols)
	a.i32(c.Ints[0])
	block := rowBlock((cols*dt.Size() + 15) / 16)
	s.kernel("embedding_grad_"+suffix(dt), [3]uint32{s.blocks(c, vocabulary, int(block[1])), 1, 1}, block, 0, &a)
}

// wantLines looks at the operands of gather and scatter-add: data, an index, and values of the index's shape.
func (s *stream) wantLines(c *backend.Call, data, index, values *backend.View) (dim int) {
	dim, err := c.WantLines(data, index, values)
	if err != nil {
		s.fault(c, "%v", err)
	}
	s.wantIndices(c, index, index.Numel())
	return dim
}

// packLines adds struct Lines. skip leaves dim out of the walk.
func packLines(a *args, data, index, values *backend.View, dim int, skip bool) (n int) {
	shape := index.Shape
	if skip {
		shape[dim] = 1
	}
	n = 1
	for k := range backend.MaxDims {
		if k >= index.NDim {
			shape[k] = 1
		}
		n *= shape[k]
		a.i64(shape[k])
	}
	for _, v := range []*backend.View{data, values} {
		for k := range backend.MaxDims {
			a.i64(v.Stride[k])
		}
	}
	a.i64(n)
	a.i64(data.Shape[dim])
	a.i32(index.NDim)
	a.i32(dim)
	return n
}

func gather(s *stream, c *backend.Call) {
	x, index, out := &c.In[0], &c.In[1], &c.Out[0]
	dim := s.wantLines(c, x, index, out)
	if out.Numel() == 0 {
		return
	}
	var a args
	a.ptr(s.addr(x))
	s.indices(&a, index)
	a.ptr(s.addr(out))
	n := packLines(&a, x, index, out, dim, false)
	s.packFault(&a, c)
	size := map[int]string{1: "gather_1", 2: "gather_2", 4: "gather_4", 8: "gather_8"}[x.DType.Size()]
	s.kernel(size, s.gridFor(n), block256, 0, &a)
}

func scatterAdd(s *stream, c *backend.Call) {
	src, index, out := &c.In[0], &c.In[1], &c.Out[0]
	dim := s.wantLines(c, out, index, src)
	dt := out.DType
	if !out.Contiguous() {
		s.fault(c, "the output is not contiguous")
	}
	if index.Numel() == 0 {
		return
	}
	length, step := index.Shape[dim], 1
	for k := dim + 1; k < index.NDim; k++ {
		step *= index.Shape[k]
	}
	n := index.Numel()
	sorting := n <= 1<<30 && out.Numel() < 1<<32-1
	if dt.IsHalf() && length > 1 && !sorting {
		s.fault(c, "%d indices into %d elements of %s: want at most %d and %d", n, out.Numel(), dt, 1<<30, 1<<32-2)
	}
	if sorting && length > 1 && (dt.IsHalf() || length > longLine && n/length < manyLines) {
		s.scatterSorted(c, dim)
		return
	}
	var a args
	a.ptr(s.addr(src))
	s.indices(&a, index)
	a.ptr(s.addr(out))
	lines := packLines(&a, out, index, src, dim, true)
	a.i64(length)
	a.i64(step)
	a.i64(src.Stride[dim])
	a.i64(out.Stride[dim])
	s.packFault(&a, c)
	s.kernel("scatter_add_"+suffix(dt), s.gridFor(lines), block256, 0, &a)
}

// Lines of more elements are sorted by their targets, unless there are so many lines that a thread for each keeps the
// device busy. Neither changes the order of a sum.
const (
	longLine  = 64
	manyLines = 8192
)

// scatterSorted sorts the elements by where they go to.
func (s *stream) scatterSorted(c *backend.Call, dim int) {
	src, index, out := &c.In[0], &c.In[1], &c.Out[0]
	n, limit := index.Numel(), out.Numel()
	grid, block := s.gridFor(n), block256
	keys, positions := s.sort(n, limit, func(keys, positions cuda.Ptr) {
		var a args
		s.indices(&a, index)
		a.ptr(keys)
		a.ptr(positions)
		packLines(&a, out, index, src, dim, false)
		a.i64(out.Stride[dim])
		a.u32(uint32(limit))
		s.packFault(&a, c)
		s.kernel("scatter_keys", grid, block, 0, &a)
	})
	var a args
	a.ptr(s.addr(src))
	a.ptr(keys)
	a.ptr(positions)
	a.ptr(s.addr(out))
	packLines(&a, out, index, src, dim, false)
	a.u32(uint32(limit))
	s.kernel("scatter_runs_"+suffix(out.DType), grid, block, 0, &a)
}
