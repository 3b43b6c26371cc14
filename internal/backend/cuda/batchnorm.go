// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// batch is x [N,C,L] for batch norm, and the segments that a channel's N·L elements are summed in.
type batch struct {
	n, c, l           int
	segments, segment int
	dt, params        dtype.DType // of x, and of the parameters and their gradients
}

// The elements of a segment, at least, and the segments of a channel, at most.
const (
	segmentElements = 2048
	mostSegments    = 256
	batchThreads    = 256
)

// batchOf looks at x and the other operands: those numbered in sameIn and sameOut have x's shape, inputs from params on
// are parameters [C], outputs from grads on their gradients, and the rest statistics [C].
func (s *stream) batchOf(c *backend.Call, sameIn, sameOut, params, grads int) batch {
	x := &c.In[0]
	if x.NDim != 3 {
		s.fault(c, "input of shape %v: want [N C L]", x.Shape[:x.NDim])
	}
	s.wantRows(c, x, "input", 0)
	b := batch{n: x.Shape[0], c: x.Shape[1], l: x.Shape[2], dt: x.DType, params: x.DType}
	for _, v := range [][]backend.View{c.In[min(params, c.NIn):c.NIn], c.Out[min(grads, c.NOut):c.NOut]} {
		if len(v) > 0 && v[0].DType == statistic(x.DType) {
			b.params = statistic(x.DType)
		}
	}
	want := func(v *backend.View, same, own bool, what string) {
		dt, n := statistic(x.DType), x.Shape[1]
		switch {
		case same:
			dt, n = x.DType, x.Numel()
		case own:
			dt = b.params
		}
		s.wantVector(c, v, dt, n, what)
	}
	for i := 1; i < c.NIn; i++ {
		want(&c.In[i], i == sameIn, i >= params, "input")
	}
	for i := range c.NOut {
		want(&c.Out[i], i == sameOut, i >= grads, "output")
	}
	count := b.n * b.l
	b.segments = min(max(1, (count+segmentElements-1)/segmentElements), mostSegments)
	b.segment = roundUp(max(1, (count+b.segments-1)/b.segments), 16) // whole chunks
	return b
}

// pack adds the shape as the kernels want it.
func (b *batch) pack(a *args) {
	a.i32(b.n)
	a.i32(b.c)
	a.i32(b.l)
	a.i32(b.segment)
}

// bySegment, byChannel and byElement are grids.
func (s *stream) bySegment(b *batch, name string, a *args) {
	s.kernel(name+"_"+suffix(b.dt), [3]uint32{uint32(b.segments), uint32(min(b.c, 65535)), 1},
		[3]uint32{batchThreads, 1, 1}, 0, a)
}

func (s *stream) byChannel(b *batch, name string, dt dtype.DType, a *args) {
	s.kernel(name+"_"+suffix(dt), [3]uint32{blocksFor(b.c, 128), 1, 1}, [3]uint32{128, 1, 1}, 0, a)
}

func (s *stream) byElement(b *batch, name string, a *args) {
	name += "_" + suffix(b.dt)
	if b.params != b.dt {
		name += "_" + suffix(b.params)
	}
	s.kernel(name, s.gridFor(b.n*b.c*b.l), block256, 0, a)
}

func batchStats(s *stream, c *backend.Call) {
	b := s.batchOf(c, 0, -1, 1, 2)
	if b.c == 0 {
		return
	}
	parts := s.scratch(16 * b.segments * b.c)
	if b.n*b.l > 0 {
		var a args
		a.ptr(s.addr(&c.In[0]))
		a.ptr(parts)
		b.pack(&a)
		s.bySegment(&b, "batch_moments", &a)
	}
	var a args
	a.ptr(s.addr(&c.In[0]))
	a.ptr(parts)
	a.i32(b.segments)
	a.ptr(s.addr(&c.Out[0]))
	a.ptr(s.addr(&c.Out[1]))
	b.pack(&a)
	s.byChannel(&b, "batch_stats", b.dt, &a)
}

// batchScale is 1/√(variance + eps) of each channel.
func (s *stream) batchScale(c *backend.Call, b *batch) cuda.Ptr {
	stat := statistic(b.dt)
	rstd := s.scratch(stat.Size() * b.c)
	var a args
	a.ptr(s.addr(&c.In[2]))
	a.ptr(rstd)
	a.i32(b.c)
	a.f64(c.Floats[0])
	s.byChannel(b, "batch_scale", stat, &a)
	return rstd
}

func batchNorm(s *stream, c *backend.Call) {
	b := s.batchOf(c, 0, 0, 3, 1)
	if c.NIn == 4 {
		s.fault(c, "a weight without a bias")
	}
	if b.n*b.c*b.l == 0 {
		return
	}
	rstd := s.batchScale(c, &b)
	var a args
	a.ptr(s.addr(&c.In[0]))
	a.ptr(s.addr(&c.In[1]))
	a.ptr(rstd)
	a.ptr(s.optional(c, 3))
	a.ptr(s.optional(c, 4))
	a.ptr(s.addr(&c.Out[0]))
	b.pack(&a)
	s.byElement(&b, "batch_norm", &a)
}

func batchNormGrad(s *stream, c *backend.Call) {
	b := s.batchOf(c, 3, 0, 4, 1)
	if b.c == 0 {
		return
	}
	stat := statistic(b.dt)
	rstd, parts, means := s.batchScale(c, &b), s.scratch(16*b.segments*b.c), s.scratch(2*stat.Size()*b.c)
	segments := b.segments
	if b.n*b.l == 0 {
		segments = 0
	} else {
		var a args
		a.ptr(s.addr(&c.In[0]))
		a.ptr(s.addr(&c.In[1]))
		a.ptr(rstd)
		a.ptr(s.addr(&c.In[3]))
		a.ptr(parts)
		b.pack(&a)
		s.bySegment(&b, "batch_grad_sums", &a)
	}
	var a args
	a.ptr(parts)
	a.i32(segments)
	a.ptr(s.addr(&c.Out[1]))
	a.ptr(s.addr(&c.Out[2]))
	a.ptr(means)
	b.pack(&a)
	a.i32(c.Ints[0])
	s.byChannel(&b, "batch_grad_params", b.params, &a)
	if segments == 0 {
		return
	}
	a = args{}
	a.ptr(s.addr(&c.In[0]))
	a.ptr(s.addr(&c.In[1]))
	a.ptr(rstd)
	a.ptr(s.addr(&c.In[3]))
	a.ptr(s.optional(c, 4))
	a.ptr(means)
	a.ptr(s.addr(&c.Out[0]))
	b.pack(&a)
	s.byElement(&b, "batch_norm_grad", &a)
}
