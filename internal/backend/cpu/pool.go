package cpu

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

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
		t.do(planes, grain, maxPoolKeys)
	case dtype.Float64:
		t.do(planes, grain, maxPoolPlanes)
	default:
		d.fault(c, "no kernel for %s", x.DType)
	}
}

// maxPoolPlanes looks at each window's pixels one by one.
func maxPoolPlanes(t *task, _ *lane, lo, hi int) {
	c := t.c
	h, w, oh, ow := c.In[0].Shape[2], c.In[0].Shape[3], c.Out[0].Shape[2], c.Out[0].Shape[3]
	for p := lo; p < hi; p++ {
		x, y, index := row[float64](&c.In[0], p, h*w), row[float64](&c.Out[0], p, oh*ow), row[int64](&c.Out[1], p, oh*ow)
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

// maxPoolKeys is maxPoolPlanes in single precision. Which pixel is the largest cannot be predicted, so it takes no branches: a pixel is an integer that is ordered as
// the pixels are, with its place below, the first the largest. Maxima of columns are shared by windows side by side.
func maxPoolKeys(t *task, l *lane, lo, hi int) {
	c := t.c
	h, w, oh, ow := c.In[0].Shape[2], c.In[0].Shape[3], c.Out[0].Shape[2], c.Out[0].Shape[3]
	l.reserve(carved(8*h*w) + carved(8*w))
	keys, columns := carve[int64](l, h*w), carve[int64](l, w)
	for p := lo; p < hi; p++ {
		x, y, index := row[float32](&c.In[0], p, h*w), row[float32](&c.Out[0], p, oh*ow), row[int64](&c.Out[1], p, oh*ow)
		for i, v := range x {
			keys[i] = poolKey(v, i)
		}
		for i := range oh {
			top := i*c.Ints[0] - c.Ints[2]
			first, last := max(top, 0), min(top+c.Ints[4], h)
			copy(columns, keys[first*w:])
			for line := first + 1; line < last; line++ {
				for j, k := range keys[line*w : (line+1)*w] {
					columns[j] = max(columns[j], k)
				}
			}
			for j := range ow {
				left := j*c.Ints[1] - c.Ints[3]
				seen := columns[max(left, 0):min(left+c.Ints[5], w)]
				best := seen[0]
				for _, k := range seen[1:] {
					best = max(best, k)
				}
				at := int(^uint32(best))
				y[i*ow+j], index[i*ow+j] = x[at], int64(at)
			}
		}
	}
}

// poolKey orders pixels by size, NaN above all and −0 as 0, then by place, the first above the others.
func poolKey(v float32, place int) int64 {
	bits := int32(math.Float32bits(v + 0)) // −0 + 0 is 0
	order := bits ^ bits>>31&math.MaxInt32
	if v != v {
		order = math.MaxInt32
	}
	return int64(order)<<32 | int64(^uint32(place))
}
