// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// Attention of half operands computes in float32. Rows of a head are widened into the worker's memory, where they lie
// together and in its second-level cache until they are used, and results are rounded when a head has them all.

// matrix is rows of one sample and head, from row first on: where a view has them, or widened.
type matrix[T float] struct {
	x             []T
	stride, first int
}

// from is row i and what comes behind it.
func (m matrix[T]) from(i int) []T { return m.x[min((i-m.first)*m.stride, len(m.x)):] }

// clear makes rows i0 to i1, of n elements, zero.
func (m matrix[T]) clear(i0, i1, n int) {
	if i0 >= i1 || n == 0 {
		return
	}
	x := m.from(i0)
	if m.stride == n {
		clear(x[:(i1-i0)*n])
		return
	}
	for i := range i1 - i0 {
		clear(x[i*m.stride:][:n])
	}
}

// halfRoom is the number of elements that a worker needs for rows of n elements of q, k or v: none where it works on
// the operands themselves.
func (a *attention) halfRoom(rows, n int) int {
	if a.half {
		return rows * n
	}
	return 0
}

// readHead is rows i0 to i1 of a sample and head of v. Those of a half type are widened in room.
func readHead[T float](t *task, ws *workspace, room []T, v *backend.View, b, h, i0, i1 int) matrix[T] {
	if !t.attention.half {
		x, stride := head[T](v, b, h, i0)
		return matrix[T]{x, stride, i0}
	}
	n := v.Shape[3]
	if i0 < i1 && n > 0 {
		ws.convertRows(t, t.half.widen, unsafe.Pointer(unsafe.SliceData(room)), n*4, rowOf(v, b, h, i0), v.Stride[2]*2,
			i1-i0, n)
	}
	return matrix[T]{room, n, i0}
}

// writeHead is rows of a sample and head of v from row i0 on, to be written: those of a half type are room, until
// storeHead. A single row has any distance, which a product needs to be one of rows.
func writeHead[T float](t *task, room []T, v *backend.View, b, h, i0 int) matrix[T] {
	n := v.Shape[3]
	switch {
	case n == 0: // strides of nothing may be any
		return matrix[T]{first: i0}
	case t.attention.half:
		return matrix[T]{room, n, i0}
	}
	x, stride := head[T](v, b, h, i0)
	return matrix[T]{x, max(stride, n), i0}
}

// storeHead rounds rows i0 to i1 of m to those of a sample and head of v, if v is of a half type.
func storeHead[T float](t *task, ws *workspace, m matrix[T], v *backend.View, b, h, i0, i1 int) {
	if n := v.Shape[3]; t.attention.half && i0 < i1 && n > 0 {
		ws.convertRows(t, t.half.down, rowOf(v, b, h, i0), v.Stride[2]*2, unsafe.Pointer(unsafe.SliceData(m.from(i0))),
			n*4, i1-i0, n)
	}
}

// rowOf is where row i of a sample and head is.
func rowOf(v *backend.View, b, h, i int) unsafe.Pointer {
	return at(v, v.Offset+b*v.Stride[0]+h*v.Stride[1]+i*v.Stride[2])
}

// convertRows converts rows of n elements; strides are in bytes.
func (ws *workspace) convertRows(t *task, f block, to unsafe.Pointer, toStride int, from unsafe.Pointer, fromStride,
	rows, n int) {
	for i := range rows {
		ws.p[0], ws.p[1] = unsafe.Add(to, i*toStride), unsafe.Add(from, i*fromStride)
		f(t.c, &ws.p, n)
	}
}

// wideBias is a call on half operands with a bias, input i, that is widened, and with room for its gradient; nil if
// there is none. Few calls have a bias, and their copies are whole.
func (d *Device) wideBias(c *backend.Call, i int) *widened {
	half := c.In[0].DType
	if !half.IsHalf() || c.NIn <= i || c.In[i].DType == dtype.Bool {
		return nil
	}
	if c.In[i].DType != half {
		d.fault(c, "mask is %s: want bool or %s", c.In[i].DType, half)
	}
	w := d.widened()
	w.call = *c
	d.widen(w, &w.call.In[i], &c.In[i], true)
	if c.NOut == 4 {
		d.widen(w, &w.call.Out[3], &c.Out[3], false)
	}
	return w
}
