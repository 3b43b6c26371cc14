// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// normRows is the number of rows per partial sum of a parameter's gradient.
const normRows = 64

// checkNorm looks at x [N,C], the operands of its shape and the statistics [N].
func checkNorm(d *Device, c *backend.Call, same, stats []*backend.View) {
	rows, cols := c.In[0].Rows()
	d.wantRows(c, &c.In[0], "input", 0)
	for _, v := range same {
		d.wantVector(c, v, c.In[0].DType, rows*cols, "operand of x's shape")
	}
	for _, v := range stats {
		d.wantVector(c, v, c.In[0].DType, rows, "statistic")
	}
}

func checkLayerNorm(d *Device, c *backend.Call) {
	if c.NOut < 3 {
		d.fault(c, "%d outputs: want y, mean and 1/σ", c.NOut)
	}
	checkNorm(d, c, []*backend.View{&c.Out[0]}, []*backend.View{&c.Out[1], &c.Out[2]})
	d.checkParams(c, 1)
}

// checkParams looks at the parameters [C] among the inputs from first on.
func (d *Device) checkParams(c *backend.Call, first int) {
	_, cols := c.In[0].Rows()
	for i := first; i < c.NIn; i++ {
		d.wantVector(c, &c.In[i], c.In[0].DType, cols, "parameter")
	}
}

func checkLayerNormGrad(d *Device, c *backend.Call) {
	checkNorm(d, c, []*backend.View{&c.In[3], &c.Out[0]}, []*backend.View{&c.In[1], &c.In[2]})
	d.checkParams(c, 4)
}

func checkRMSNorm(d *Device, c *backend.Call) {
	if c.NOut < 2 {
		d.fault(c, "%d outputs: want y and 1/rms", c.NOut)
	}
	checkNorm(d, c, []*backend.View{&c.Out[0]}, []*backend.View{&c.Out[1]})
	d.checkParams(c, 1)
}

func checkRMSNormGrad(d *Device, c *backend.Call) {
	checkNorm(d, c, []*backend.View{&c.In[2], &c.Out[0]}, []*backend.View{&c.In[1]})
	d.checkParams(c, 3)
}

// param is input i as a vector, nil if the call has fewer inputs.
func param[T float](c *backend.Call, i int) []T {
	if i >= c.NIn {
		return nil
	}
	return slice[T](&c.In[i])
}

func layerNormRows[T float](t *task, _ *workspace, lo, hi int) {
	c, cols := t.c, t.n[0]
	weight, bias := param[T](c, 1), param[T](c, 2)
	mean, rstd := slice[T](&c.Out[1]), slice[T](&c.Out[2])
	overlap := t.overlap && bias != nil
	var mu, variance float64 // of the row, which the one before may have had read
	for i := lo; i < hi; i++ {
		x, y := row[T](&c.In[0], i, cols), row[T](&c.Out[0], i, cols)
		if i == lo || !overlap {
			mu, variance = meanAndVariance(x)
		}
		m, s := T(mu), T(1/math.Sqrt(variance+c.Floats[0]))
		mean[i], rstd[i] = m, s
		if overlap && i+1 < hi {
			mu, variance = normalizeMomentsRow(y, x, weight, bias, row[T](&c.In[0], i+1, cols), m, s, true)
			continue
		}
		normalizeRow(y, x, weight, bias, m, s, t.nonTemporal)
	}
}

// reserveRows makes room for the rows that a norm's gradient needs for itself.
func reserveRows[T float](t *task, ws *workspace) {
	ws.reserve(3 * (rowsApart + carved(t.n[0]*int(unsafe.Sizeof(*new(T))))))
}

// rowsApart lies before each of them. Rows that begin at the same place of a page share the first cache's sets with x,
// dy and dx.
const rowsApart = 256

// carveRow takes one of them.
func carveRow[T float](t *task, ws *workspace) []T {
	carve[byte](ws, rowsApart)
	return carve[T](ws, t.n[0])
}

// paramOrOnes is input i as a vector; where the call has none, ones, a product with which changes nothing.
func paramOrOnes[T float](t *task, ws *workspace, i int) []T {
	if w := param[T](t.c, i); w != nil {
		return w
	}
	ones := carveRow[T](t, ws)
	for j := range ones {
		ones[j] = 1
	}
	return ones
}

// layerNormGrad is what a row's gradient needs, and the sums of the row that waits to be written, if one does.
type layerNormGrad[T float] struct {
	mean, rstd, weight []T
	sum, inner         float64 // Σ dy·w and Σ dy·w·x̂
	waiting            bool
	last               int
}

func layerNormGradOf[T float](t *task, ws *workspace) layerNormGrad[T] {
	return layerNormGrad[T]{mean: slice[T](&t.c.In[1]), rstd: slice[T](&t.c.In[2]), weight: paramOrOnes[T](t, ws, 4)}
}

// row sets row i of dx, or lets it wait for the next row or end, and adds to the gradients of the parameters unless
// they are nil.
func (g *layerNormGrad[T]) row(t *task, dw, db []T, i int) {
	c, cols, m, s := t.c, t.n[0], g.mean[i], g.rstd[i]
	x, dy := row[T](&c.In[0], i, cols), row[T](&c.In[3], i, cols)
	if g.waiting && db != nil {
		j, n := g.last, float64(cols)
		g.sum, g.inner = normGradSumsRow(row[T](&c.Out[0], j, cols), row[T](&c.In[0], j, cols),
			row[T](&c.In[3], j, cols), g.weight, dw, db, x, dy,
			g.mean[j], g.rstd[j], T(g.sum/n), T(g.inner/n), g.rstd[j], m, s, true)
	} else {
		g.end(t)
		g.sum, g.inner = normSumsRow(dw, db, x, dy, g.weight, m, s)
	}
	g.waiting, g.last = true, i
	if !t.overlap {
		g.end(t)
	}
}

// end sets the row that waits.
func (g *layerNormGrad[T]) end(t *task) {
	if !g.waiting {
		return
	}
	c, cols, i := t.c, t.n[0], g.last
	x, dy, dx := row[T](&c.In[0], i, cols), row[T](&c.In[3], i, cols), row[T](&c.Out[0], i, cols)
	normGradRow(dx, x, dy, g.weight, g.mean[i], g.rstd[i], T(g.sum/float64(cols)), T(g.inner/float64(cols)), g.rstd[i],
		t.nonTemporal)
	g.waiting = false
}

func layerNormGradRows[T float](t *task, ws *workspace, lo, hi int) {
	reserveRows[T](t, ws)
	g := layerNormGradOf[T](t, ws)
	for i := lo; i < hi; i++ {
		g.row(t, nil, nil, i)
	}
	g.end(t)
}

func rmsNormRows[T float](t *task, _ *workspace, lo, hi int) {
	c, cols := t.c, t.n[0]
	weight, rrms := param[T](c, 1), slice[T](&c.Out[1])
	for i := lo; i < hi; i++ {
		x, y := row[T](&c.In[0], i, cols), row[T](&c.Out[0], i, cols)
		s := T(1 / math.Sqrt(rowSquares(x)/float64(cols)+c.Floats[0]))
		rrms[i] = s
		normalizeRow(y, x, weight, nil, 0, s, t.nonTemporal)
	}
}

// rmsNormGrad is what a row's gradient needs.
type rmsNormGrad[T float] struct{ rrms, weight []T }

func rmsNormGradOf[T float](t *task, ws *workspace) rmsNormGrad[T] {
	return rmsNormGrad[T]{slice[T](&t.c.In[1]), paramOrOnes[T](t, ws, 3)}
}

// row sets row i of dx, and adds to the gradient of the weight unless it is nil.
func (g *rmsNormGrad[T]) row(t *task, dw []T, i int) {
	c, cols, s := t.c, t.n[0], g.rrms[i]
	x, dy, dx := row[T](&c.In[0], i, cols), row[T](&c.In[2], i, cols), row[T](&c.Out[0], i, cols)
	_, inner := normSumsRow(dw, nil, x, dy, g.weight, 0, s)
	normGradRow(dx, x, dy, g.weight, 0, 1, 0, T(inner/float64(cols)*float64(s)), s, t.nonTemporal)
}

func rmsNormGradRows[T float](t *task, ws *workspace, lo, hi int) {
	reserveRows[T](t, ws)
	g := rmsNormGradOf[T](t, ws)
	for i := lo; i < hi; i++ {
		g.row(t, nil, i)
	}
}

// paramGrad is the kernel of a parameter gradient alone. dy is the last input.
func paramGrad(ins int, f32, f64 body) kernel {
	return kernel{outs: 1, ins: ins, run: func(d *Device, c *backend.Call) {
		rows, cols := c.In[0].Rows()
		d.wantRows(c, &c.In[0], "input", 0)
		for i := 1; i < ins-1; i++ {
			d.wantVector(c, &c.In[i], c.In[0].DType, rows, "statistic")
		}
		d.wantVector(c, &c.In[ins-1], c.In[0].DType, rows*cols, "dy")
		d.sumNormParts(c, 0, f32, f64)
	}}
}

// normGrad is the kernel of a norm's gradient: dx by rows if it is asked for alone, else with the parameters' gradients
// in one pass over x and dy.
func normGrad(ins int, check func(*Device, *backend.Call), rows32, rows64, blocks32, blocks64 body) kernel {
	alone := rowwise(ins, check, rows32, rows64, nil)
	return kernel{outs: 1, ins: ins, run: func(d *Device, c *backend.Call) {
		if c.NOut == 1 {
			alone.run(d, c)
			return
		}
		check(d, c)
		d.sumNormParts(c, 1, blocks32, blocks64)
	}}
}

// withSums is the kernel of a norm, or of a gradient of one, that also adds part to the rows and dx to more, and rounds
// the result, where a call has them, before and after.
func withSums(alone kernel) kernel {
	return kernel{outs: alone.outs, ins: alone.ins, raw: true, run: func(d *Device, c *backend.Call) {
		o := c.NormOperands()
		if o.Ins == c.NIn && o.Outs == c.NOut {
			d.run(&alone, c)
			return
		}
		if o.Ins < alone.ins || o.Outs < alone.outs {
			d.fault(c, "%d inputs and %d outputs: want at least %d and %d", o.Ins, o.Outs, alone.ins, alone.outs)
		}
		w := d.widened()
		defer d.putWidened(w)
		w.call = *c
		w.call.NIn, w.call.NOut, w.call.Ints = o.Ins, o.Outs, [8]int{}
		if o.Part != nil {
			d.wantRows(c, &c.In[0], "input", 0)
			d.apart(w, &w.call.In[0])
			d.add(w, &w.call.In[0], &c.In[0], o.Part)
		}
		if o.More != nil {
			d.apart(w, &w.call.Out[0])
		}
		d.run(&alone, &w.call)
		if o.More != nil {
			d.add(w, &c.Out[0], o.More, &w.call.Out[0])
		}
		if o.Rounded != nil {
			d.convert(w, o.Rounded, &c.Out[0])
		}
	}}
}

// apart gives a contiguous view memory that ends with the launch.
func (d *Device) apart(w *widened, v *backend.View) {
	b := d.scratch(v.Numel() * v.DType.Size())
	w.bufs[w.n] = b
	w.n++
	v.Buf, v.Offset = b, 0
}

// add runs OpAdd.
func (d *Device) add(w *widened, to, x, y *backend.View) {
	w.inner.Op, w.inner.NOut, w.inner.NIn = backend.OpAdd, 1, 2
	w.inner.Out[0], w.inner.In[0], w.inner.In[1] = *to, *x, *y
	d.run(&kernels[backend.OpAdd], &w.inner)
}

// sumNormParts makes the outputs from first on, which are gradients of parameters: partial sums over blocks of 64 rows,
// in float64, then the blocks in order.
func (d *Device) sumNormParts(c *backend.Call, first int, f32, f64 body) {
	rows, cols := c.In[0].Rows()
	for i := first; i < c.NOut; i++ {
		d.wantVector(c, &c.Out[i], c.In[0].DType, cols, "gradient")
	}
	t := d.begin(c)
	defer t.end()
	blocks := (rows + normRows - 1) / normRows
	t.n[0], t.n[1], t.n[2], t.n[3] = cols, rows, blocks, first
	t.parts = d.scratch(8 * (c.NOut - first) * blocks * cols)
	grain := max(1, elementGrain/normRows/max(1, cols))
	switch c.In[0].DType {
	case dtype.Float32:
		t.do(blocks, grain, f32)
		t.do(cols, elementGrain, addNormParts[float32])
	case dtype.Float64:
		t.do(blocks, grain, f64)
		t.do(cols, elementGrain, addNormParts[float64])
	default:
		d.fault(c, "no kernel for %s", c.In[0].DType)
	}
}

// normPart is the scratch row of an output's partial sums over a block of rows.
func (t *task) normPart(out, block int) []float64 {
	cols := t.n[0]
	p := unsafe.Slice((*float64)(t.parts.ptr), t.parts.n/8)
	return p[(out*t.n[2]+block)*cols:][:cols]
}

// normGroup is the number of rows whose contributions to the parameters' gradients are added in their own type before
// they are added in float64: so they stay in the first-level cache.
const normGroup = 16

// normBlocks calls f for the rows of blocks lo to hi, with what it adds their contributions to; db is nil if only the
// weight's gradient is wanted.
func normBlocks[T float](t *task, ws *workspace, lo, hi int, f func(dw, db []T, i int)) {
	dw, db := carveRow[T](t, ws), []T(nil)
	if t.c.NOut-t.n[3] > 1 {
		db = carveRow[T](t, ws)
	}
	for u := lo; u < hi; u++ {
		for k, sums := range [][]T{dw, db} {
			if sums != nil {
				clear(t.normPart(k, u))
			}
		}
		end := min((u+1)*normRows, t.n[1])
		for from := u * normRows; from < end; from += normGroup {
			clear(dw)
			clear(db)
			for i := from; i < min(from+normGroup, end); i++ {
				f(dw, db, i)
			}
			for k, sums := range [][]T{dw, db} {
				if sums != nil {
					addRow(t.normPart(k, u), sums)
				}
			}
		}
	}
}

func layerNormParts[T float](t *task, ws *workspace, lo, hi int) {
	reserveRows[T](t, ws)
	mean, rstd := slice[T](&t.c.In[1]), slice[T](&t.c.In[2])
	normBlocks(t, ws, lo, hi, func(dw, db []T, i int) {
		normParamRow(dw, db, row[T](&t.c.In[0], i, t.n[0]), row[T](&t.c.In[3], i, t.n[0]), mean[i], rstd[i])
	})
}

func layerNormGradBlocks[T float](t *task, ws *workspace, lo, hi int) {
	reserveRows[T](t, ws)
	g := layerNormGradOf[T](t, ws)
	normBlocks(t, ws, lo, hi, func(dw, db []T, i int) { g.row(t, dw, db, i) })
	g.end(t)
}

func rmsNormParts[T float](t *task, ws *workspace, lo, hi int) {
	reserveRows[T](t, ws)
	rrms := slice[T](&t.c.In[1])
	normBlocks(t, ws, lo, hi, func(dw, _ []T, i int) {
		normParamRow(dw, nil, row[T](&t.c.In[0], i, t.n[0]), row[T](&t.c.In[2], i, t.n[0]), 0, rrms[i])
	})
}

func rmsNormGradBlocks[T float](t *task, ws *workspace, lo, hi int) {
	reserveRows[T](t, ws)
	g := rmsNormGradOf[T](t, ws)
	normBlocks(t, ws, lo, hi, func(dw, _ []T, i int) { g.row(t, dw, i) })
}

// addNormParts adds the blocks' sums of columns lo to hi in order, a block at a time: the columns of one lie together.
func addNormParts[T float](t *task, ws *workspace, lo, hi int) {
	ws.reserve(8 * (hi - lo))
	sums := carve[float64](ws, hi-lo)
	for k := range t.c.NOut - t.n[3] {
		clear(sums)
		for b := range t.n[2] {
			for j, v := range t.normPart(k, b)[lo:hi] {
				sums[j] += v
			}
		}
		out := slice[T](&t.c.Out[t.n[3]+k])[lo:hi]
		for j, s := range sums {
			out[j] = T(s)
		}
	}
}
