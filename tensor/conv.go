package tensor

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
)

// convBlock is the number of bytes of unfolded windows that a convolution works on at a time, but at least one sample's.
const convBlock = 16 << 20

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

// workspace is the memory in which a convolution works on a block of samples.
type workspace struct {
	c       *Ctx
	block   int     // samples
	cols    *Tensor // windows, as [C,KH,KW,samples,OH,OW]: one matrix for all samples
	results *Tensor // results or their gradients, as [O,samples,OH·OW]
}

// blocks calls f for each block of n samples from first on. Blocks depend on the shape alone.
func (g *convolution) blocks(c *Ctx, dt DType, f func(w *workspace, first, n int)) {
	w := &workspace{c: c, block: min(g.n, max(1, convBlock/max(1, g.groups*g.depth*g.area*dt.Size())))}
	w.cols = c.empty("Conv2D", dt, g.groups*g.depth*g.area*w.block)
	w.results = c.empty("Conv2D", dt, g.o*g.area*w.block)
	defer w.cols.Free()
	defer w.results.Free()
	for first := 0; first < g.n; first += w.block {
		f(w, first, min(w.block, g.n-first))
	}
}

// windows shows the windows of n samples as the backend wants them, [n,C,KH,KW,OH,OW], and as matrices [groups,depth,n·area].
func (g *convolution) windows(w *workspace, n int) (cols, matrices *Tensor) {
	cols = w.cols.reshaped([]int{g.c, g.kernel[0], g.kernel[1], n, g.places[0], g.places[1]})
	s := cols.stride
	cols.shape = [MaxDims]int{n, g.c, g.kernel[0], g.kernel[1], g.places[0], g.places[1]}
	cols.stride = [MaxDims]int{s[3], s[0], s[1], s[2], s[4], s[5]}
	return cols, w.cols.reshaped([]int{g.groups, g.depth, n * g.area})
}

// matrices shows the results of n samples as [groups,O/groups,n·area].
func (g *convolution) matrices(w *workspace, n int) *Tensor {
	return w.results.reshaped([]int{g.groups, g.o / g.groups, n * g.area})
}

// kernels shows the weight as matrices [groups,O/groups,depth].
func (g *convolution) kernels(weight *Tensor) *Tensor {
	return weight.reshaped([]int{g.groups, g.o / g.groups, g.depth})
}

// exchange copies the results of n samples between y [N,O,OH,OW], from sample first on, and the workspace.
func (g *convolution) exchange(w *workspace, y *Tensor, first, n int, toY bool) {
	image := y.narrow(0, first, n).reshaped([]int{n, g.o, g.area})
	image.shape[0], image.shape[1], image.stride[0], image.stride[1] = g.o, n, image.stride[1], image.stride[0]
	room := w.results.reshaped([]int{g.o, n, g.area})
	if toY {
		w.c.launch(backend.OpCopy, image, room)
		return
	}
	w.c.launch(backend.OpCopy, room, image)
}

func (g *convolution) forward(c *Ctx, x, weight, bias *Tensor) *Tensor {
	y := c.empty("Conv2D", x.dtype, g.n, g.o, g.places[0], g.places[1])
	a, slide := attrs{}, g.attrs()
	g.blocks(c, x.dtype, func(w *workspace, first, n int) {
		cols, matrices := g.windows(w, n)
		c.launchAttrs(backend.OpIm2Col, &slide, cols, x.narrow(0, first, n))
		if bias != nil {
			c.elementwise(backend.OpCopy, &attrs{}, w.results.reshaped([]int{g.o, n * g.area}), bias.reshaped([]int{g.o, 1}))
			a.ints[0] = 1
		}
		c.launchAttrs(backend.OpMatMul, &a, g.matrices(w, n), g.kernels(weight), matrices)
		g.exchange(w, y, first, n, true)
	})
	return y
}

// inputGrad is the gradient of the images: each window's is Wᵀ·dY, and is folded back.
func (g *convolution) inputGrad(c *Ctx, dy, weight *Tensor) *Tensor {
	dx := c.empty("Conv2D", dy.dtype, g.n, g.c, g.size[0], g.size[1])
	slide := g.attrs()
	g.blocks(c, dy.dtype, func(w *workspace, first, n int) {
		cols, matrices := g.windows(w, n)
		g.exchange(w, dy, first, n, false)
		c.launch(backend.OpMatMul, matrices, swapLast(g.kernels(weight)), g.matrices(w, n))
		c.launchAttrs(backend.OpCol2Im, &slide, dx.narrow(0, first, n), cols)
	})
	return dx
}

// weightGrad is dY·windowsᵀ over all samples, block by block.
func (g *convolution) weightGrad(c *Ctx, dy, x *Tensor) *Tensor {
	if g.n == 0 {
		return Zeros(c, dy.dtype, g.groups, g.o/g.groups, g.depth)
	}
	dw := c.empty("Conv2D", dy.dtype, g.groups, g.o/g.groups, g.depth)
	a, slide := attrs{}, g.attrs()
	g.blocks(c, x.dtype, func(w *workspace, first, n int) {
		cols, matrices := g.windows(w, n)
		c.launchAttrs(backend.OpIm2Col, &slide, cols, x.narrow(0, first, n))
		g.exchange(w, dy, first, n, false)
		c.launchAttrs(backend.OpMatMul, &a, dw, g.matrices(w, n), swapLast(matrices))
		a.ints[0] = 1 // the first block overwrites, the others add
	})
	return dw
}
