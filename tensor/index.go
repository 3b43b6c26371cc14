// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"

	"github.com/lockstep-ml/lockstep/internal/backend"
)

// Embedding looks up rows of table [V,C] by ids (int32 or int64, any shape): the result
// has the shape of ids with C appended. An id outside [0,V) is a fault that names it.
func Embedding(c *Ctx, table, ids *Tensor) *Tensor {
	if blocks := table.quantized(); blocks != nil && c.parted == nil {
		return c.embeddingQuantized(blocks, ids, table.shape[1])
	}
	table.check(c, "Embedding")
	c.wantIndex("Embedding", ids)
	ins := []*Tensor{table, ids}
	if c.parted != nil && (c.parted.Rowwise || c.parted.Vocabulary == nil) {
		c.wantWhole("Embedding", ins...)
	}
	c.wantFloat("Embedding", table)
	if table.ndim != 2 || ids.ndim+1 > MaxDims {
		c.fail("Embedding", ins, "want a table [V C] and ids of at most %d dims", MaxDims-1)
	}
	table = Contiguous(c, table)
	if c.parted != nil && c.parted.Ranks != nil {
		return partedEmbedding(c, table, ids)
	}
	flat := c.materialize("Embedding", ids).reshaped([]int{ids.Numel()})
	y := c.empty("Embedding", table.dtype, flat.shape[0], table.shape[1])
	c.launch(backend.OpEmbedding, y, table, flat)
	out := y.reshaped(append(slices.Clone(ids.Shape()), table.shape[1]))
	c.record("Embedding", []*Tensor{out}, []*Tensor{table}, []*Tensor{flat}, func(b *Back) {
		g := b.materialize("Embedding", b.Grad(0)).reshaped(y.Shape())
		if take := b.sparse(0); take != nil {
			take(flat, b.convert("Embedding", g, table.GradDType()))
			return
		}
		b.separate(0, func(b *Back) { b.addLookup("Embedding", table, flat, g, 0) }, flat, g)
	})
	return out
}

// addLookup adds g [n,C] to the gradient of input 0, the table, at rows [n]. The rows of `behind` ids behind the table
// are left out.
func (b *Back) addLookup(name string, table, rows, g *Tensor, behind int) {
	d, filled := b.into(0)
	if d == nil {
		d = b.empty(name, table.GradDType(), table.Shape()...)
		b.Set(0, d)
	}
	a := ints(0, behind)
	if filled {
		a = ints(1, behind)
	}
	b.launchAttrs(backend.OpEmbeddingGrad, &a, d, rows, b.convert(name, g, d.dtype))
}

// OneHot has a 1 at each id (int32 or int64, any shape) and 0 elsewhere: the result has the shape of ids with the
// number of classes appended, and dtype dt. An id outside [0, classes) is a fault that names it.
func OneHot(c *Ctx, ids *Tensor, classes int, dt DType) *Tensor {
	const name = "OneHot"
	c.wantIndex(name, ids)
	if classes < 0 || ids.ndim+1 > MaxDims {
		c.fail(name, []*Tensor{ids}, "%d classes: want at least 0, and ids of at most %d dims", classes, MaxDims-1)
	}
	if dt == Uint8 || dt == Bool {
		return Cast(c, OneHot(c, ids, classes, Int32), dt)
	}
	n := ids.Numel()
	y := c.full(name, dt, 0, append(slices.Clone(ids.Shape()), classes))
	one := Expand(c, Scalar(c, dt, 1), n, 1)
	a := ints(1)
	c.launchAttrs(backend.OpScatterAdd, &a, y.reshaped([]int{n, classes}), one,
		c.materialize(name, ids).reshaped([]int{n, 1}))
	return y
}

// Gather picks x's elements by index along dim d, as torch.gather: the result has the
// shape of index, which has as many dims as x and is not larger in the other dims.
func Gather(c *Ctx, x *Tensor, d int, index *Tensor) *Tensor {
	x.check(c, "Gather")
	d = c.wantGatherIndex("Gather", x, d, index)
	index = c.materialize("Gather", index)
	y := c.empty("Gather", x.dtype, index.Shape()...)
	a := ints(d)
	c.launchAttrs(backend.OpGather, &a, y, x, index)
	if x.dtype.IsFloat() {
		from := x.Shape()
		c.record("Gather", []*Tensor{y}, []*Tensor{x}, []*Tensor{index}, func(b *Back) {
			g := Zeros(b.Ctx, x.dtype, from...)
			b.launchAttrs(backend.OpScatterAdd, &a, g, b.materialize("Gather", b.Grad(0)), index)
			b.Set(0, g)
		})
	}
	return y
}

// ScatterAdd is x with src's elements added at index along dim d, as torch.scatter_add.
// src has the shape of index. Elements with the same target are added in the order of
// src.
func ScatterAdd(c *Ctx, x *Tensor, d int, index, src *Tensor) *Tensor {
	x.check(c, "ScatterAdd")
	src.check(c, "ScatterAdd")
	c.autocast("ScatterAdd", &x, &src)
	c.sameDType("ScatterAdd", x, src)
	c.wantFloat("ScatterAdd", x)
	d = c.wantGatherIndex("ScatterAdd", x, d, index)
	if !slices.Equal(src.Shape(), index.Shape()) {
		c.fail("ScatterAdd", []*Tensor{x, index, src}, "want src of index's shape")
	}
	index = c.materialize("ScatterAdd", index)
	y := c.emptyLike("ScatterAdd", x)
	c.launch(backend.OpCopy, y, x)
	a := ints(d)
	c.launchAttrs(backend.OpScatterAdd, &a, y, c.materialize("ScatterAdd", src), index)
	c.record("ScatterAdd", []*Tensor{y}, []*Tensor{x, src}, []*Tensor{index}, func(b *Back) {
		b.Set(0, b.Grad(0))
		if b.Need(1) {
			b.Set(1, Gather(b.Ctx, b.Grad(0), d, index))
		}
	})
	return y
}

// wantGatherIndex checks index against x and returns the normalised dim.
func (c *Ctx) wantGatherIndex(op string, x *Tensor, d int, index *Tensor) int {
	c.wantIndex(op, index)
	d = x.dimIndex(c, op, d)
	ok := index.ndim == x.ndim && x.ndim > 0
	for i := 0; ok && i < x.ndim; i++ {
		ok = i == d || index.shape[i] <= x.shape[i]
	}
	if !ok {
		c.fail(op, []*Tensor{x, index}, "want an index with as many dims (at least 1), none larger except dim %d", d)
	}
	return d
}
