// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

// The pieces of a sum. They are part of its order of additions, and so of its bits.
const (
	sumPart  = 16384 // elements per partial sum along the last dim, a multiple of sumLanes
	sumLanes = 16    // accumulators of a partial sum along the last dim
	// rows per partial sum where columns are summed side by side: so few that workers sum the rows that they wrote
	sumRows    = 128
	sumColumns = 256  // columns side by side; these do not touch each other
	sumSqBlock = 4096 // elements per output of OpSumSq
)

// accumulator is what a sum is kept in: float64 for floats, int64 for integers.
type accumulator interface{ float64 | int64 }

// sumKernel adds in an order that follows only from the shape. If the last dim goes, an output is the sum of partial
// sums of 16384 elements, which have sixteen accumulators each; else columns are summed side by side, in parts of 128
// rows. Parts are added in order.
func sumKernel(d *Device, c *backend.Call) {
	if c.In[0].DType.IsHalf() || c.Out[0].DType.IsHalf() {
		sumHalf(d, c)
		return
	}
	t := d.begin(c)
	defer t.end()
	d.geometry(c, &t.reduction)
	if c.In[0].DType != c.Out[0].DType {
		d.fault(c, "sum of %s into %s", c.In[0].DType, c.Out[0].DType)
	}
	switch c.In[0].DType {
	case dtype.Float32:
		t.sum(sumAlong[float32, float64], sumAcross[float32, float64], sumParts[float32, float64])
	case dtype.Float64:
		t.sum(sumAlong[float64, float64], sumAcross[float64, float64], sumParts[float64, float64])
	case dtype.Int32:
		t.sum(sumAlong[int32, int64], sumAcross[int32, int64], sumParts[int32, int64])
	case dtype.Int64:
		t.sum(sumAlong[int64, int64], sumAcross[int64, int64], sumParts[int64, int64])
	default:
		d.fault(c, "no kernel for %s", c.In[0].DType)
	}
}

func (t *task) sum(along, across, combine body) {
	r := &t.reduction
	r.part = sumPart
	if !r.last {
		r.part = sumRows
	}
	parts := max(1, (r.total+r.part-1)/r.part)
	t.parts = t.d.scratch(8 * parts * r.outputs)
	if r.last {
		t.do(parts*r.outputs, max(1, elementGrain/max(1, min(r.total, r.part))), along)
	} else {
		width := r.kept.shape[r.kept.nd-1]
		chunks := (width + sumColumns - 1) / sumColumns
		t.do(parts*r.outputs/max(1, width)*chunks, max(1, elementGrain/sumColumns/max(1, min(r.total, r.part))), across)
	}
	t.do(r.outputs, elementGrain, combine)
}

// partials is the scratch of the partial sums, [part][output].
func partials[A accumulator](t *task) []A {
	return unsafe.Slice((*A)(t.parts.ptr), t.parts.n/8)
}

// sumAlong makes partial sums lo to hi, where the last dim is summed. Element i of an output goes to accumulator i mod
// 16 of its part.
func sumAlong[T number, A accumulator](t *task, _ *workspace, lo, hi int) {
	r, parts := &t.reduction, partials[A](t)
	v := &t.c.In[0]
	for u := lo; u < hi; u++ {
		base := v.Offset + r.kept.offset(u%r.outputs)
		first := u / r.outputs * r.part
		var acc [sumLanes]A
		r.gone.each(first, min(first+r.part, r.total), func(i, offset, n, stride int) {
			x := from[T](v, base+offset)
			for ; n > 0 && i%sumLanes != 0; n-- {
				acc[i%sumLanes] += A(x[0])
				i++
				if n > 1 {
					x = x[stride:]
				}
			}
			addLanes(&acc, x, n, stride)
		})
		parts[u] = total(&acc)
	}
}

// total adds the accumulators at a distance of 8, 4, 2 and 1.
func total[A accumulator](acc *[sumLanes]A) A {
	for d := sumLanes / 2; d > 0; d /= 2 {
		for i := range d {
			acc[i] += acc[i+d]
		}
	}
	return acc[0]
}

// addLanes adds element i of n to accumulator i mod 16.
func addLanes[T number, A accumulator](acc *[sumLanes]A, x []T, n, stride int) {
	if stride == 1 && isFloat32[T]() { // A is float64
		vecmath.SumLanes((*[sumLanes]float64)(cast[float64](acc[:])), cast[float32](x[:n]))
		return
	}
	for i := range n {
		acc[i%sumLanes] += A(x[i*stride])
	}
}

// isFloat32 tells float32 from int32, which has its size.
func isFloat32[T number]() bool {
	_, ok := any(*new(T)).(float32)
	return ok
}

// sumAcross makes units lo to hi of the partial sums where the last dim stays: a unit is up to 256 columns of one part.
func sumAcross[T number, A accumulator](t *task, ws *workspace, lo, hi int) {
	r, parts := &t.reduction, partials[A](t)
	v := &t.c.In[0]
	width, step := r.kept.shape[r.kept.nd-1], r.kept.stride[r.kept.nd-1]
	chunks := (width + sumColumns - 1) / sumColumns
	for u := lo; u < hi; u++ {
		col := u % chunks * sumColumns
		row := u / chunks // of partial sums: [part][outputs/width]
		n := min(sumColumns, width-col)
		acc := parts[row*width+col:][:n]
		clear(acc)
		rowsPer := r.outputs / width
		base := v.Offset + r.kept.offset(row%rowsPer*width+col)
		first := row / rowsPer * r.part
		r.gone.each(first, min(first+r.part, r.total), func(_, offset, count, stride int) {
			if step == 1 && count > 0 && isFloat32[T]() {
				vecmath.AddWideRows(cast[float64](acc), cast[float32](from[T](v, base+offset)), count, stride)
				return
			}
			for j := range count {
				x := from[T](v, base+offset+j*stride)
				if step == 1 {
					x = x[:len(acc)]
					for i := range acc {
						acc[i] += A(x[i])
					}
					continue
				}
				for i := range acc {
					acc[i] += A(x[i*step])
				}
			}
		})
	}
}

// sumHalf is sumKernel where an operand is of a half type. Columns side by side are widened some rows at a time, other
// operands as a whole.
func sumHalf(d *Device, c *backend.Call) {
	t := d.begin(c)
	d.geometry(c, &t.reduction)
	r := &t.reduction
	if c.Out[0].DType == dtype.Float32 && !r.last && r.kept.stride[r.kept.nd-1] == 1 {
		t.sum(nil, sumAcrossHalf, sumParts[float32, float64])
		t.end()
		return
	}
	t.end()
	d.launchWidened(&kernels[backend.OpSum], c)
}

// sumAcrossHalf is sumAcross for a half input.
func sumAcrossHalf(t *task, ws *workspace, lo, hi int) {
	if ws.wide == nil {
		ws.wide = new(flatBuffers)
	}
	const together = flatLength / sumColumns // rows
	r, parts, v := &t.reduction, partials[float64](t), &t.c.In[0]
	widen, wide, width := casts[dtype.Float32][v.DType], &ws.wide[0], r.kept.shape[r.kept.nd-1]
	chunks, rowsPer := (width+sumColumns-1)/sumColumns, r.outputs/width
	for u := lo; u < hi; u++ {
		col, row := u%chunks*sumColumns, u/chunks
		acc := parts[row*width+col:][:min(sumColumns, width-col)]
		clear(acc)
		base := v.Offset + r.kept.offset(row%rowsPer*width+col)
		first := row / rowsPer * r.part
		r.gone.each(first, min(first+r.part, r.total), func(_, offset, count, stride int) {
			for j := 0; j < count; j += together {
				rows := min(together, count-j)
				for i := range rows {
					ws.p[0], ws.p[1] = unsafe.Pointer(&wide[i*len(acc)]), at(v, base+offset+(j+i)*stride)
					widen(t.c, &ws.p, len(acc))
				}
				vecmath.AddWideRows(acc, wide[:], rows, len(acc))
			}
		})
	}
}

// sumParts adds the parts of outputs lo to hi in order.
func sumParts[T number, A accumulator](t *task, _ *workspace, lo, hi int) {
	r, parts := &t.reduction, partials[A](t)
	out := &t.c.Out[0]
	sum := func(k int) T {
		var s A
		for p := k; p < len(parts); p += r.outputs {
			s += parts[p]
		}
		return T(s)
	}
	if out.Contiguous() {
		for i, o := lo, slice[T](out); i < hi; i++ {
			o[i] = sum(i)
		}
		return
	}
	for k := lo; k < hi; k++ {
		*(*T)(at(out, out.Offset+r.out.offset(k))) = sum(k)
	}
}

// extremes are the bodies of OpMax and OpMin by dtype.
type extremes struct{ f32, f64, i32, i64 body }

func extremum(e extremes) kernel {
	return kernel{outs: 1, ins: 1, run: func(d *Device, c *backend.Call) {
		t := d.begin(c)
		defer t.end()
		d.geometry(c, &t.reduction)
		t.extremum(&e, c.Out[0].DType)
	}}
}

// extremum runs the body of the input's dtype, one unit per output. want is the output's dtype if it is not the
// input's.
func (t *task) extremum(e *extremes, out dtype.DType) {
	d, c, r := t.d, t.c, &t.reduction
	if r.total == 0 && r.outputs > 0 {
		d.fault(c, "no elements to choose from: input of shape %v", c.In[0].Shape[:c.In[0].NDim])
	}
	var f body
	switch c.In[0].DType {
	case dtype.Float32:
		f = e.f32
	case dtype.Float64:
		f = e.f64
	case dtype.Int32:
		f = e.i32
	case dtype.Int64:
		f = e.i64
	}
	if f == nil || c.Out[0].DType != out {
		d.fault(c, "no kernel from %s to %s", c.In[0].DType, c.Out[0].DType)
	}
	t.do(r.outputs, max(1, elementGrain/max(1, r.total)), f)
}

func maxBody[T number](t *task, _ *workspace, lo, hi int) {
	choose(t, lo, hi, func(best T, x []T, n, stride int) T {
		for i := range n {
			best = max(best, x[i*stride])
		}
		return best
	})
}

func minBody[T number](t *task, _ *workspace, lo, hi int) {
	choose(t, lo, hi, func(best T, x []T, n, stride int) T {
		for i := range n {
			best = min(best, x[i*stride])
		}
		return best
	})
}

// choose reduces outputs lo to hi by a function of a run.
func choose[T number](t *task, lo, hi int, f func(best T, x []T, n, stride int) T) {
	r := &t.reduction
	v, out := &t.c.In[0], &t.c.Out[0]
	for k := lo; k < hi; k++ {
		base := v.Offset + r.kept.offset(k)
		best := *(*T)(at(v, base))
		r.gone.each(0, r.total, func(_, offset, n, stride int) {
			best = f(best, from[T](v, base+offset), n, stride)
		})
		*(*T)(at(out, out.Offset+r.out.offset(k))) = best
	}
}

// argExtremum is the kernel of an index along the dim that Ints[0] names.
func argExtremum(e extremes) kernel {
	return kernel{outs: 1, ins: 1, run: func(d *Device, c *backend.Call) {
		in := &c.In[0]
		t := d.begin(c)
		defer t.end()
		d.geometry(c, &t.reduction)
		if dim := c.Ints[0]; dim < 0 || dim >= in.NDim || t.reduction.total != in.Shape[dim] {
			d.fault(c, "dim %d: input of shape %v, output of shape %v", dim, in.Shape[:in.NDim],
				c.Out[0].Shape[:c.Out[0].NDim])
		}
		t.extremum(&e, dtype.Int64)
	}}
}

func argMaxBody[T number](t *task, _ *workspace, lo, hi int) {
	r := &t.reduction
	v, out := &t.c.In[0], &t.c.Out[0]
	for k := lo; k < hi; k++ {
		base := v.Offset + r.kept.offset(k)
		best, where := *(*T)(at(v, base)), 0
		r.gone.each(0, r.total, func(first, offset, n, stride int) {
			x := from[T](v, base+offset)
			for i := range n {
				if y := x[i*stride]; y > best || y != y && best == best {
					best, where = y, first+i
				}
			}
		})
		*(*int64)(at(out, out.Offset+r.out.offset(k))) = int64(where)
	}
}

func argMinBody[T number](t *task, _ *workspace, lo, hi int) {
	r := &t.reduction
	v, out := &t.c.In[0], &t.c.Out[0]
	for k := lo; k < hi; k++ {
		base := v.Offset + r.kept.offset(k)
		best, where := *(*T)(at(v, base)), 0
		r.gone.each(0, r.total, func(first, offset, n, stride int) {
			x := from[T](v, base+offset)
			for i := range n {
				if y := x[i*stride]; y < best || y != y && best == best {
					best, where = y, first+i
				}
			}
		})
		*(*int64)(at(out, out.Offset+r.out.offset(k))) = int64(where)
	}
}

// sumSqKernel sums the squares of each block of 4096 elements of the flattened input, in float64.
func sumSqKernel(d *Device, c *backend.Call) {
	in, out := &c.In[0], &c.Out[0]
	n := in.Numel()
	if !in.Contiguous() || !out.Contiguous() || out.DType != dtype.Float64 || out.Numel() != (n+sumSqBlock-1)/
		sumSqBlock {
		d.fault(c, "want contiguous input and a float64 output per %d elements, not %s of shape %v", sumSqBlock,
			out.DType, out.Shape[:out.NDim])
	}
	t := d.begin(c)
	defer t.end()
	switch in.DType {
	case dtype.Float32:
		t.do(out.Numel(), elementGrain/sumSqBlock, sumSqBody[float32])
	case dtype.Float64:
		t.do(out.Numel(), elementGrain/sumSqBlock, sumSqBody[float64])
	default:
		d.fault(c, "no kernel for %s", in.DType)
	}
}

func sumSqBody[T float](t *task, _ *workspace, lo, hi int) {
	x, out := slice[T](&t.c.In[0]), slice[float64](&t.c.Out[0])
	for u := lo; u < hi; u++ {
		out[u] = sumSquares(x[u*sumSqBlock : min((u+1)*sumSqBlock, len(x))])
	}
}
