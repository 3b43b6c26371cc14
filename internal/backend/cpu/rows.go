// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

// rowwise is the kernel of an op that works along the last dim of contiguous operands of In[0]'s dtype: the output and
// the first inputs. check, if any, looks at the rest. half, if not nil, widens half operands row by row; without it
// they are widened as a whole.
func rowwise(ins int, check func(*Device, *backend.Call), f32, f64, half body) kernel {
	return kernel{outs: 1, ins: ins, raw: half != nil, run: func(d *Device, c *backend.Call) {
		f := f32
		switch c.In[0].DType {
		case dtype.Float32:
		case dtype.Float64:
			f = f64
		default:
			if f = half; f == nil || !c.In[0].DType.IsHalf() {
				d.fault(c, "no kernel for %s", c.In[0].DType)
			}
		}
		if check != nil {
			check(d, c)
		} else {
			d.sameShapes(c, ins)
			for i := range ins {
				d.wantRows(c, &c.In[i], "input", i)
			}
			d.wantRows(c, &c.Out[0], "output", 0)
		}
		t := d.begin(c)
		rows, cols := c.In[0].Rows()
		t.n[0] = cols
		grain := elementGrain / 4
		if t.overlap {
			grain = vecmath.NonTemporalLength
		}
		t.do(rows, max(1, grain/max(1, cols)), f)
		t.end()
	}}
}

// wantRows faults unless the view is contiguous and of In[0]'s dtype.
func (d *Device) wantRows(c *backend.Call, v *backend.View, what string, i int) {
	if err := c.WantRows(v); err != nil {
		d.fault(c, "%s %d %v", what, i, err)
	}
}

// wantRowsApart faults unless the view is of In[0]'s dtype and its rows are contiguous.
func (d *Device) wantRowsApart(c *backend.Call, v *backend.View, what string, i int) {
	if err := c.WantRowsApart(v); err != nil {
		d.fault(c, "%s %d %v", what, i, err)
	}
}

// wantVector faults unless the view is contiguous, has n elements and the dtype.
func (d *Device) wantVector(c *backend.Call, v *backend.View, dt dtype.DType, n int, what string) {
	if err := v.WantVector(dt, n); err != nil {
		d.fault(c, "%s %v", what, err)
	}
}

// row is row i of a contiguous view with cols columns.
func row[T any](v *backend.View, i, cols int) []T { return rowAt[T](v, i*cols, cols) }

// rowAt is cols elements from an element of the view on.
func rowAt[T any](v *backend.View, first, cols int) []T {
	return unsafe.Slice((*T)(at(v, v.Offset+first)), cols)
}

// nearBytes is the size of rows that the second-level cache holds besides others.
const nearBytes = 256 << 10

func softmaxRows[T float](t *task, ws *workspace, lo, hi int) {
	cols := t.n[0]
	size := cols * int(unsafe.Sizeof(*new(T)))
	apart := t.nonTemporal && size <= nearBytes // exponentials stay near by: only the result bypasses the caches
	var near []T
	if apart {
		ws.reserve(size)
		near = carve[T](ws, cols)
	}
	if apart && t.overlap {
		softmaxOverlapped(t, near, lo, hi)
		return
	}
	for i := lo; i < hi; i++ {
		x, y := row[T](&t.c.In[0], i, cols), row[T](&t.c.Out[0], i, cols)
		e := y
		if apart {
			e = near
		}
		scaleRow(y, e, T(1/expSumRow(e, x, largest(x))), apart)
	}
}

// softmaxOverlapped writes a row while it computes the exponentials of the next one and reads the one after that.
func softmaxOverlapped[T float](t *task, near []T, lo, hi int) {
	x, y := &t.c.In[0], &t.c.Out[0]
	cols, last := t.n[0], hi-1
	at := row[T](x, lo, cols)
	sum := expSumRow(near, at, largest(at))
	at = row[T](x, min(lo+1, last), cols)
	m := largest(at)
	for i := lo; i < last; i++ {
		next := row[T](x, min(i+2, last), cols)
		sum, m = scaleExpSumRow(row[T](y, i, cols), near, at, next, T(1/sum), m, true)
		at = next
	}
	scaleRow(row[T](y, last, cols), near, T(1/sum), true)
}

func softmaxGradRows[T float](t *task, _ *workspace, lo, hi int) {
	cols := t.n[0]
	if t.overlap {
		y, dy := row[T](&t.c.In[0], lo, cols), row[T](&t.c.In[1], lo, cols)
		dot := T(rowDot(y, dy))
		for i := lo; i < hi-1; i++ {
			nextY, nextDY := row[T](&t.c.In[0], i+1, cols), row[T](&t.c.In[1], i+1, cols)
			dot = T(softmaxGradDotRow(row[T](&t.c.Out[0], i, cols), y, dy, nextY, nextDY, dot, true))
			y, dy = nextY, nextDY
		}
		softmaxGradRow(row[T](&t.c.Out[0], hi-1, cols), y, dy, dot, true)
		return
	}
	for i := lo; i < hi; i++ {
		y, dy := row[T](&t.c.In[0], i, cols), row[T](&t.c.In[1], i, cols)
		dx := row[T](&t.c.Out[0], i, cols)
		softmaxGradRow(dx, y, dy, T(rowDot(y, dy)), t.nonTemporal)
	}
}

func logSoftmaxRows[T float](t *task, _ *workspace, lo, hi int) {
	cols := t.n[0]
	for i := lo; i < hi; i++ {
		x, y := row[T](&t.c.In[0], i, cols), row[T](&t.c.Out[0], i, cols)
		m := largest(x)
		subRow(y, x, float64(m)+math.Log(expSum(x, m)), t.nonTemporal)
	}
}

func logSoftmaxGradRows[T float](t *task, _ *workspace, lo, hi int) {
	cols := t.n[0]
	for i := lo; i < hi; i++ {
		y, dy := row[T](&t.c.In[0], i, cols), row[T](&t.c.In[1], i, cols)
		dx := row[T](&t.c.Out[0], i, cols)
		logSoftmaxGradRow(dx, y, dy, T(sumOf(dy)), t.nonTemporal)
	}
}
