// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// window is how the window of an image op moves over planes of h × w pixels of depth elements: kh × kw pixels at each
// of oh × ow places.
type window struct {
	planes, depth          int
	h, w, kh, kw, oh, ow   int
	sh, sw, ph, pw, dh, dw int
}

// windowOf lays out OpIm2Col or OpCol2Im; Launch has checked the views, check the rest.
func windowOf(c *backend.Call, image, cols *backend.View) window {
	s, k := &image.Shape, &cols.Shape
	return window{planes: s[0], h: s[1], w: s[2], depth: s[3], kh: k[1], kw: k[2], oh: k[3], ow: k[4],
		sh: c.Ints[0], sw: c.Ints[1], ph: c.Ints[2], pw: c.Ints[3], dh: c.Ints[4], dw: c.Ints[5]}
}

// wantWindow faults unless the operands of OpIm2Col or OpCol2Im fit.
func (d *Device) wantWindow(c *backend.Call, image, cols *backend.View) {
	if err := c.WantWindow(image, cols); err != nil {
		d.fault(c, "%v", err)
	}
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
	units, grain := g.planes*g.kh*g.kw, max(1, elementGrain/max(1, g.oh*g.ow*g.depth))
	switch c.In[0].DType {
	case dtype.Float32:
		t.do(units, grain, im2ColUnits[float32])
	case dtype.Float64:
		t.do(units, grain, im2ColUnits[float64])
	default:
		d.fault(c, "no kernel for %s", c.In[0].DType)
	}
}

// im2ColUnits copies what one pixel of the window sees of one plane, for each unit.
func im2ColUnits[T float](t *task, _ *workspace, lo, hi int) {
	g := windowOf(t.c, &t.c.In[0], &t.c.Out[0])
	for u := lo; u < hi; u++ {
		a, b := u/g.kw%g.kh, u%g.kw
		x, y := row[T](&t.c.In[0], u/(g.kw*g.kh), g.h*g.w*g.depth), row[T](&t.c.Out[0], u, g.oh*g.ow*g.depth)
		seePlaces(&g, y, x, a, b)
	}
}

// seePlaces sets y to what pixel (a,b) of the window sees of the plane x.
func seePlaces[T float](g *window, y, x []T, a, b int) {
	left, top := b*g.dw-g.pw, a*g.dh-g.ph
	first, last := inside(g.ow, g.w, g.sw, left)
	above, below := inside(g.oh, g.h, g.sh, top)
	if first == last || above == below {
		clear(y)
		return
	}
	n, width := g.depth, g.ow*g.depth
	clear(y[:above*width])
	clear(y[below*width:])
	for i := above; i < below; i++ {
		line, from := y[i*width:][:width], x[((i*g.sh+top)*g.w+first*g.sw+left)*n:]
		clear(line[:first*n])
		clear(line[last*n:])
		line = line[first*n : last*n]
		switch {
		case g.sw == 1:
			copy(line, from)
		case n == 1:
			for j := range line {
				line[j] = from[j*g.sw]
			}
		default:
			for j := range last - first {
				copy(line[j*n:(j+1)*n], from[j*g.sw*n:])
			}
		}
	}
}

func col2ImKernel(d *Device, c *backend.Call) {
	d.wantWindow(c, &c.Out[0], &c.In[0])
	t := d.begin(c)
	defer t.end()
	g := windowOf(c, &c.Out[0], &c.In[0])
	grain := max(1, elementGrain/max(1, g.kh*g.kw*g.oh*g.ow*g.depth))
	switch c.In[0].DType {
	case dtype.Float32:
		t.do(g.planes, grain, col2ImPlanes[float32])
	case dtype.Float64:
		t.do(g.planes, grain, col2ImPlanes[float64])
	default:
		d.fault(c, "no kernel for %s", c.In[0].DType)
	}
}

// col2ImPlanes adds up one plane after the other in float64, a pixel of the window at a time.
func col2ImPlanes[T float](t *task, ws *workspace, lo, hi int) {
	g := windowOf(t.c, &t.c.Out[0], &t.c.In[0])
	size, places := g.h*g.w*g.depth, g.oh*g.ow*g.depth
	ws.reserve(8 * size)
	sums := carve[float64](ws, size)
	for p := lo; p < hi; p++ {
		clear(sums)
		for a := range g.kh {
			for b := range g.kw {
				addPlaces(&g, sums, row[T](&t.c.In[0], (p*g.kh+a)*g.kw+b, places), a, b)
			}
		}
		for i, x := 0, row[T](&t.c.Out[0], p, size); i < len(x); i++ {
			x[i] = T(sums[i])
		}
	}
}

// shortLine is the length below which a loop is faster than a call of a vector kernel.
const shortLine = 24

// addPlaces adds what pixel (a,b) of the window sees to the pixels that it sees.
func addPlaces[T float](g *window, sums []float64, places []T, a, b int) {
	left, top := b*g.dw-g.pw, a*g.dh-g.ph
	first, last := inside(g.ow, g.w, g.sw, left)
	above, below := inside(g.oh, g.h, g.sh, top)
	if first == last {
		return
	}
	n := g.depth
	for i := above; i < below; i++ {
		line, to := places[(i*g.ow+first)*n:(i*g.ow+last)*n], sums[((i*g.sh+top)*g.w+first*g.sw+left)*n:]
		if g.sw == 1 {
			addRun(to[:len(line)], line)
			continue
		}
		for j := range last - first {
			addRun(to[j*g.sw*n:][:n], line[j*n:(j+1)*n])
		}
	}
}

// addRun adds x to sums.
func addRun[T float](sums []float64, x []T) {
	if len(x) >= shortLine {
		addRow(sums, x)
		return
	}
	for i, v := range x {
		sums[i] += float64(v)
	}
}
