// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

func maxPoolKernel(d *Device, c *backend.Call) {
	x, y := &c.In[0], &c.Out[0]
	if err := c.WantMaxPool(x, y, &c.Out[1]); err != nil {
		d.fault(c, "%v", err)
	}
	t := d.begin(c)
	defer t.end()
	planes, grain := x.Shape[0]*x.Shape[1], max(1, elementGrain/4/max(1, y.Shape[2]*y.Shape[3]*c.Ints[4]*c.Ints[5]))
	switch x.DType {
	case dtype.Float32:
		size := (x.Shape[2] + 2*c.Ints[2]) * (x.Shape[3] + 2*c.Ints[3])
		t.parts = d.scratch(4 * size)
		numberFrame(c, unsafe.Slice((*uint32)(t.parts.ptr), size), x.Shape[2], x.Shape[3])
		t.do(planes, grain, maxPoolVectors)
	case dtype.Float64:
		t.do(planes, grain, maxPoolPlanes)
	default:
		d.fault(c, "no kernel for %s", x.DType)
	}
}

// maxPoolPlanes looks at each window's pixels one by one.
func maxPoolPlanes(t *task, _ *workspace, lo, hi int) {
	c := t.c
	h, w, oh, ow := c.In[0].Shape[2], c.In[0].Shape[3], c.Out[0].Shape[2], c.Out[0].Shape[3]
	for p := lo; p < hi; p++ {
		x, y, index := row[float64](&c.In[0], p, h*w), row[float64](&c.Out[0], p, oh*ow),
			row[int64](&c.Out[1], p, oh*ow)
		for i := range y {
			top, left := i/ow*c.Ints[0]-c.Ints[2], i%ow*c.Ints[1]-c.Ints[3]
			first, last := max(left, 0), min(left+c.Ints[5], w)
			best := max(top, 0)*w + first
			for line := max(top, 0); line < min(top+c.Ints[4], h); line++ {
				for at := line*w + first; at < line*w+last; at++ {
					if v := x[at]; v > x[best] || v != v && x[best] == x[best] {
						best = at
					}
				}
			}
			y[i], index[i] = x[best], int64(best)
		}
	}
}

func maxPoolGradKernel(d *Device, c *backend.Call) {
	dy, dx := &c.In[0], &c.Out[0]
	if err := c.WantMaxPool(dx, dy, &c.In[1]); err != nil {
		d.fault(c, "%v", err)
	}
	t := d.begin(c)
	defer t.end()
	planes, grain := dx.Shape[0]*dx.Shape[1], max(1, elementGrain/4/max(1, dx.Shape[2]*dx.Shape[3]))
	switch dx.DType {
	case dtype.Float32:
		t.do(planes, grain, maxPoolGradPlanes[float32])
	case dtype.Float64:
		t.do(planes, grain, maxPoolGradPlanes[float64])
	default:
		d.fault(c, "no kernel for %s", dx.DType)
	}
}

// maxPoolGradPlanes adds the gradient of each window to that of its maximum.
func maxPoolGradPlanes[T float](t *task, _ *workspace, lo, hi int) {
	c := t.c
	size, windows := c.Out[0].Shape[2]*c.Out[0].Shape[3], c.In[0].Shape[2]*c.In[0].Shape[3]
	for p := lo; p < hi; p++ {
		dx, index := fill(row[T](&c.Out[0], p, size), 0), row[int64](&c.In[1], p, windows)
		for i, v := range row[T](&c.In[0], p, windows) {
			dx[index[i]] += v
		}
	}
}

// maxPoolVectors is maxPoolPlanes in single precision. A plane lies in a frame of padding that no pixel is smaller
// than; in place, each element becomes the maximum of ever more elements from itself on, of rows and then of columns,
// until they are a window, and so does the place where it was.
func maxPoolVectors(t *task, ws *workspace, lo, hi int) {
	c := t.c
	h, w, oh, ow := c.In[0].Shape[2], c.In[0].Shape[3], c.Out[0].Shape[2], c.Out[0].Shape[3]
	wide := w + 2*c.Ints[3]
	size := (h + 2*c.Ints[2]) * wide
	ws.reserve(2 * carved(4*size))
	values, places := carve[float32](ws, size), carve[uint32](ws, size)
	for p := lo; p < hi; p++ {
		x, y, index := row[float32](&c.In[0], p, h*w), row[float32](&c.Out[0], p, oh*ow),
			row[int64](&c.Out[1], p, oh*ow)
		framePlane(c, values, x, h, w)
		copy(places, unsafe.Slice((*uint32)(t.parts.ptr), size))
		widen(values, places, c.Ints[5], 1)
		widen(values, places, c.Ints[4], wide)
		for i := range oh {
			from := i * c.Ints[0] * wide
			for j := range ow {
				at := places[from+j*c.Ints[1]]
				if at == framed { // only −∞ is not larger than padding
					at = uint32(max(i*c.Ints[0]-c.Ints[2], 0)*w + max(j*c.Ints[1]-c.Ints[3], 0))
				}
				y[i*ow+j], index[i*ow+j] = x[at], int64(at)
			}
		}
	}
}

// framed is the place of padding.
const framed = math.MaxUint32

// numberFrame numbers the pixels of a plane in a frame of padding.
func numberFrame(c *backend.Call, places []uint32, h, w int) {
	wide := w + 2*c.Ints[3]
	for i := range places {
		places[i] = framed
	}
	for y := range h {
		line := places[(c.Ints[2]+y)*wide+c.Ints[3]:][:w]
		for i := range line {
			line[i] = uint32(y*w + i)
		}
	}
}

// framePlane copies the pixels of a plane into a frame of padding.
func framePlane(c *backend.Call, values, x []float32, h, w int) {
	wide := w + 2*c.Ints[3]
	if wide == w {
		fill(values[:c.Ints[2]*w], float32(negInf))
		copy(values[c.Ints[2]*w:], x)
		fill(values[(c.Ints[2]+h)*w:], float32(negInf))
		return
	}
	fill(values[:c.Ints[2]*wide], float32(negInf))
	for y := range h {
		line := values[(c.Ints[2]+y)*wide:][:wide]
		fill(line[:c.Ints[3]], float32(negInf))
		copy(line[c.Ints[3]:], x[y*w:(y+1)*w])
		fill(line[c.Ints[3]+w:], float32(negInf))
	}
	fill(values[(c.Ints[2]+h)*wide:], float32(negInf))
}

// widen makes each element the maximum of n elements that begin with it, step apart, the first of equals.
func widen(values []float32, places []uint32, n, step int) {
	for have := 1; have < n; {
		more := min(have, n-have)
		count := max(len(values)-more*step, 0)
		vecmath.Larger(values[:count], places[:count], values[:count], places[:count], values[len(values)-count:],
			places[len(values)-count:])
		have += more
	}
}
