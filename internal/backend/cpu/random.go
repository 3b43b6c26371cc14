// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/rng"
)

// randomBlock is the number of elements drawn at a time.
const randomBlock = 1024

// flat is the kernel body of contiguous operands of one size, by dtype.
func (d *Device) flat(c *backend.Call, ins int, f32, f64 body) {
	t := d.begin(c)
	defer t.end()
	n := c.Out[0].Numel()
	for i := range ins {
		d.wantVector(c, &c.In[i], c.Out[0].DType, n, "input")
	}
	for i := range c.NOut {
		d.wantVector(c, &c.Out[i], c.Out[0].DType, n, "output")
	}
	switch c.Out[0].DType {
	case dtype.Float32:
		t.do(n, elementGrain, f32)
	case dtype.Float64:
		t.do(n, elementGrain, f64)
	default:
		d.fault(c, "no kernel for %s", c.Out[0].DType)
	}
}

func dropoutKernel(d *Device, c *backend.Call) {
	if p := c.Floats[0]; !(p >= 0 && p <= 1) {
		d.fault(c, "probability %v: want 0 to 1", p)
	}
	d.flat(c, 1, dropoutElements[float32], dropoutElements[float64])
}

func dropoutElements[T float](t *task, ws *workspace, lo, hi int) {
	c := t.c
	x, out := slice[T](&c.In[0]), slice[T](&c.Out[0])
	p := c.Floats[0]
	scale := keepScale[T](p)
	sample := len(out)
	if c.Out[0].NDim > 0 {
		sample /= c.Out[0].Shape[0]
	}
	ws.reserve(carved(4 * randomBlock))
	bits := carve[uint32](ws, randomBlock)
	for i := lo; i < hi; {
		s := i / sample
		n := min(randomBlock, hi-i, (s+1)*sample-i)
		rng.FillUint32(bits[:n], c.Key, uint64(c.Ints[0]+s), uint64(i-s*sample))
		keepRow(out[i:i+n], x[i:i+n], bits[:n], rng.KeepThreshold(p), scale)
		i += n
	}
}

// keepScale is 1/(1−p), what is kept is multiplied by; 0 if nothing is kept.
func keepScale[T float](p float64) T {
	if p >= 1 {
		return 0
	}
	return T(1 / (1 - p))
}

func uniformKernel(d *Device, c *backend.Call) {
	d.flat(c, 0, uniform32, uniform64)
}

func uniform32(t *task, _ *workspace, lo, hi int) {
	out := slice[float32](&t.c.Out[0])[lo:hi]
	rng.FillFloat32(out, t.c.Key, uint64(t.c.Ints[0]), uint64(lo))
	a, b := float32(t.c.Floats[0]), float32(t.c.Floats[1]-t.c.Floats[0])
	for i := range out {
		out[i] = a + float32(out[i]*b)
	}
}

func uniform64(t *task, _ *workspace, lo, hi int) {
	out := slice[float64](&t.c.Out[0])[lo:hi]
	rng.FillFloat64(out, t.c.Key, uint64(t.c.Ints[0]), uint64(lo))
	a, b := t.c.Floats[0], t.c.Floats[1]-t.c.Floats[0]
	for i := range out {
		out[i] = a + float64(out[i]*b)
	}
}

func normalKernel(d *Device, c *backend.Call) {
	d.flat(c, 0, normal32, normal64)
}

func normal32(t *task, _ *workspace, lo, hi int) {
	out := slice[float32](&t.c.Out[0])[lo:hi]
	rng.FillNormal32(out, t.c.Key, uint64(t.c.Ints[0]), uint64(lo))
	mean, std := float32(t.c.Floats[0]), float32(t.c.Floats[1])
	for i := range out {
		out[i] = mean + float32(out[i]*std)
	}
}

func normal64(t *task, _ *workspace, lo, hi int) {
	out := slice[float64](&t.c.Out[0])[lo:hi]
	rng.FillNormal64(out, t.c.Key, uint64(t.c.Ints[0]), uint64(lo))
	mean, std := t.c.Floats[0], t.c.Floats[1]
	for i := range out {
		out[i] = mean + float64(out[i]*std)
	}
}
