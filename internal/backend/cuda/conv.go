// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// convolution is the geometry of OpConv2D and its gradients: images x [n,c,h,w], kernels [o,c,kh,kw] and results y
// [n,o,oh,ow]. cuDNN computes them where it is there and has a deterministic algorithm. Else a sample's windows are
// unfolded into a matrix [c·kh·kw, oh·ow], so that each of the three is a product for each sample. Samples are then
// worked on in groups, which follow only from the shape.
type convolution struct {
	window
	n, c, o int
	dt      dtype.DType
	group   int  // samples
	plain   bool // a window of one pixel that moves by one: the images are unfolded as they are
}

// convScratch is the memory that a group's matrices may take, unless one sample takes more.
var convScratch = 256 << 20 // which a test makes small

// convolve lays an op out and checks its operands.
func (s *stream) convolve(c *backend.Call, image, kernel, result *backend.View) convolution {
	for _, v := range []*backend.View{image, kernel, result} {
		if v.NDim != 4 || v.DType != image.DType || !v.Contiguous() {
			s.fault(c, "an operand is %s of shape %v, strides %v: want %s of four dims, contiguous", v.DType,
				v.Shape[:v.NDim], v.Stride[:v.NDim], image.DType)
		}
	}
	g := convolution{n: image.Shape[0], c: image.Shape[1], o: kernel.Shape[0], dt: image.DType,
		window: window{depth: 1, h: image.Shape[2], w: image.Shape[3], kh: kernel.Shape[2], kw: kernel.Shape[3],
			oh: result.Shape[2], ow: result.Shape[3], sh: c.Ints[0], sw: c.Ints[1], ph: c.Ints[2], pw: c.Ints[3],
			dh: c.Ints[4], dw: c.Ints[5]}}
	if !g.fits() || kernel.Shape[1] != g.c || result.Shape[0] != g.n || result.Shape[1] != g.o {
		s.fault(c, "images %v, kernels %v and results %v; stride, padding, dilation %v", image.Shape[:4],
			kernel.Shape[:4], result.Shape[:4], c.Ints[:6])
	}
	if c.Op == backend.OpConv2D && c.NIn > 2 {
		s.wantVector(c, &c.In[2], g.dt, g.o, "bias")
	}
	g.plain = g.kh == 1 && g.kw == 1 && g.sh == 1 && g.sw == 1 && g.ph == 0 && g.pw == 0
	need := max(g.taps()*g.places(), g.o*g.taps()) * statistic(g.dt).Size()
	g.group = max(1, min(g.n, convScratch/max(1, need)))
	g.planes = g.group * g.c
	s.wantPlane(c, &g.window)
	return g
}

// fits reports whether the window moves over the images as the results say.
func (g *convolution) fits() bool {
	if g.kh < 1 || g.kw < 1 || g.sh < 1 || g.sw < 1 || g.ph < 0 || g.pw < 0 || g.dh < 1 || g.dw < 1 {
		return false
	}
	high, wide := g.h+2*g.ph-g.dh*(g.kh-1)-1, g.w+2*g.pw-g.dw*(g.kw-1)-1
	return high >= 0 && wide >= 0 && g.oh == high/g.sh+1 && g.ow == wide/g.sw+1
}

// taps is the number of elements of a kernel, and places that of a result's channel.
func (g *convolution) taps() int   { return g.c * g.kh * g.kw }
func (g *convolution) places() int { return g.oh * g.ow }

// empty reports whether there is nothing to multiply.
func (g *convolution) empty() bool { return g.n*g.c*g.o*g.places() == 0 }

// groups calls f for each group of samples.
func (g *convolution) groups(f func(first, n int)) {
	for first := 0; first < g.n; first += g.group {
		f(first, min(g.group, g.n-first))
	}
}

// samples shows n samples of a contiguous operand, each as a matrix.
func samples(v *backend.View, first, n, rows, cols int) backend.View {
	m := backend.View{Buf: v.Buf, DType: v.DType, Offset: v.Offset + first*rows*cols, NDim: 3}
	m.Shape = [backend.MaxDims]int{n, rows, cols}
	m.Stride = [backend.MaxDims]int{rows * cols, cols, 1}
	return m
}

// turned exchanges a matrix's rows and columns.
func turned(m backend.View) backend.View {
	m.Shape[1], m.Shape[2] = m.Shape[2], m.Shape[1]
	m.Stride[1], m.Stride[2] = m.Stride[2], m.Stride[1]
	return m
}

// repeatedMatrix is a matrix for each of n samples.
func repeatedMatrix(m backend.View, n int) backend.View {
	m.Shape[0], m.Stride[0] = n, 0
	return m
}

// unfolded is what the windows of n samples see: images themselves, or a temporary matrix.
func (g *convolution) unfolded(s *stream, image, room *backend.View, first, n int) backend.View {
	if g.plain {
		return samples(image, first, n, g.c, g.places())
	}
	part := g.window
	part.planes = n * g.c
	cols, from := samples(room, 0, n, g.taps(), g.places()), samples(image, first, n, g.c, g.h*g.w)
	s.unfold(&part, g.dt, s.addr(&from), s.addr(&cols))
	return cols
}

// room is memory for a group's unfolded windows of a dtype.
func (g *convolution) room(s *stream, dt dtype.DType) backend.View {
	if g.plain {
		return backend.View{}
	}
	return s.temporary(dt, g.group, g.taps(), g.places())
}

func conv2D(s *stream, c *backend.Call) {
	x, w, y := &c.In[0], &c.In[1], &c.Out[0]
	g := s.convolve(c, x, w, y)
	biased := c.NIn > 2
	if y.Numel() == 0 {
		return
	}
	if biased {
		var a args
		a.ptr(s.addr(&c.In[2]))
		a.ptr(s.addr(y))
		a.i64(g.n * g.o)
		a.i32(g.o)
		a.i32(g.places())
		s.planeKernel("conv_bias_"+suffix(g.dt), int(s.blocks(c, g.n*g.o, 1)), g.places(), &a)
	}
	if g.empty() {
		if !biased {
			s.run(backend.OpFill, 0, y)
		}
		return
	}
	if s.byLibrary(cuda.Forward, &g, x, w, y, biased) {
		return
	}
	kernels, room := samples(w, 0, 1, g.o, g.taps()), g.room(s, g.dt)
	g.groups(func(first, n int) {
		s.batched(repeatedMatrix(kernels, n), g.unfolded(s, x, &room, first, n), samples(y, first, n, g.o, g.places()),
			biased)
	})
}

func conv2DGrad(s *stream, c *backend.Call) {
	dy, w, dx := &c.In[0], &c.In[1], &c.Out[0]
	g := s.convolve(c, dx, w, dy)
	if dx.Numel() == 0 {
		return
	}
	if g.empty() {
		s.run(backend.OpFill, 0, dx)
		return
	}
	if s.byLibrary(cuda.DataGrad, &g, dx, w, dy, false) {
		return
	}
	kernels := turned(samples(w, 0, 1, g.o, g.taps()))
	stat := statistic(g.dt)
	room := g.room(s, stat)
	g.groups(func(first, n int) {
		to := samples(dx, first, n, g.c, g.h*g.w)
		cols := to
		if !g.plain {
			cols = samples(&room, 0, n, g.taps(), g.places())
		}
		s.batched(repeatedMatrix(kernels, n), samples(dy, first, n, g.o, g.places()), cols, false)
		if !g.plain {
			part := g.window
			part.planes = n * g.c
			s.fold(&part, stat, g.dt, s.addr(&cols), s.addr(&to))
		}
	})
}

func conv2DParamGrad(s *stream, c *backend.Call) {
	x, dy, dw := &c.In[0], &c.In[1], &c.Out[0]
	g := s.convolve(c, x, dw, dy)
	if dw.Numel() == 0 {
		return
	}
	if g.empty() {
		s.run(backend.OpFill, 0, dw)
		return
	}
	if s.byLibrary(cuda.FilterGrad, &g, x, dw, dy, false) {
		return
	}
	size := g.o * g.taps()
	parts, room := s.temporary(statistic(g.dt), g.group, g.o, g.taps()), g.room(s, g.dt)
	sums := s.scratch(8 * size)
	g.groups(func(first, n int) {
		cols := turned(g.unfolded(s, x, &room, first, n))
		s.batched(samples(dy, first, n, g.o, g.places()), cols, samples(&parts, 0, n, g.o, g.taps()), false)
		var a args
		a.ptr(s.addr(&parts))
		a.ptr(sums)
		if first+n == g.n {
			a.ptr(s.addr(dw))
		} else {
			a.ptr(0)
		}
		a.i64(size)
		a.i32(n)
		if first == 0 {
			a.i32(1)
		} else {
			a.i32(0)
		}
		s.kernel("conv_sum_"+suffix(g.dt), s.gridFor(size), block256, 0, &a)
	})
}
