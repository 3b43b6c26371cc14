package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// window is how the window of an image op moves over planes of h × w pixels: kh × kw elements at each of oh × ow places.
type window struct {
	planes                 int
	h, w, kh, kw, oh, ow   int
	sh, sw, ph, pw, dh, dw int
}

// windowOf lays out OpIm2Col or OpCol2Im; Launch has checked the views, check the rest.
func windowOf(c *backend.Call, image, cols *backend.View) window {
	s, k := &image.Shape, &cols.Shape
	return window{planes: s[0] * s[1], h: s[2], w: s[3], kh: k[2], kw: k[3], oh: k[4], ow: k[5],
		sh: c.Ints[0], sw: c.Ints[1], ph: c.Ints[2], pw: c.Ints[3], dh: c.Ints[4], dw: c.Ints[5]}
}

// wantWindow faults unless the operands of OpIm2Col or OpCol2Im fit.
func (d *Device) wantWindow(c *backend.Call, image, cols *backend.View) {
	if image.DType != cols.DType || image.NDim != 4 || cols.NDim != 6 || image.Shape[0] != cols.Shape[0] || image.Shape[1] != cols.Shape[1] {
		d.fault(c, "image of %s and shape %v, windows of %s and shape %v", image.DType, image.Shape[:image.NDim], cols.DType, cols.Shape[:cols.NDim])
	}
	if !image.Contiguous() || cols.Shape[5] > 1 && cols.Stride[5] != 1 || cols.Shape[4] > 1 && cols.Stride[4] != cols.Shape[5] {
		d.fault(c, "image of strides %v, windows of strides %v: want them contiguous, the windows in the last two dims", image.Stride[:4], cols.Stride[:6])
	}
	if c.Ints[0] < 1 || c.Ints[1] < 1 || c.Ints[2] < 0 || c.Ints[3] < 0 || c.Ints[4] < 1 || c.Ints[5] < 1 {
		d.fault(c, "stride, padding, dilation %v", c.Ints[:6])
	}
}

// placesOf is what element (a,b) of the window sees of a plane: a matrix of places.
func placesOf[T float](g *window, cols *backend.View, plane, a, b int) []T {
	n, ch := plane/cols.Shape[1], plane%cols.Shape[1]
	first := cols.Offset + n*cols.Stride[0] + ch*cols.Stride[1] + a*cols.Stride[2] + b*cols.Stride[3]
	return unsafe.Slice((*T)(at(cols, first)), g.oh*g.ow)
}

// inside is the range of places j < places whose pixel j·stride + offset lies in 0 ≤ pixel < size.
func inside(places, size, stride, offset int) (lo, hi int) {
	if offset < 0 {
		lo = (stride - 1 - offset) / stride
	}
	if size > offset {
		hi = (size - offset + stride - 1) / stride
	}
	hi = min(hi, places)
	return min(lo, hi), hi
}

func im2ColKernel(d *Device, c *backend.Call) {
	d.wantWindow(c, &c.In[0], &c.Out[0])
	t := d.begin(c)
	defer t.end()
	g := windowOf(c, &c.In[0], &c.Out[0])
	units, grain := g.planes*g.kh*g.kw, max(1, elementGrain/max(1, g.oh*g.ow))
	switch c.In[0].DType {
	case dtype.Float32:
		t.do(units, grain, im2ColUnits[float32])
	case dtype.Float64:
		t.do(units, grain, im2ColUnits[float64])
	default:
		d.fault(c, "no kernel for %s", c.In[0].DType)
	}
}

// im2ColUnits copies what one element of the window sees of one plane, for each unit.
func im2ColUnits[T float](t *task, _ *lane, lo, hi int) {
	g := windowOf(t.c, &t.c.In[0], &t.c.Out[0])
	for u := lo; u < hi; u++ {
		a, b := u/g.kw%g.kh, u%g.kw
		plane := u / (g.kw * g.kh)
		x, y := row[T](&t.c.In[0], plane, g.h*g.w), placesOf[T](&g, &t.c.Out[0], plane, a, b)
		seePlaces(&g, y, x, a, b)
	}
}

// seePlaces sets y to what element (a,b) of the window sees of the plane x.
func seePlaces[T float](g *window, y, x []T, a, b int) {
	left, top := b*g.dw-g.pw, a*g.dh-g.ph
	first, last := inside(g.ow, g.w, g.sw, left)
	above, below := inside(g.oh, g.h, g.sh, top)
	if first == last || above == below {
		clear(y)
		return
	}
	clear(y[:above*g.ow])
	clear(y[below*g.ow:])
	y, x = y[above*g.ow:below*g.ow], x[(above*g.sh+top)*g.w+first*g.sw+left:]
	if g.sw == 1 && g.sh == 1 && g.ow == g.w { // the plane, moved; what wrapped around is overwritten below
		copy(y[first:len(y)-(g.ow-last)], x)
	}
	for i := range below - above {
		line, from := y[i*g.ow:][:g.ow], x[i*g.sh*g.w:]
		for j := range first {
			line[j] = 0
		}
		for j := last; j < g.ow; j++ {
			line[j] = 0
		}
		line = line[first:last]
		switch {
		case g.sw > 1:
			for j := range line {
				line[j] = from[j*g.sw]
			}
		case g.sh > 1 || g.ow != g.w:
			copy(line, from)
		}
	}
}

func col2ImKernel(d *Device, c *backend.Call) {
	d.wantWindow(c, &c.Out[0], &c.In[0])
	t := d.begin(c)
	defer t.end()
	g := windowOf(c, &c.Out[0], &c.In[0])
	grain := max(1, elementGrain/max(1, g.kh*g.kw*g.oh*g.ow))
	switch c.In[0].DType {
	case dtype.Float32:
		t.do(g.planes, grain, col2ImPlanes[float32])
	case dtype.Float64:
		t.do(g.planes, grain, col2ImPlanes[float64])
	default:
		d.fault(c, "no kernel for %s", c.In[0].DType)
	}
}

// col2ImPlanes adds up one plane after the other in float64, an element of the window at a time.
func col2ImPlanes[T float](t *task, l *lane, lo, hi int) {
	g := windowOf(t.c, &t.c.Out[0], &t.c.In[0])
	l.reserve(8 * g.h * g.w)
	sums := carve[float64](l, g.h*g.w)
	for p := lo; p < hi; p++ {
		clear(sums)
		for a := range g.kh {
			for b := range g.kw {
				addPlaces(&g, sums, placesOf[T](&g, &t.c.In[0], p, a, b), a, b)
			}
		}
		for i, x := 0, row[T](&t.c.Out[0], p, g.h*g.w); i < len(x); i++ {
			x[i] = T(sums[i])
		}
	}
}

// shortLine is the length below which a loop is faster than a call of a vector kernel.
const shortLine = 24

// addPlaces adds what element (a,b) of the window sees to the pixels that it sees.
func addPlaces[T float](g *window, sums []float64, places []T, a, b int) {
	left, top := b*g.dw-g.pw, a*g.dh-g.ph
	first, last := inside(g.ow, g.w, g.sw, left)
	above, below := inside(g.oh, g.h, g.sh, top)
	if first == last {
		return
	}
	for i := above; i < below; i++ {
		line, to := places[i*g.ow:][first:last], sums[(i*g.sh+top)*g.w+first*g.sw+left:]
		switch {
		case g.sw > 1:
			for j, v := range line {
				to[j*g.sw] += float64(v)
			}
		case len(line) < shortLine:
			to = to[:len(line)]
			for j, v := range line {
				to[j] += float64(v)
			}
		default:
			addLine(to[:len(line)], line)
		}
	}
}

func maxPoolKernel(d *Device, c *backend.Call) {
	x, y, index := &c.In[0], &c.Out[0], &c.Out[1]
	d.wantRows(c, x, "input", 0)
	d.wantRows(c, y, "output", 0)
	fits := x.NDim == 4 && y.NDim == 4 && x.Shape[0] == y.Shape[0] && x.Shape[1] == y.Shape[1]
	for k := range 2 {
		s, p, n := c.Ints[k], c.Ints[2+k], c.Ints[4+k]
		fits = fits && s > 0 && p >= 0 && 2*p <= n && x.Shape[2+k] > 0 && x.Shape[2+k]+2*p >= n && y.Shape[2+k] == (x.Shape[2+k]+2*p-n)/s+1
	}
	if !fits {
		d.fault(c, "input of shape %v, output of shape %v, stride, padding, window %v", x.Shape[:x.NDim], y.Shape[:y.NDim], c.Ints[:6])
	}
	d.wantVector(c, index, dtype.Int64, y.Numel(), "index")
	t := d.begin(c)
	defer t.end()
	planes, grain := x.Shape[0]*x.Shape[1], max(1, elementGrain/4/max(1, y.Shape[2]*y.Shape[3]*c.Ints[4]*c.Ints[5]))
	switch x.DType {
	case dtype.Float32:
		t.do(planes, grain, maxPoolPlanes[float32])
	case dtype.Float64:
		t.do(planes, grain, maxPoolPlanes[float64])
	default:
		d.fault(c, "no kernel for %s", x.DType)
	}
}

func maxPoolPlanes[T float](t *task, _ *lane, lo, hi int) {
	c := t.c
	h, w, oh, ow := c.In[0].Shape[2], c.In[0].Shape[3], c.Out[0].Shape[2], c.Out[0].Shape[3]
	for p := lo; p < hi; p++ {
		x, y, index := row[T](&c.In[0], p, h*w), row[T](&c.Out[0], p, oh*ow), row[int64](&c.Out[1], p, oh*ow)
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
