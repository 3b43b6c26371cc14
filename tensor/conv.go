// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
)

// The size of the pieces in which a convolution works.
const (
	convBlock   = 4 << 20  // bytes of unfolded windows, but at least a row's of one sample
	convWhole   = 32 << 20 // the same where whole samples are wanted, but at least one sample's
	convSamples = 32       // samples side by side at most, a multiple of convLanes
	convLanes   = 16       // what their number is a multiple of, if it is larger
)

// Conv2DOptions are the attributes of Conv2D; the pairs are for rows and columns. The
// zero value moves the kernel by one pixel, without padding.
type Conv2DOptions struct {
	Stride   [2]int // step between positions; 0 means 1
	Padding  [2]int // zeros on either side
	Dilation [2]int // distance of the kernel's elements in the image; 0 means 1
	// Groups splits the channels: output channels of group g see only the input channels
	// of group g. 0 means 1.
	Groups int
}

// Conv2D is the cross-correlation of images x [N,C,H,W] with kernels weight [O,C/groups,KH,KW], plus bias [O] (nil:
// none), as torch.nn.functional.conv2d: the result is [N,O,OH,OW] with OH = ⌊(H + 2·padding − dilation·(KH−1) −
// 1)/stride⌋ + 1 and OW likewise. It is computed as matrix products over unfolded windows (Chellapilla et al. 2006),
// some rows of some samples at a time, or in float32 by Winograd's minimal filtering (Lavin and Gray 2016) where
// kernels are 3×3; the gradient keeps neither. The weight's gradient is summed piece by piece, in order. A kernel that
// is larger than the padded image is an error.
//
// Half dtypes, and float32 under Autocast, compute as suits the device: a GPU multiplies half numbers, kernels
// included, and rounds the gradient of the kernels once; other devices compute in float32 between a half input and a
// half result, and the kernels keep their dtype.
func Conv2D(c *Ctx, x, weight, bias *Tensor, opt Conv2DOptions) *Tensor {
	const name = "Conv2D"
	x.check(c, name)
	c.wantWhole(name, x, weight)
	lower := c.lower != Invalid && x.dtype.IsFloat() && x.dtype != Float64
	if lower {
		c.autocast(name, &x)
	}
	switch dt := x.dtype; {
	case dt.IsHalf() && opt.Groups <= 1 && c.eng.dev.be.Supports(backend.OpConv2D, dt):
		weight, low := c.lowerParam(weight)
		bias, lowBias := c.lowerParam(bias)
		return c.conv2D(x, weight, low, bias, lowBias, opt)
	case lower:
		plain := c.plain()
		if c.counts != nil { // its kernels may be products of float32
			c.counts.add(Convolutions, dt, c.path)
			plain = plain.uncounted()
		}
		return Cast(c, plain.wideConv2D(x, weight, bias, opt), dt)
	case dt.IsHalf():
		c.convolution(x, weight, bias, opt) // of operands of one dtype
		return Cast(c, c.wideConv2D(x, weight, bias, opt), dt)
	}
	return c.conv2D(x, weight, weight, bias, bias, opt)
}

// wideConv2D is Conv2D in float32.
func (c *Ctx) wideConv2D(x, weight, bias *Tensor, opt Conv2DOptions) *Tensor {
	if bias != nil {
		bias = Cast(c, bias, Float32)
	}
	return Conv2D(c, Cast(c, x, Float32), Cast(c, weight, Float32), bias, opt)
}

// conv2D is Conv2D of images and copies low and lowBias of the parameters in one dtype.
func (c *Ctx) conv2D(x, weight, low, bias, lowBias *Tensor, opt Conv2DOptions) *Tensor {
	const name = "Conv2D"
	g := c.convolution(x, low, lowBias, opt)
	x, low = Contiguous(c, x), Contiguous(c, low)
	if bias != nil {
		lowBias = Contiguous(c, lowBias)
	}
	y := g.forward(c, x, low, lowBias)
	ins, saved := []*Tensor{x, weight, bias}, []*Tensor{x, c.stand(weight), low}
	c.record(name, []*Tensor{y}, ins, saved, func(b *Back) {
		dy := b.materialize(name, b.Grad(0))
		if b.Need(0) {
			b.Set(0, g.inputGrad(b.Ctx, dy, low))
		}
		b.separate(1, func(b *Back) { g.setWeightGrad(b, dy, x, weight) }, dy, x)
		b.separate(2, func(b *Back) {
			b.Set(2, b.reduce(backend.OpSum, name, dy, []int{0, 2, 3}, bias.GradDType()).reshaped([]int{g.o}))
		}, dy)
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
			c.fail(op, ins, "kernel %v, stride %v, padding %v, dilation %v: want a positive kernel, stride and "+
				"dilation, and no negative padding",
				s.kernel, s.stride, s.padding, s.dilation)
		}
		room := s.size[k] + 2*s.padding[k] - s.dilation[k]*(s.kernel[k]-1) - 1
		if room < 0 {
			c.fail(op, ins, "a kernel %v of dilation %v does not fit images of %v pixels with padding %v", s.kernel,
				s.dilation, [2]int(ins[0].shape[2:4]), s.padding)
		}
		s.places[k] = room/s.stride[k] + 1
	}
	return s
}

func (s *sliding) attrs() attrs {
	return ints(s.stride[0], s.stride[1], s.padding[0], s.padding[1], s.dilation[0], s.dilation[1])
}

// convolution is the geometry of one Conv2D, seen as products of weight [groups,O/groups,depth] and windows
// [groups,depth,N·area].
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
		c.fail(name, ins, "%d groups: want a weight for %d/groups input channels, and output channels that groups "+
			"divides", g.groups, g.c)
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

// workspace is the memory in which a convolution works on a piece: some rows of places of some samples, whose elements
// lie side by side, so that what is done for one is done for all at once.
type workspace struct {
	c       *Ctx
	room    *Tensor // for pixels; nil where there is one sample at a time, which lies as it should in the images
	pixels  *Tensor // [C,H,W,samples]
	cols    *Tensor // windows, [C,KH,KW,rows,OW,samples]; nil where each window is a pixel
	results *Tensor // results or their gradients, [O,rows,OW,samples]

	first, n  int // samples of the piece
	row, rows int // of places
}

// pieces calls f for each piece, sample blocks first. Pieces depend only on the shape.
func (g *convolution) pieces(c *Ctx, dt DType, whole bool, f func(w *workspace)) {
	line := max(1, g.groups*g.depth*g.places[1]*dt.Size()) // bytes of a row's windows
	samples, rows := min(g.n, convSamples, max(1, convBlock/line)), g.places[0]
	if whole {
		samples = min(g.n, convSamples, max(1, convWhole/line/max(1, rows)))
	}
	if samples > convLanes {
		samples -= samples % convLanes
	}
	if !whole {
		rows = min(rows, max(1, convBlock/line/max(1, samples)))
	}
	w := &workspace{c: c}
	if samples > 1 {
		w.room = c.empty("Conv2D", dt, g.c*g.size[0]*g.size[1]*samples)
		defer w.room.Free()
	}
	if !g.pointwise() {
		w.cols = c.empty("Conv2D", dt, g.groups*g.depth*rows*g.places[1]*samples)
		defer w.cols.Free()
	}
	w.results = c.empty("Conv2D", dt, g.o*rows*g.places[1]*samples)
	defer w.results.Free()
	for w.first = 0; w.first < g.n; w.first += samples {
		w.n = min(samples, g.n-w.first)
		for w.row = 0; w.row < g.places[0]; w.row += rows {
			w.rows = min(rows, g.places[0]-w.row)
			f(w)
		}
	}
}

// pointwise reports whether the windows are the pixels, one by one.
func (g *convolution) pointwise() bool {
	one := [2]int{1, 1}
	return g.kernel == one && g.stride == one && g.padding == [2]int{}
}

// look makes the pixels those of the piece's samples of images; load says whether what they are matters.
func (w *workspace) look(images *Tensor, load bool) {
	if w.room == nil {
		w.pixels = images.narrow(0, w.first, 1)
		return
	}
	w.pixels = w.room
	if load {
		w.gather(w.pixels, images, 0, images.shape[2], false)
	}
}

// gather copies rows of the piece's samples of images [N,C,H,W] to room [C,rows,W,samples], or back.
func (w *workspace) gather(room, images *Tensor, row, rows int, back bool) {
	ch, width := images.shape[1], images.shape[3]
	samples := images.reshaped([]int{images.shape[0], ch, images.shape[2] * width}).narrow(0, w.first, w.n).narrow(2,
		row*width, rows*width)
	side := room.reshaped([]int{ch, rows * width, w.n})
	if back {
		w.c.launch(backend.OpCopy, samples, rotate(side, 2, 0, 1))
		return
	}
	w.c.launch(backend.OpCopy, side, rotate(samples, 1, 2, 0))
}

// rotate shows x with its three dims in another order.
func rotate(x *Tensor, order ...int) *Tensor {
	y := x.alias()
	for to, from := range order {
		y.shape[to], y.stride[to] = x.shape[from], x.stride[from]
	}
	return y
}

// unfold copies the windows of the piece, and shows them as matrices [groups,depth,rows·OW·samples].
func (g *convolution) unfold(w *workspace, x *Tensor) *Tensor {
	if w.row == 0 {
		w.look(x, true)
	}
	if g.pointwise() {
		line := g.size[1] * w.n
		return w.pixels.reshaped([]int{g.groups, g.depth, g.size[0] * line}).narrow(2, w.row*line, w.rows*line)
	}
	slide := g.attrs()
	slide.ints[2] -= w.row * g.stride[0]
	w.c.launchAttrs(backend.OpIm2Col, &slide, g.windows(w), g.planes(w))
	return g.columns(w)
}

// columns shows the windows, of all rows if they are pixels, as matrices.
func (g *convolution) columns(w *workspace) *Tensor {
	cols := w.cols
	if cols == nil {
		cols = w.pixels
	}
	return cols.reshaped([]int{g.groups, g.depth, w.rows * g.places[1] * w.n})
}

// windows and planes show windows and pixels as the backend needs them.
func (g *convolution) windows(w *workspace) *Tensor {
	return w.cols.reshaped([]int{g.c, g.kernel[0], g.kernel[1], w.rows, g.places[1], w.n})
}

func (g *convolution) planes(w *workspace) *Tensor {
	return w.pixels.reshaped([]int{g.c, g.size[0], g.size[1], w.n})
}

// matrices shows the results as [groups,O/groups,rows·OW·samples].
func (g *convolution) matrices(w *workspace) *Tensor {
	return w.results.reshaped([]int{g.groups, g.o / g.groups, w.rows * g.places[1] * w.n})
}

// kernels shows the weight as matrices [groups,O/groups,depth].
func (g *convolution) kernels(weight *Tensor) *Tensor {
	return weight.reshaped([]int{g.groups, g.o / g.groups, g.depth})
}

func (g *convolution) forward(c *Ctx, x, weight, bias *Tensor) *Tensor {
	y := c.empty("Conv2D", x.dtype, g.n, g.o, g.places[0], g.places[1])
	if g.groups == 1 {
		slide := g.attrs()
		c.launchAttrs(backend.OpConv2D, &slide, y, x, weight, bias)
		return y
	}
	a := attrs{}
	g.pieces(c, x.dtype, false, func(w *workspace) {
		matrices := g.unfold(w, x)
		if bias != nil {
			c.elementwise(backend.OpCopy, &attrs{}, g.matrices(w), bias.reshaped([]int{g.groups, g.o / g.groups, 1}))
			a.ints[0] = 1
		}
		c.launchAttrs(backend.OpMatMul, &a, g.matrices(w), g.kernels(weight), matrices)
		w.gather(w.results, y, w.row, w.rows, true)
	})
	return y
}

// inputGrad is the gradient of the images: each window's is Wᵀ·dY, and is folded back. Where windows lie side by side
// and kernels are small it is instead the convolution of dY with the kernels turned round.
func (g *convolution) inputGrad(c *Ctx, dy, weight *Tensor) *Tensor {
	if g.groups == 1 {
		dx, slide := c.empty("Conv2D", dy.dtype, g.n, g.c, g.size[0], g.size[1]), g.attrs()
		c.launchAttrs(backend.OpConv2DGrad, &slide, dx, dy, weight)
		return dx
	}
	if g.stride == [2]int{1, 1} && !g.pointwise() && g.depth <= g.area*g.n {
		return g.turnedGrad(c, dy, weight)
	}
	dx := c.empty("Conv2D", dy.dtype, g.n, g.c, g.size[0], g.size[1])
	g.pieces(c, dy.dtype, true, func(w *workspace) {
		w.look(dx, false)
		w.gather(w.results, dy, 0, w.rows, false)
		c.launch(backend.OpMatMul, g.columns(w), swapLast(g.kernels(weight)), g.matrices(w))
		if !g.pointwise() {
			slide := g.attrs()
			c.launchAttrs(backend.OpCol2Im, &slide, g.planes(w), g.windows(w))
		}
		if w.room != nil {
			w.gather(w.pixels, dx, 0, g.size[0], true)
		}
	})
	return dx
}

// turnedGrad is inputGrad by a convolution whose input and output channels are exchanged.
func (g *convolution) turnedGrad(c *Ctx, dy, weight *Tensor) *Tensor {
	turned := c.empty("Conv2D", weight.dtype, g.c, g.o/g.groups, g.kernel[0], g.kernel[1])
	defer turned.Free()
	taps := g.kernel[0] * g.kernel[1]
	from := weight.reshaped([]int{g.groups, g.o / g.groups, g.c / g.groups, taps})
	to := turned.reshaped([]int{g.groups, g.c / g.groups, g.o / g.groups, taps})
	for k := range taps {
		f := from.narrow(3, k, 1)
		f.shape[1], f.shape[2], f.stride[1], f.stride[2] = f.shape[2], f.shape[1], f.stride[2], f.stride[1]
		c.launch(backend.OpCopy, to.narrow(3, taps-1-k, 1), f)
	}
	t := &convolution{sliding: g.sliding, n: g.n, c: g.o, o: g.c, groups: g.groups}
	t.size, t.places = g.places, g.size
	for k := range t.padding {
		t.padding[k] = g.dilation[k]*(g.kernel[k]-1) - g.padding[k]
	}
	t.depth, t.area = g.o/g.groups*taps, g.size[0]*g.size[1]
	return t.forward(c, dy, turned, nil)
}

// setWeightGrad hands in the gradient of the weight, or adds it where it ends if that is known.
func (g *convolution) setWeightGrad(b *Back, dy, x, weight *Tensor) {
	sum, filled := (*Tensor)(nil), false
	if g.groups == 1 {
		sum, filled = b.into(1)
	}
	switch {
	case sum == nil:
		dw := g.weightGrad(b.Ctx, dy, x).reshaped([]int{g.o, g.c / g.groups, g.kernel[0], g.kernel[1]})
		b.Set(1, Cast(b.Ctx, dw, weight.GradDType()))
	case filled:
		b.launch(backend.OpAdd, sum, sum, g.weightGrad(b.Ctx, dy, x))
	case sum.dtype != dy.dtype:
		b.launch(backend.OpCopy, sum, g.weightGrad(b.Ctx, dy, x))
	default:
		g.weightGradTo(b.Ctx, sum, dy, x)
	}
}

// weightGradTo writes the gradient of a weight of one group.
func (g *convolution) weightGradTo(c *Ctx, dw, dy, x *Tensor) {
	slide := g.attrs()
	c.launchAttrs(backend.OpConv2DParamGrad, &slide, dw, x, dy)
}

// weightGrad is dY·windowsᵀ over all samples, piece by piece.
func (g *convolution) weightGrad(c *Ctx, dy, x *Tensor) *Tensor {
	if g.groups == 1 {
		dw := c.empty("Conv2D", dy.dtype, g.o, g.c, g.kernel[0], g.kernel[1])
		g.weightGradTo(c, dw, dy, x)
		return dw
	}
	if g.n == 0 {
		return Zeros(c, dy.dtype, g.groups, g.o/g.groups, g.depth)
	}
	dw := c.empty("Conv2D", dy.dtype, g.groups, g.o/g.groups, g.depth)
	a := attrs{}
	g.pieces(c, x.dtype, false, func(w *workspace) {
		matrices := g.unfold(w, x)
		w.gather(w.results, dy, w.row, w.rows, false)
		c.launchAttrs(backend.OpMatMul, &a, dw, g.matrices(w), swapLast(matrices))
		a.ints[0] = 1 // the first piece overwrites, the others add
	})
	return dw
}
