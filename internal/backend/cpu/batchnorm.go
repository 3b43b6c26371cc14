// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"math"
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// batchLine is the number of elements that the inner loops of a batch norm should have: shorter planes are put
// together.
const batchLine = 256

// channels is how x [N,C,L] is worked on: a channel is n planes of size elements, per of which make a line.
type channels struct{ n, c, size, per int }

func channelsOf(x *backend.View) channels {
	g := channels{n: x.Shape[0], c: x.Shape[1], size: x.Shape[2], per: 1}
	if g.size > 0 && g.size < batchLine {
		g.per = min(max(g.n, 1), batchLine/g.size)
	}
	return g
}

// width is the length of the longest line.
func (g *channels) width() int { return g.per * g.size }

// count is the number of elements of a channel, for a mean: 1 if there are none.
func (g *channels) count() float64 { return float64(max(g.n*g.size, 1)) }

// lineOf is the line of channel ch that begins at plane first: a plane where it lies, or several copied into room.
func lineOf[T float](g *channels, room []T, x *backend.View, ch, first int) []T {
	if g.per == 1 {
		return row[T](x, first*g.c+ch, g.size)
	}
	n := min(g.per, g.n-first)
	all := slice[T](x)[(first*g.c+ch)*g.size:]
	if g.size == 1 {
		for i := range n {
			room[i] = all[i*g.c]
		}
		return room[:n]
	}
	for i := range n {
		copy(room[i*g.size:(i+1)*g.size], all[i*g.c*g.size:])
	}
	return room[:n*g.size]
}

// roomFor is where the line that begins at plane first is to be written: the plane, or room for several.
func roomFor[T float](g *channels, room []T, y *backend.View, ch, first int) []T {
	if g.per == 1 {
		return row[T](y, first*g.c+ch, g.size)
	}
	return room[:min(g.per, g.n-first)*g.size]
}

// putLine moves a line from the room that roomFor gave to its planes.
func putLine[T float](g *channels, line []T, y *backend.View, ch, first int) {
	if g.per == 1 {
		return
	}
	all := slice[T](y)[(first*g.c+ch)*g.size:]
	if g.size == 1 {
		for i, v := range line {
			all[i*g.c] = v
		}
		return
	}
	for i := range len(line) / g.size {
		copy(all[i*g.c*g.size:], line[i*g.size:(i+1)*g.size])
	}
}

// fill sets all elements to v.
func fill[T float](line []T, v T) []T {
	for i := range line {
		line[i] = v
	}
	return line
}

// batchwise is the kernel of an op that works on the channels of In[0] [N,C,L]. same are the operands of its shape, the
// others have one element per channel.
func batchwise(outs, ins int, sameOut, sameIn []int, f32, f64 body) kernel {
	return kernel{outs: outs, ins: ins, run: func(d *Device, c *backend.Call) {
		x := &c.In[0]
		if x.NDim != 3 {
			d.fault(c, "input of shape %v: want [N C L]", x.Shape[:x.NDim])
		}
		d.wantRows(c, x, "input", 0)
		d.wantChannels(c, c.In[1:c.NIn], sameIn, 1, "input")
		d.wantChannels(c, c.Out[:c.NOut], sameOut, 0, "output")
		t := d.begin(c)
		defer t.end()
		g := channelsOf(x)
		grain := max(1, elementGrain/4/max(1, g.n*g.size))
		switch x.DType {
		case dtype.Float32:
			t.do(g.c, grain, f32)
		case dtype.Float64:
			t.do(g.c, grain, f64)
		default:
			d.fault(c, "no kernel for %s", x.DType)
		}
	}}
}

// wantChannels faults unless operands have one element per channel of In[0], or, those numbered in same, its shape.
func (d *Device) wantChannels(c *backend.Call, views []backend.View, same []int, first int, what string) {
	for i := range views {
		n := c.In[0].Shape[1]
		for _, s := range same {
			if s == first+i {
				n = c.In[0].Numel()
			}
		}
		d.wantVector(c, &views[i], c.In[0].DType, n, what)
	}
}

func batchStatsChannels[T float](t *task, ws *workspace, lo, hi int) {
	x, mean, variance := &t.c.In[0], slice[T](&t.c.Out[0]), slice[T](&t.c.Out[1])
	g := channelsOf(x)
	ws.reserve(g.width() * int(unsafe.Sizeof(*new(T))))
	room := carve[T](ws, g.width())
	for ch := lo; ch < hi; ch++ {
		var sum, dev float64
		for i := 0; i < g.n; i += g.per {
			sum += sumOf(lineOf(&g, room, x, ch, i))
		}
		mu := sum / g.count()
		for i := 0; i < g.n; i += g.per {
			dev += deviations(lineOf(&g, room, x, ch, i), mu)
		}
		mean[ch], variance[ch] = T(mu), T(dev/g.count())
	}
}

// inverseDeviation is 1/√(variance + eps).
func inverseDeviation[T float](variance T, eps float64) T {
	return T(1 / math.Sqrt(float64(variance)+eps))
}

func batchNormChannels[T float](t *task, ws *workspace, lo, hi int) {
	c := t.c
	x, y, mean, variance := &c.In[0], &c.Out[0], slice[T](&c.In[1]), slice[T](&c.In[2])
	weight, bias := param[T](c, 3), param[T](c, 4)
	g := channelsOf(x)
	ws.reserve(4 * carved(g.width()*int(unsafe.Sizeof(*new(T)))))
	in, out, weights, biases := carve[T](ws, g.width()), carve[T](ws, g.width()), carve[T](ws, g.width()),
		carve[T](ws, g.width())
	for ch := lo; ch < hi; ch++ {
		m, s := mean[ch], inverseDeviation(variance[ch], c.Floats[0])
		if weight != nil {
			fill(weights, weight[ch])
			fill(biases, bias[ch])
		}
		for i := 0; i < g.n; i += g.per {
			from := lineOf(&g, in, x, ch, i)
			to := roomFor(&g, out, y, ch, i)
			if weight != nil {
				normalizeRow(to, from, weights[:len(to)], biases[:len(to)], m, s, false)
			} else {
				normalizeRow(to, from, nil, nil, m, s, false)
			}
			putLine(&g, to, y, ch, i)
		}
	}
}

func batchNormGradChannels[T float](t *task, ws *workspace, lo, hi int) {
	c := t.c
	x, dy, dx := &c.In[0], &c.In[3], &c.Out[0]
	mean, variance, weight := slice[T](&c.In[1]), slice[T](&c.In[2]), param[T](c, 4)
	dweight, dbias := slice[T](&c.Out[1]), slice[T](&c.Out[2])
	g := channelsOf(x)
	ws.reserve(4 * carved(g.width()*int(unsafe.Sizeof(*new(T)))))
	inX, inDY, out, ones := carve[T](ws, g.width()), carve[T](ws, g.width()), carve[T](ws, g.width()),
		fill(carve[T](ws, g.width()), 1)
	for ch := lo; ch < hi; ch++ {
		m, s := mean[ch], inverseDeviation(variance[ch], c.Floats[0])
		var sum, inner float64 // Σ dy and Σ dy·x̂
		for i := 0; i < g.n; i += g.per {
			from := lineOf(&g, inX, x, ch, i)
			a, b := normSumsRow(nil, nil, from, lineOf(&g, inDY, dy, ch, i), ones[:len(from)], m, s)
			sum += a
			inner += b
		}
		dweight[ch], dbias[ch] = T(inner), T(sum)
		if c.Ints[0] == 1 {
			sum, inner = 0, 0
		}
		f := s
		if weight != nil {
			f *= weight[ch]
		}
		a, b := T(sum/g.count()), T(inner/g.count())
		for i := 0; i < g.n; i += g.per {
			to := roomFor(&g, out, dx, ch, i)
			normGradRow(to, lineOf(&g, inX, x, ch, i), lineOf(&g, inDY, dy, ch, i), ones[:len(to)], m, s, a, b, f,
				false)
			putLine(&g, to, dx, ch, i)
		}
	}
}
