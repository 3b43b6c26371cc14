// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// indices reads a contiguous view of int32 or int64.
type indices struct {
	i32 []int32
	i64 []int64
}

func indicesOf(v *backend.View) indices {
	if v.DType == dtype.Int32 {
		return indices{i32: slice[int32](v)}
	}
	return indices{i64: slice[int64](v)}
}

func (x *indices) at(i int) int {
	if x.i32 != nil {
		return int(x.i32[i])
	}
	return int(x.i64[i])
}

// wantIndices faults unless the view holds n contiguous integers in [0, limit), or equal to skip if that is wanted.
func (d *Device) wantIndices(c *backend.Call, v *backend.View, n, limit int, skipping bool, skip int) {
	if v.DType != dtype.Int32 && v.DType != dtype.Int64 || v.Numel() != n || !v.Contiguous() {
		d.fault(c, "indices are %s of shape %v: want %d contiguous int32 or int64", v.DType, v.Shape[:v.NDim], n)
	}
	x := indicesOf(v)
	for i := range n {
		if k := x.at(i); (k < 0 || k >= limit) && !(skipping && k == skip) {
			panic(backend.NewIndexFault(d.Name(), backend.IndexError{Op: c.Op, Index: int64(k), Element: int64(i),
				Limit: int64(limit)}))
		}
	}
}

func checkCrossEntropy(d *Device, c *backend.Call) {
	rows, cols := c.In[0].Rows()
	d.wantRowsApart(c, &c.In[0], "input", 0)
	d.wantIndices(c, &c.In[1], rows, cols, true, c.Ints[0])
	sums := c.In[0].DType
	if sums.IsHalf() {
		sums = dtype.Float32
	}
	d.wantVector(c, &c.Out[0], sums, rows, "loss")
	if c.NOut > 1 {
		d.wantVector(c, &c.Out[1], sums, rows, "log-sum-exp")
	}
	if c.NOut > 2 {
		d.wantRowsApart(c, &c.Out[2], "output", 2)
	}
}

func crossEntropyRows[T float](t *task, _ *workspace, lo, hi int) {
	cols, ignore := t.n[0], t.c.Ints[0]
	targets := indicesOf(&t.c.In[1])
	loss := slice[T](&t.c.Out[0])
	from, _ := t.c.In[0].RowStride()
	to, _ := t.c.Out[2].RowStride()
	var lses []T
	if t.c.NOut > 1 {
		lses = slice[T](&t.c.Out[1])
	}
	for i := lo; i < hi; i++ {
		var slope []T
		if t.c.NOut > 2 {
			slope = rowAt[T](&t.c.Out[2], i*to, cols)
		}
		lse := crossEntropyRow(&loss[i], slope, rowAt[T](&t.c.In[0], i*from, cols), targets.at(i), ignore)
		if lses != nil {
			lses[i] = T(lse)
		}
	}
}

// crossEntropyRow sets the loss of the row x, and its slope unless that is nil, and returns the log-sum-exp.
func crossEntropyRow[T float](loss *T, slope, x []T, k, ignore int) (lse float64) {
	var target T
	if k != ignore {
		target = x[k] // the slope may overwrite it
	}
	m, sum := largest(x), 0.0
	if slope != nil {
		sum = crossEntropySlope(slope, x, m, k, k == ignore)
	} else {
		sum = expSum(x, m)
	}
	lse = float64(m) + math.Log(sum)
	*loss = 0
	if k != ignore {
		*loss = T(lse - float64(target))
	}
	return lse
}

// crossEntropyRowsHalf is crossEntropyRows of half logits, with a row at a time in float32.
func crossEntropyRowsHalf(t *task, ws *workspace, lo, hi int) {
	c, cols := t.c, t.n[0]
	in := &c.In[0]
	widen, down := casts[dtype.Float32][in.DType], casts[in.DType][dtype.Float32]
	targets, loss := indicesOf(&c.In[1]), slice[float32](&c.Out[0])
	var lses []float32
	if c.NOut > 1 {
		lses = slice[float32](&c.Out[1])
	}
	ws.reserve(carved(4 * (cols + 1)))
	x := carve[float32](ws, cols+1)[:cols]
	from, _ := in.RowStride()
	to, _ := c.Out[2].RowStride()
	for i := lo; i < hi; i++ {
		ws.p[0], ws.p[1] = unsafe.Pointer(unsafe.SliceData(x)), at(in, in.Offset+i*from)
		widen(c, &ws.p, cols)
		var slope []float32
		if c.NOut > 2 {
			slope = x
		}
		lse := crossEntropyRow(&loss[i], slope, x, targets.at(i), c.Ints[0])
		if lses != nil {
			lses[i] = float32(lse)
		}
		if c.NOut > 2 {
			out := &c.Out[2]
			ws.p[0], ws.p[1] = at(out, out.Offset+i*to), unsafe.Pointer(unsafe.SliceData(x))
			down(c, &ws.p, cols)
		}
	}
}

// crossEntropySlope sets dx = softmax(x) − onehot(k), or 0 in an ignored row, and returns Σ e^(x−m). m is the largest
// of x, which may be dx.
func crossEntropySlope[T float](dx, x []T, m T, k int, ignored bool) float64 {
	if ignored {
		sum := expSum(x, m)
		clear(dx)
		return sum
	}
	sum := expSumRow(dx, x, m)
	scaleRow(dx, dx, T(1/sum), false)
	dx[k]--
	return sum
}

func checkCrossEntropyGrad(d *Device, c *backend.Call) {
	rows, cols := c.In[0].Rows()
	d.wantRows(c, &c.In[0], "input", 0)
	d.wantRows(c, &c.Out[0], "output", 0)
	d.wantIndices(c, &c.In[1], rows, cols, true, c.Ints[0])
	d.wantVector(c, &c.In[2], c.In[0].DType, rows, "log-sum-exp")
	if v := &c.In[3]; v.DType != c.In[0].DType || v.Numel() != rows || v.NDim > 1 {
		d.fault(c, "dloss is %s of shape %v: want [%d] of %s", v.DType, v.Shape[:v.NDim], rows, c.In[0].DType)
	}
}

func crossEntropyGradRows[T float](t *task, _ *workspace, lo, hi int) {
	cols, ignore := t.n[0], t.c.Ints[0]
	targets, lse := indicesOf(&t.c.In[1]), slice[T](&t.c.In[2])
	dloss := &t.c.In[3]
	var block [16]T
	var target [1]T
	for i := lo; i < hi; i++ {
		x, dx := row[T](&t.c.In[0], i, cols), row[T](&t.c.Out[0], i, cols)
		k := targets.at(i)
		if k == ignore {
			clear(dx)
			continue
		}
		g := *(*T)(at(dloss, dloss.Offset+i*dloss.Stride[0]))
		// The target's block is written once, too: after a non-temporal store its line would have to be read again.
		from := k - k%len(block)
		to := min(from+len(block), cols)
		expRow(dx[:from], x[:from], lse[i], g, t.nonTemporal)
		expRow(block[:to-from], x[from:to], lse[i], g, false)
		expRow(target[:], x[k:k+1], lse[i], 1, false)
		block[k-from] = (target[0] - 1) * g
		scaleRow(dx[from:to], block[:to-from], 1, t.nonTemporal)
		expRow(dx[to:], x[to:], lse[i], g, t.nonTemporal)
	}
}
