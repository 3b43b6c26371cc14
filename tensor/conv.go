package tensor

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
)

// convBlock is the number of bytes of unfolded windows that a convolution works on at a time, but at least one sample's.
const convBlock = 32 << 20

// Conv2DOptions are the attributes of Conv2D; the pairs are for rows and columns. The
// zero value moves the kernel by one pixel, without padding.
type Conv2DOptions struct {
	Stride   [2]int // step between places; 0 stands for 1
	Padding  [2]int // zeros on either side
	Dilation [2]int // distance of the kernel's elements in the image; 0 stands for 1
	// Groups splits the channels: output channels of group g see the input channels of
	// group g alone. 0 stands for 1.
	Groups int
}

// Conv2D is the cross-correlation of images x [N,C,H,W] with kernels weight
// [O,C/groups,KH,KW], plus bias [O] (nil: none), as torch.nn.functional.conv2d: the
// result is [N,O,OH,OW] with OH = ⌊(H + 2·padding − dilation·(KH−1) − 1)/stride⌋ + 1 and OW
// likewise. It is computed as a matrix product over unfolded windows, some samples at a
// time (Chellapilla et al. 2006); the gradient unfolds again and keeps none. The
// weight's gradient is added up block by block, in order. Half dtypes compute in float32.
// A kernel that is larger than the padded image is refused.
func Conv2D(c *Ctx, x, weight, bias *Tensor, opt Conv2DOptions) *Tensor {
	const name = "Conv2D"
	g := c.convolution(x, weight, bias, opt)
	if dt := x.dtype; dt.IsHalf() {
		if bias != nil {
			bias = Cast(c, bias, Float32)
		}
		return Cast(c, Conv2D(c, Cast(c, x, Float32), Cast(c, weight, Float32), bias, opt), dt)
	}
	x, weight = Contiguous(c, x), Contiguous(c, weight)
	if bias != nil {
		bias = Contiguous(c, bias)
	}
	y := g.forward(c, x, weight, bias)
	c.record(name, []*Tensor{y}, []*Tensor{x, weight, bias}, []*Tensor{x, weight}, func(b *Back) {
		dy := b.materialize(name, b.Grad(0))
		if b.Need(0) {
			b.Set(0, g.inputGrad(b.Ctx, dy, weight))
		}
		if b.Need(1) {
			b.Set(1, g.weightGrad(b.Ctx, dy, x).reshaped(weight.Shape()))
		}
		if bias != nil && b.Need(2) {
			b.Set(2, b.reduce(backend.OpSum, name, dy, []int{0, 2, 3}, dy.dtype).reshaped([]int{g.o}))
		}
	})
	return y
}

// sliding is a window that moves over images; the pairs are for rows and columns.
type sliding struct {
	size, kernel, stride, padding, dilation [2]int
	places                                  [2]int
}

// slide checks a window over the last two dims of the images x and counts its places.
func (c *Ctx) slide(op string, ins []*Tensor, s sliding) sliding {
	for k := range s.size {
		s.size[k] = ins[0].shape[2+k]
		if s.kernel[k] < 1 || s.stride[k] < 1 || s.padding[k] < 0 || s.dilation[k] < 1 {
			c.fail(op, ins, "kernel %v, stride %v, padding %v, dilation %v: want a positive kernel, stride and dilation, and no negative padding",
				s.kernel, s.stride, s.padding, s.dilation)
		}
		room := s.size[k] + 2*s.padding[k] - s.dilation[k]*(s.kernel[k]-1) - 1
		if room < 0 {
			c.fail(op, ins, "a kernel %v of dilation %v does not fit images of %v pixels with padding %v", s.kernel, s.dilation, [2]int(ins[0].shape[2:4]), s.padding)
		}
		s.places[k] = room/s.stride[k] + 1
	}
	return s
}

func (s *sliding) attrs() attrs {
	return ints(s.stride[0], s.stride[1], s.padding[0], s.padding[1], s.dilation[0], s.dilation[1])
}

// convolution is the geometry of one Conv2D, seen as products of weight [groups,O/groups,depth] and windows [groups,depth,N·area].
type convolution struct {
	sliding
	n, c, o, groups int
	depth, area     int
}

func (c *Ctx) convolution(x, weight, bias *Tensor, opt Conv2DOptions) *convolution {
	const name = "Conv2D"
	ins := []*Tensor{x, weight}
	if bias != nil {
		ins = append(ins, bias)
	}
	c.wantFloat(name, ins...)
	c.sameDType(name, ins...)
	if x.ndim != 4 || weight.ndim != 4 {
		c.fail(name, ins, "want images [N C H W] and a weight [O C/groups KH KW]")
	}
	g := &convolution{n: x.shape[0], c: x.shape[1], o: weight.shape[0], groups: opt.Groups}
	if g.groups == 0 {
		g.groups = 1
	}
	switch {
	case g.groups < 0 || g.o%g.groups != 0 || g.c != weight.shape[1]*g.groups:
		c.fail(name, ins, "%d groups: want a weight for %d/groups input channels, and output channels that groups divides", g.groups, g.c)
	case bias != nil && (bias.ndim != 1 || bias.shape[0] != g.o):
		c.fail(name, ins, "want a bias of shape [%d]", g.o)
	}
	s := sliding{kernel: [2]int(weight.shape[2:4]), stride: opt.Stride, padding: opt.Padding, dilation: opt.Dilation}
	for k := range s.stride {
		if s.stride[k] == 0 {
			s.stride[k] = 1
		}
		if s.dilation[k] == 0 {
			s.dilation[k] = 1
		}
	}
	g.sliding = c.slide(name, ins, s)
	g.depth, g.area = weight.shape[1]*g.kernel[0]*g.kernel[1], g.places[0]*g.places[1]
	return g
}

// workspace is the memory in which a convolution works on a block of samples, whose elements lie side by side: what is done for one is then done for all at once.
type workspace struct {
	c       *Ctx
	block   int     // samples
	pixels  *Tensor // [C,H,W,samples]
	cols    *Tensor // windows, [C,KH,KW,OH,OW,samples]; the pixels themselves where each window is one of them
	results *Tensor // results or their gradients, [O,OH,OW,samples]
}

// blocks calls f for each block of n samples from first on. Blocks depend on the shape alone.
func (g *convolution) blocks(c *Ctx, dt DType, f func(w *workspace, first, n int)) {
	w := &workspace{c: c, block: max(1, convBlock/max(1, g.groups*g.depth*g.area*dt.Size()))}
	if w.block > convLanes {
		w.block -= w.block % convLanes
	}
	w.block = min(g.n, w.block)
	w.pixels = c.empty("Conv2D", dt, g.c*g.size[0]*g.size[1]*w.block)
	w.cols = w.pixels
	if !g.pointwise() {
		w.cols = c.empty("Conv2D", dt, g.groups*g.depth*g.area*w.block)
		defer w.cols.Free()
	}
	w.results = c.empty("Conv2D", dt, g.o*g.area*w.block)
	defer w.pixels.Free()
	defer w.results.Free()
	for first := 0; first < g.n; first += w.block {
		f(w, first, min(w.block, g.n-first))
	}
}

// convLanes is what the number of samples in a block is a multiple of, if it is larger.
const convLanes = 16

// pointwise reports whether the windows are the pixels, one by one.
func (g *convolution) pointwise() bool {
	one := [2]int{1, 1}
	return g.kernel == one && g.stride == one && g.padding == [2]int{}
}

// gather copies samples from first on of images [N,…] to room […,n], or back.
func (w *workspace) gather(room, images *Tensor, first, n int, back bool) {
	each := images.Numel() / max(images.shape[0], 1)
	samples, side := images.narrow(0, first, n).reshaped([]int{n, each}), swapLast(room.reshaped([]int{each, n}))
	if back {
		w.c.launch(backend.OpCopy, samples, side)
		return
	}
	w.c.launch(backend.OpCopy, swapLast(side), swapLast(samples))
}

// unfold copies the windows of samples from first on, and shows them as matrices [groups,depth,area·n].
func (g *convolution) unfold(w *workspace, x *Tensor, first, n int) *Tensor {
	w.gather(w.pixels, x, first, n, false)
	if !g.pointwise() {
		slide := g.attrs()
		w.c.launchAttrs(backend.OpIm2Col, &slide, g.windows(w, n), g.planes(w, n))
	}
	return g.columns(w, n)
}

// columns shows the windows of n samples as matrices [groups,depth,area·n].
func (g *convolution) columns(w *workspace, n int) *Tensor {
	return w.cols.reshaped([]int{g.groups, g.depth, g.area * n})
}

// windows and planes show windows and pixels of n samples as the backend wants them.
func (g *convolution) windows(w *workspace, n int) *Tensor {
	return w.cols.reshaped([]int{g.c, g.kernel[0], g.kernel[1], g.places[0], g.places[1], n})
}

func (g *convolution) planes(w *workspace, n int) *Tensor {
	return w.pixels.reshaped([]int{g.c, g.size[0], g.size[1], n})
}

// matrices shows the results of n samples as [groups,O/groups,area·n].
func (g *convolution) matrices(w *workspace, n int) *Tensor {
	return w.results.reshaped([]int{g.groups, g.o / g.groups, g.area * n})
}

// kernels shows the weight as matrices [groups,O/groups,depth].
func (g *convolution) kernels(weight *Tensor) *Tensor {
	return weight.reshaped([]int{g.groups, g.o / g.groups, g.depth})
}

func (g *convolution) forward(c *Ctx, x, weight, bias *Tensor) *Tensor {
	y := c.empty("Conv2D", x.dtype, g.n, g.o, g.places[0], g.places[1])
	a := attrs{}
	g.blocks(c, x.dtype, func(w *workspace, first, n int) {
		matrices := g.unfold(w, x, first, n)
		if bias != nil {
			c.elementwise(backend.OpCopy, &attrs{}, w.results.reshaped([]int{g.o, g.area * n}), bias.reshaped([]int{g.o, 1}))
			a.ints[0] = 1
		}
		c.launchAttrs(backend.OpMatMul, &a, g.matrices(w, n), g.kernels(weight), matrices)
		w.gather(w.results, y, first, n, true)
	})
	return y
}

// inputGrad is the gradient of the images: each window's is Wᵀ·dY, and is folded back.
func (g *convolution) inputGrad(c *Ctx, dy, weight *Tensor) *Tensor {
	dx := c.empty("Conv2D", dy.dtype, g.n, g.c, g.size[0], g.size[1])
	g.blocks(c, dy.dtype, func(w *workspace, first, n int) {
		w.gather(w.results, dy, first, n, false)
		c.launch(backend.OpMatMul, g.columns(w, n), swapLast(g.kernels(weight)), g.matrices(w, n))
		if !g.pointwise() {
			slide := g.attrs()
			c.launchAttrs(backend.OpCol2Im, &slide, g.planes(w, n), g.windows(w, n))
		}
		w.gather(w.pixels, dx, first, n, true)
	})
	return dx
}

// weightGrad is dY·windowsᵀ over all samples, block by block.
func (g *convolution) weightGrad(c *Ctx, dy, x *Tensor) *Tensor {
	if g.n == 0 {
		return Zeros(c, dy.dtype, g.groups, g.o/g.groups, g.depth)
	}
	dw := c.empty("Conv2D", dy.dtype, g.groups, g.o/g.groups, g.depth)
	a := attrs{}
	g.blocks(c, x.dtype, func(w *workspace, first, n int) {
		matrices := g.unfold(w, x, first, n)
		w.gather(w.results, dy, first, n, false)
		c.launchAttrs(backend.OpMatMul, &a, dw, g.matrices(w, n), swapLast(matrices))
		a.ints[0] = 1 // the first block overwrites, the others add
	})
	return dw
}
