// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/lockstep-ml/lockstep/internal/backend"

// Pool2DOptions are the attributes of MaxPool2D and AvgPool2D; the pairs are for rows
// and columns.
type Pool2DOptions struct {
	Kernel  [2]int // size of the window
	Stride  [2]int // step between positions; 0 means the kernel's size
	Padding [2]int // on either side, at most half of the kernel
}

// slidePool checks images x [N,C,H,W] and the window that moves over them.
func (c *Ctx) slidePool(op string, x *Tensor, opt Pool2DOptions) sliding {
	x.check(c, op)
	c.wantFloat(op, x)
	ins := []*Tensor{x}
	if x.ndim != 4 || x.shape[2] == 0 || x.shape[3] == 0 {
		c.fail(op, ins, "want images [N C H W] of at least one pixel")
	}
	s := sliding{kernel: opt.Kernel, stride: opt.Stride, padding: opt.Padding, dilation: [2]int{1, 1}}
	for k := range s.stride {
		if s.stride[k] == 0 {
			s.stride[k] = s.kernel[k]
		}
		if 2*s.padding[k] > s.kernel[k] {
			c.fail(op, ins, "padding %v: want at most half of the kernel %v", s.padding, s.kernel)
		}
	}
	return c.slide(op, ins, s)
}

// MaxPool2D is the maximum of each window of images x [N,C,H,W], as torch.nn.functional.max_pool2d: [N,C,OH,OW] with OH
// = ⌊(H + 2·padding − KH)/stride⌋ + 1 and OW likewise. Padding is ignored, and NaN is larger than any number. The first
// maximum gets the gradient.
func MaxPool2D(c *Ctx, x *Tensor, opt Pool2DOptions) *Tensor {
	const name = "MaxPool2D"
	s := c.slidePool(name, x, opt)
	x = Contiguous(c, x)
	n, ch := x.shape[0], x.shape[1]
	y := c.empty(name, x.dtype, n, ch, s.places[0], s.places[1])
	index := c.empty(name, Int64, y.Shape()...)
	a := ints(s.stride[0], s.stride[1], s.padding[0], s.padding[1], s.kernel[0], s.kernel[1])
	c.launchMulti(backend.OpMaxPool, &a, []*Tensor{y, index}, x)
	dt := x.dtype
	c.record(name, []*Tensor{y}, []*Tensor{x}, []*Tensor{index}, func(b *Back) {
		dx := b.empty(name, dt, n, ch, s.size[0], s.size[1])
		b.launchAttrs(backend.OpMaxPoolGrad, &a, dx, b.materialize(name, b.Grad(0)), index)
		b.Set(0, dx)
	})
	return y
}

// AvgPool2D is the mean of each window of images x [N,C,H,W], as
// torch.nn.functional.avg_pool2d: shapes as in MaxPool2D. Padding counts as zeros.
func AvgPool2D(c *Ctx, x *Tensor, opt Pool2DOptions) *Tensor {
	const name = "AvgPool2D"
	s := c.slidePool(name, x, opt)
	if x.dtype.IsHalf() {
		return Cast(c, AvgPool2D(c, Cast(c, x, Float32), opt), x.dtype)
	}
	windows := Mean(c, unfold(c, name, Contiguous(c, x), s), []int{1, 2}, false)
	return Reshape(c, windows, x.shape[0], x.shape[1], s.places[0], s.places[1])
}

// unfold is what each window sees, [N·C,KH,KW,OH,OW].
func unfold(c *Ctx, name string, x *Tensor, s sliding) *Tensor {
	planes := []int{x.shape[0] * x.shape[1], s.size[0], s.size[1], 1}
	windows := []int{planes[0], s.kernel[0], s.kernel[1], s.places[0], s.places[1], 1}
	y := c.empty(name, x.dtype, windows[:5]...)
	a := s.attrs()
	c.launchAttrs(backend.OpIm2Col, &a, y.reshaped(windows), x.reshaped(planes))
	shape, dt := x.Shape(), x.dtype
	c.record(name, []*Tensor{y}, []*Tensor{x}, nil, func(b *Back) {
		dx := b.empty(name, dt, shape...)
		b.launchAttrs(backend.OpCol2Im, &a, dx.reshaped(planes), b.materialize(name, b.Grad(0)).reshaped(windows))
		b.Set(0, dx)
	})
	return y
}

// GlobalAvgPool2D is the mean of each plane of images [N,C,H,W], as [N,C,1,1]:
// torch.nn.AdaptiveAvgPool2d(1).
func GlobalAvgPool2D(c *Ctx, x *Tensor) *Tensor {
	const name = "GlobalAvgPool2D"
	x.check(c, name)
	c.wantFloat(name, x)
	if x.ndim != 4 || x.shape[2] == 0 || x.shape[3] == 0 {
		c.fail(name, []*Tensor{x}, "want images [N C H W] of at least one pixel")
	}
	return Mean(c, x, []int{2, 3}, true)
}
