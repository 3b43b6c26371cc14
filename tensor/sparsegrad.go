// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/lockstep-ml/lockstep/internal/backend"

// SparseGrads makes a Backward pass take the summands that [Embedding] would add to the gradient of table, a leaf, and
// not change the gradient: values [n,C], of the table's GradDType, are to be added to the rows [n] of the gradient, in
// their order. [AddRowsInto] does so with the bits of Backward. take is called during Backward, also with
// [DelayWeightGrads], for each Embedding of the table, and rows and values are gone when it returns. A table that other
// ops use, or one that a [Checkpoint] looks up, is an error. Of a table that is computed in parts
// (PartedSum.Vocabulary), row V, past the end of the table, represents those of other ranks: see [AddOwnRowsInto].
//
// The stages of a pipeline exchange the gradients of a tied embedding this way: a few rows instead of the whole table.
func SparseGrads(table *Tensor, take func(rows, values *Tensor)) BackwardOption {
	return func(r *run) {
		if r.sparse == nil {
			r.sparse = map[*Tensor]func(rows, values *Tensor){}
		}
		r.sparse[table] = take
	}
}

// sparse is what takes the gradient of input i, a table; nil if it is not sparse, or not wanted.
func (b *Back) sparse(i int) func(rows, values *Tensor) {
	if leaf := b.node.in[i].leaf; leaf != nil && b.Need(i) {
		return b.node.run.sparse[leaf]
	}
	return nil
}

// AddRowsInto adds values [n,C] to the rows of dst [V,C] that rows [n] (int32 or int64) name, one after the other. A
// row outside [0,V) is a fault that names it.
func AddRowsInto(c *Ctx, dst, rows, values *Tensor) { c.addRows("AddRowsInto", dst, rows, values, 0) }

// AddOwnRowsInto is [AddRowsInto] of the rows that are a rank's own: it leaves out row V, which represents those of
// other ranks.
func AddOwnRowsInto(c *Ctx, dst, rows, values *Tensor) {
	c.addRows("AddOwnRowsInto", dst, rows, values, 1)
}

func (c *Ctx) addRows(name string, dst, rows, values *Tensor, behind int) {
	c.wantWritable(name, dst)
	c.wantFloat(name, dst)
	c.wantIndex(name, rows)
	values.check(c, name)
	c.sameDType(name, dst, values)
	if dst.ndim != 2 || rows.ndim != 1 || values.ndim != 2 || values.Size(0) != rows.Numel() ||
		values.Size(1) != dst.Size(1) {
		c.fail(name, []*Tensor{dst, rows, values}, "want a table [V C], rows [n] and values [n C]")
	}
	a := ints(1, behind)
	a.flag = c.flag()
	c.launchAttrs(backend.OpEmbeddingGrad, &a, dst, c.materialize(name, rows), c.materialize(name, values))
}
