package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// rowwise is the kernel of an op that works along the last dim of contiguous operands of In[0]'s dtype: the output and the first inputs.
// check, if any, looks at the rest.
func rowwise(ins int, check func(*Device, *backend.Call), f32, f64 body) kernel {
	return kernel{outs: 1, ins: ins, run: func(d *Device, c *backend.Call) {
		f := f32
		switch c.In[0].DType {
		case dtype.Float32:
		case dtype.Float64:
			f = f64
		default:
			d.fault(c, "no kernel for %s", c.In[0].DType)
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
		rows, cols := rowShape(&c.In[0])
		t.n[0] = cols
		t.do(rows, max(1, elementGrain/4/max(1, cols)), f)
		t.end()
	}}
}

// rowShape is the product of all dims but the last, and the last.
func rowShape(v *backend.View) (rows, cols int) {
	rows, cols = 1, 1
	if v.NDim > 0 {
		cols = v.Shape[v.NDim-1]
		for _, s := range v.Shape[:v.NDim-1] {
			rows *= s
		}
	}
	return rows, cols
}

// wantRows faults unless the view is contiguous and of In[0]'s dtype.
func (d *Device) wantRows(c *backend.Call, v *backend.View, what string, i int) {
	if v.DType != c.In[0].DType {
		d.fault(c, "%s %d is %s, input 0 %s", what, i, v.DType, c.In[0].DType)
	}
	if !v.Contiguous() {
		d.fault(c, "%s %d is not contiguous: shape %v, strides %v", what, i, v.Shape[:v.NDim], v.Stride[:v.NDim])
	}
}

// wantVector faults unless the view is contiguous, has n elements and the dtype.
func (d *Device) wantVector(c *backend.Call, v *backend.View, t dtype.DType, n int, what string) {
	if v.DType != t || v.Numel() != n || !v.Contiguous() {
		d.fault(c, "%s is %s of shape %v, want %d contiguous elements of %s", what, v.DType, v.Shape[:v.NDim], n, t)
	}
}

// row is row i of a contiguous view with cols columns.
func row[T any](v *backend.View, i, cols int) []T {
	return unsafe.Slice((*T)(at(v, v.Offset+i*cols)), cols)
}

var negInf = math.Inf(-1)

// largest is the largest element; a NaN does not count, and of none it is −∞. What uses it makes the whole row NaN by the sum that follows.
func largest[T float](x []T) T {
	a, b, c, d := T(negInf), T(negInf), T(negInf), T(negInf)
	for ; len(x) >= 4; x = x[4:] {
		if v := x[0]; v > a {
			a = v
		}
		if v := x[1]; v > b {
			b = v
		}
		if v := x[2]; v > c {
			c = v
		}
		if v := x[3]; v > d {
			d = v
		}
	}
	for _, v := range x {
		if v > a {
			a = v
		}
	}
	return max(a, b, c, d)
}

// expRow sets dst[i] = e^(scale·(x[i]−m)) and returns the sum of what it computed, in float64, before rounding.
func expRow[T float](dst, x []T, m, scale float64) float64 {
	if unsafe.Sizeof(*new(T)) == 4 {
		return expRow32(cast[float32](dst), cast[float32](x), m, scale)
	}
	var sum float64
	for i, v := range x {
		e := math.Exp((float64(v) - m) * scale)
		dst[i] = T(e)
		sum += e
	}
	return sum
}

func expRow32(dst, x []float32, m, scale float64) float64 {
	var s0, s1 float64
	dst = dst[:len(x)]
	i := 0
	for ; i+1 < len(x); i += 2 {
		a, b := exp((float64(x[i])-m)*scale), exp((float64(x[i+1])-m)*scale)
		s0 += a
		s1 += b
		dst[i], dst[i+1] = float32(a), float32(b)
	}
	if i < len(x) {
		a := exp((float64(x[i]) - m) * scale)
		s0 += a
		dst[i] = float32(a)
	}
	return s0 + s1
}

// expSum is the sum of e^(x[i]−m).
func expSum[T float](x []T, m T) float64 {
	var sum float64
	if unsafe.Sizeof(m) == 4 {
		var s1 float64
		i, m := 0, float64(m)
		for ; i+1 < len(x); i += 2 {
			sum += exp(float64(x[i]) - m)
			s1 += exp(float64(x[i+1]) - m)
		}
		if i < len(x) {
			sum += exp(float64(x[i]) - m)
		}
		return sum + s1
	}
	for _, v := range x {
		sum += math.Exp(float64(v - m))
	}
	return sum
}

// cast is the same slice under the name of its own element type, for a generic function that has looked at the size.
func cast[D, S any](s []S) []D {
	return unsafe.Slice((*D)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}

func softmaxRows[T float](t *task, _ *lane, lo, hi int) {
	cols := t.n[0]
	for i := lo; i < hi; i++ {
		x, y := row[T](&t.c.In[0], i, cols), row[T](&t.c.Out[0], i, cols)
		scale := T(1 / expRow(y, x, float64(largest(x)), 1))
		for j := range y {
			y[j] *= scale
		}
	}
}

func softmaxGradRows[T float](t *task, _ *lane, lo, hi int) {
	cols := t.n[0]
	for i := lo; i < hi; i++ {
		y, dy := row[T](&t.c.In[0], i, cols), row[T](&t.c.In[1], i, cols)
		dx := row[T](&t.c.Out[0], i, cols)
		dot := T(dot(y, dy))
		dy, dx = dy[:len(y)], dx[:len(y)]
		for j := range y {
			dx[j] = y[j] * (dy[j] - dot)
		}
	}
}

// dot is the inner product in float64, with four accumulators.
func dot[T float](x, y []T) float64 {
	var a, b, c, d float64
	y = y[:len(x)]
	i := 0
	for ; i+4 <= len(x); i += 4 {
		u, v := x[i:i+4:i+4], y[i:i+4:i+4]
		a += float64(float64(u[0]) * float64(v[0]))
		b += float64(float64(u[1]) * float64(v[1]))
		c += float64(float64(u[2]) * float64(v[2]))
		d += float64(float64(u[3]) * float64(v[3]))
	}
	for ; i < len(x); i++ {
		a += float64(float64(x[i]) * float64(y[i]))
	}
	return (a + b) + (c + d)
}

// sumOf is the sum in float64, with four accumulators.
func sumOf[T float](x []T) float64 {
	var acc [4]float64
	addLanes(&acc, x, len(x), 1)
	return (acc[0] + acc[1]) + (acc[2] + acc[3])
}

func logSoftmaxRows[T float](t *task, _ *lane, lo, hi int) {
	cols := t.n[0]
	for i := lo; i < hi; i++ {
		x, y := row[T](&t.c.In[0], i, cols), row[T](&t.c.Out[0], i, cols)
		m := largest(x)
		lse := float64(m) + math.Log(expSum(x, m))
		y = y[:len(x)]
		for j := range x {
			y[j] = T(float64(x[j]) - lse)
		}
	}
}

func logSoftmaxGradRows[T float](t *task, _ *lane, lo, hi int) {
	cols := t.n[0]
	for i := lo; i < hi; i++ {
		y, dy := row[T](&t.c.In[0], i, cols), row[T](&t.c.In[1], i, cols)
		dx := row[T](&t.c.Out[0], i, cols)
		sum := T(sumOf(dy))
		logSoftmaxGradRow(dx, y, dy, sum)
	}
}

func logSoftmaxGradRow[T float](dx, y, dy []T, sum T) {
	for j := range dx {
		var e float64
		if unsafe.Sizeof(sum) == 4 {
			e = exp(float64(y[j]))
		} else {
			e = math.Exp(float64(y[j]))
		}
		dx[j] = T(float64(dy[j]) - float64(e*float64(sum)))
	}
}
