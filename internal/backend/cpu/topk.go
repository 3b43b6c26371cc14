// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// topKKernel keeps the K best elements of a row in a heap.
func topKKernel(d *Device, c *backend.Call) {
	x, out, index := &c.In[0], &c.Out[0], &c.Out[1]
	rows, cols := x.Rows()
	_, k := out.Rows()
	same := x.NDim > 0 && out.NDim == x.NDim && k <= cols && backend.SameShape(out, index)
	for i := 0; same && i < x.NDim-1; i++ {
		same = out.Shape[i] == x.Shape[i]
	}
	if !same {
		d.fault(c, "input of shape %v, outputs of shape %v and %v", x.Shape[:x.NDim], out.Shape[:out.NDim],
			index.Shape[:index.NDim])
	}
	d.wantRows(c, x, "input", 0)
	d.wantRows(c, out, "output", 0)
	d.wantVector(c, index, dtype.Int64, rows*k, "indices")
	t := d.begin(c)
	defer t.end()
	t.n[0], t.n[1] = cols, k
	grain := max(1, elementGrain/4/max(1, cols))
	switch x.DType {
	case dtype.Float32:
		t.do(rows, grain, topKRows[float32])
	case dtype.Float64:
		t.do(rows, grain, topKRows[float64])
	case dtype.Int32:
		t.do(rows, grain, topKRows[int32])
	case dtype.Int64:
		t.do(rows, grain, topKRows[int64])
	default:
		d.fault(c, "no kernel for %s", x.DType)
	}
}

func topKRows[T number](t *task, _ *workspace, lo, hi int) {
	cols, k := t.n[0], t.n[1]
	if k == 0 {
		return
	}
	for r := lo; r < hi; r++ {
		o := ranking[T]{row[T](&t.c.In[0], r, cols), t.c.Ints[0] == 1}
		best := row[int64](&t.c.Out[1], r, k)
		o.pick(best)
		out := row[T](&t.c.Out[0], r, k)
		for i, at := range best {
			out[i] = o.x[at]
		}
	}
}

// ranking orders the indices of a row.
type ranking[T number] struct {
	x        []T
	smallest bool
}

// before reports whether index a comes before b.
func (o *ranking[T]) before(a, b int64) bool {
	p, q := o.x[a], o.x[b]
	if o.smallest {
		p, q = q, p
	}
	switch {
	case p > q || p != p && q == q:
		return true
	case q > p || q != q && p == p:
		return false
	}
	return a < b
}

// pick fills best with the first indices in order.
func (o *ranking[T]) pick(best []int64) {
	for i := range best {
		best[i] = int64(i)
	}
	for i := len(best)/2 - 1; i >= 0; i-- {
		o.sink(best, i)
	}
	for i := int64(len(best)); i < int64(len(o.x)); i++ {
		if o.before(i, best[0]) {
			best[0] = i
			o.sink(best, 0)
		}
	}
	for n := len(best) - 1; n > 0; n-- {
		best[0], best[n] = best[n], best[0]
		o.sink(best[:n], 0)
	}
}

// sink restores the heap, whose root comes last in order, from place i on.
func (o *ranking[T]) sink(heap []int64, i int) {
	for {
		child := 2*i + 1
		if child >= len(heap) {
			return
		}
		if child+1 < len(heap) && o.before(heap[child], heap[child+1]) {
			child++
		}
		if !o.before(heap[i], heap[child]) {
			return
		}
		heap[i], heap[child] = heap[child], heap[i]
		i = child
	}
}

// cumSumKernel adds each row up from one end to the other.
func cumSumKernel(d *Device, c *backend.Call) {
	d.sameShapes(c, 1)
	d.wantRows(c, &c.In[0], "input", 0)
	d.wantRows(c, &c.Out[0], "output", 0)
	t := d.begin(c)
	defer t.end()
	rows, cols := c.In[0].Rows()
	t.n[0] = cols
	grain := max(1, elementGrain/max(1, cols))
	switch c.In[0].DType {
	case dtype.Float32:
		t.do(rows, grain, cumSumRows[float32, float64])
	case dtype.Float64:
		t.do(rows, grain, cumSumRows[float64, float64])
	case dtype.Int32:
		t.do(rows, grain, cumSumRows[int32, int64])
	case dtype.Int64:
		t.do(rows, grain, cumSumRows[int64, int64])
	default:
		d.fault(c, "no kernel for %s", c.In[0].DType)
	}
}

func cumSumRows[T number, A accumulator](t *task, _ *workspace, lo, hi int) {
	cols, first, step := t.n[0], 0, 1
	if t.c.Ints[0] == 1 {
		first, step = cols-1, -1
	}
	for r := lo; r < hi; r++ {
		x, y := row[T](&t.c.In[0], r, cols), row[T](&t.c.Out[0], r, cols)
		var sum A
		for i, at := 0, first; i < cols; i, at = i+1, at+step {
			sum += A(x[at])
			y[at] = T(sum)
		}
	}
}
