// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// imageOps are those of kernels/images.cu and rope.cu.
var imageOps = map[backend.Op]row{
	backend.OpIm2Col:          {im2Col, floats},
	backend.OpCol2Im:          {col2Im, floats},
	backend.OpMaxPool:         {maxPool, floats},
	backend.OpMaxPoolGrad:     {maxPoolGrad, floats},
	backend.OpConv2D:          {conv2D, floats},
	backend.OpConv2DGrad:      {conv2DGrad, floats},
	backend.OpConv2DParamGrad: {conv2DParamGrad, floats},
	backend.OpRoPE:            {rope, floats},
}

// window is how the window of an image op moves over planes of h × w pixels of depth elements: kh × kw pixels at each
// of oh × ow places.
type window struct {
	planes, depth          int
	h, w, kh, kw, oh, ow   int
	sh, sw, ph, pw, dh, dw int
}

// pack adds struct Window.
func (g *window) pack(a *args) {
	a.i64(g.planes)
	for _, n := range []int{g.depth, g.h, g.w, g.kh, g.kw, g.oh, g.ow, g.sh, g.sw, g.ph, g.pw, g.dh, g.dw} {
		a.i32(n)
	}
	a.align(8)
}

// wantWindow lays out OpIm2Col or OpCol2Im, and faults unless the operands fit.
func (s *stream) wantWindow(c *backend.Call, image, cols *backend.View) window {
	if err := c.WantWindow(image, cols); err != nil {
		s.fault(c, "%v", err)
	}
	i, k := &image.Shape, &cols.Shape
	g := window{planes: i[0], h: i[1], w: i[2], depth: i[3], kh: k[1], kw: k[2], oh: k[3], ow: k[4],
		sh: c.Ints[0], sw: c.Ints[1], ph: c.Ints[2], pw: c.Ints[3], dh: c.Ints[4], dw: c.Ints[5]}
	s.wantPlane(c, &g)
	return g
}

// wantPlane faults if a plane's elements or places have no numbers of 32 bits.
func (s *stream) wantPlane(c *backend.Call, g *window) {
	const most = 1<<31 - 1
	if g.h*g.w*g.depth > most || g.oh*g.ow*g.depth > most || g.planes*g.kh*g.kw > most {
		s.fault(c, "%d planes of %d × %d pixels of %d elements and %d × %d places of a window of %d × %d are too large",
			g.planes, g.h, g.w, g.depth, g.oh, g.ow, g.kh, g.kw)
	}
}

// planeKernel queues a kernel with so many blocks, or rows of blocks, of n elements each.
func (s *stream) planeKernel(name string, blocks, n int, a *args) {
	across := min(threads, roundUp(n, 32))
	s.kernel(name, [3]uint32{uint32(blocks), min(64, blocksFor(n, 4*across)), 1}, [3]uint32{uint32(across), 1, 1}, 0,
		a)
}

// unfold queues im2col.
func (s *stream) unfold(g *window, dt dtype.DType, x, cols cuda.Ptr) {
	units, n := g.planes*g.kh*g.kw, g.oh*g.ow*g.depth
	if units*n == 0 {
		return
	}
	var a args
	a.ptr(x)
	a.ptr(cols)
	g.pack(&a)
	s.planeKernel("im2col_"+suffix(dt), units, n, &a)
}

// fold queues col2im of windows of dtype from.
func (s *stream) fold(g *window, from, to dtype.DType, cols, x cuda.Ptr) {
	n := g.h * g.w * g.depth
	if g.planes*n == 0 {
		return
	}
	name := "col2im_"
	if from != to {
		name = "col2im_wide_"
	}
	var a args
	a.ptr(cols)
	a.ptr(x)
	g.pack(&a)
	s.planeKernel(name+suffix(to), g.planes, n, &a)
}

func im2Col(s *stream, c *backend.Call) {
	g := s.wantWindow(c, &c.In[0], &c.Out[0])
	s.unfold(&g, c.In[0].DType, s.addr(&c.In[0]), s.addr(&c.Out[0]))
}

func col2Im(s *stream, c *backend.Call) {
	g := s.wantWindow(c, &c.Out[0], &c.In[0])
	s.fold(&g, c.In[0].DType, c.In[0].DType, s.addr(&c.In[0]), s.addr(&c.Out[0]))
}

// wantPool lays out OpMaxPool or its gradient, of images x or their gradient.
func (s *stream) wantPool(c *backend.Call, x, y, index *backend.View) window {
	if err := c.WantMaxPool(x, y, index); err != nil {
		s.fault(c, "%v", err)
	}
	g := window{planes: x.Shape[0] * x.Shape[1], depth: 1, h: x.Shape[2], w: x.Shape[3], kh: c.Ints[4], kw: c.Ints[5],
		oh: y.Shape[2], ow: y.Shape[3], sh: c.Ints[0], sw: c.Ints[1], ph: c.Ints[2], pw: c.Ints[3], dh: 1, dw: 1}
	s.wantPlane(c, &g)
	return g
}

func maxPool(s *stream, c *backend.Call) {
	x, y, index := &c.In[0], &c.Out[0], &c.Out[1]
	g := s.wantPool(c, x, y, index)
	if y.Numel() == 0 {
		return
	}
	var a args
	a.ptr(s.addr(x))
	a.ptr(s.addr(y))
	a.ptr(s.addr(index))
	g.pack(&a)
	s.kernel("max_pool_"+suffix(x.DType), s.gridFor(y.Numel()), block256, 0, &a)
}

func maxPoolGrad(s *stream, c *backend.Call) {
	dy, index, dx := &c.In[0], &c.In[1], &c.Out[0]
	g := s.wantPool(c, dx, dy, index)
	if g.planes == 0 {
		return
	}
	var a args
	a.ptr(s.addr(dy))
	a.ptr(s.addr(index))
	a.ptr(s.addr(dx))
	g.pack(&a)
	s.planeKernel("max_pool_grad_"+suffix(dx.DType), g.planes, g.h*g.w, &a)
}

func rope(s *stream, c *backend.Call) {
	x, out := &c.In[0], &c.Out[0]
	if x.NDim != 4 || !backend.SameShape(x, out) {
		s.fault(c, "x and output of shapes %v and %v: want four dims, the same", x.Shape[:x.NDim], out.Shape[:out.NDim])
	}
	tables := c.In[1].DType
	for i := 1; i < 3; i++ {
		if v := &c.In[i]; v.NDim != 3 || v.Shape[0] != x.Shape[0] || v.Shape[1] != x.Shape[2] ||
			v.Shape[2] != c.In[1].Shape[2] || 2*v.Shape[2] > x.Shape[3] {
			s.fault(c, "table %d of shape %v for x of shape %v", i, v.Shape[:v.NDim], x.Shape[:4])
		}
	}
	wide := x.DType.IsHalf() && tables == dtype.Float32
	for i, v := range []*backend.View{out, x, &c.In[1], &c.In[2]} {
		want := x.DType
		if wide && i > 1 {
			want = dtype.Float32
		}
		if last := v.NDim - 1; v.DType != want || v.Shape[last] > 1 && v.Stride[last] != 1 {
			s.fault(c, "operand %d: %s with stride %d in the last dim: want %s with 1", i, v.DType, v.Stride[last],
				want)
		}
	}
	pairs := c.In[1].Shape[2]
	n := x.Shape[0] * x.Shape[1] * x.Shape[2] * (x.Shape[3] - pairs)
	if n == 0 {
		return
	}
	var a args
	for _, v := range []*backend.View{x, &c.In[1], &c.In[2], out} {
		a.ptr(s.addr(v))
	}
	for _, v := range []*backend.View{x, out, &c.In[1], &c.In[2]} {
		for k := range v.NDim - 1 {
			a.i64(v.Stride[k])
		}
	}
	a.i64(n)
	for _, v := range []int{x.Shape[1], x.Shape[2], x.Shape[3], pairs, c.Ints[0]} {
		a.i32(v)
	}
	a.align(8)
	name := "rope_"
	if wide {
		name = "rope_wide_"
	}
	s.kernel(name+suffix(x.DType), s.gridFor(n), block256, 0, &a)
}
