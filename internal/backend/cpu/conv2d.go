// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
)

// convolution is the geometry of OpConv2D and its gradients: images x [n,c,h,w], kernels [o,c,kh,kw] and results y
// [n,o,oh,ow].
//
// The work is divided into pieces, each of which one worker does from its images to its results, in its own memory: it
// lays some rows of some images out channels last, so that vectors go over channels, multiplies, and lays the results
// out as they are wanted. Pieces follow only from the shape.
type convolution struct {
	n, c, o                int
	h, w, kh, kw, oh, ow   int
	sh, sw, ph, pw, dh, dw int

	images, rows  int  // of a piece, rows of places or of tiles
	blocks, width int  // of the channels that pieces compute, and how many each but the last has
	groups        int  // of images, whose gradients of the kernels are added up in the end
	turned        bool // kernels are turned round, with input and output channels exchanged
}

// The sizes of pieces.
const (
	sumChannels = 16        // input channels whose gradient of the kernels is laid out at once
	convPieces  = 8         // wanted at least, for the workers
	convParts   = 4 << 20   // bytes of the groups' gradients of kernels, at most, except for one group
	convScratch = 512 << 10 // bytes of unfolded windows of a piece, in the second-level cache
	// places of a piece, at least where there are so many: they share the reading of the kernels
	convPlaces = 64
)

// convolve checks the operands of an op and runs a kernel; image, kernel and result are its operands.
func (d *Device) convolve(c *backend.Call, image, kernel, result *backend.View, f32, f64 func(t *task)) {
	for _, v := range []*backend.View{image, kernel, result} {
		if v.NDim != 4 || v.DType != image.DType || !v.Contiguous() {
			d.fault(c, "an operand is %s of shape %v, strides %v: want %s of four dims, contiguous", v.DType,
				v.Shape[:v.NDim], v.Stride[:v.NDim], image.DType)
		}
	}
	g := convolution{n: image.Shape[0], c: image.Shape[1], o: kernel.Shape[0], h: image.Shape[2], w: image.Shape[3],
		kh: kernel.Shape[2], kw: kernel.Shape[3],
		oh: result.Shape[2], ow: result.Shape[3], sh: c.Ints[0], sw: c.Ints[1], ph: c.Ints[2], pw: c.Ints[3],
		dh: c.Ints[4], dw: c.Ints[5]}
	if !g.fits() || kernel.Shape[1] != g.c || result.Shape[0] != g.n || result.Shape[1] != g.o {
		d.fault(c, "images %v, kernels %v and results %v; stride, padding, dilation %v", image.Shape[:4],
			kernel.Shape[:4], result.Shape[:4], c.Ints[:6])
	}
	if c.Op == backend.OpConv2D && c.NIn > 2 {
		d.wantVector(c, &c.In[2], image.DType, g.o, "bias")
	}
	t := d.begin(c)
	defer t.end()
	t.conv = g
	if g.empty() {
		d.convolveNothing(c)
		return
	}
	switch image.DType {
	case dtype.Float32:
		f32(t)
	case dtype.Float64:
		f64(t)
	default:
		d.fault(c, "no kernel for %s", image.DType)
	}
}

// fits reports whether the window moves over the images as the results say.
func (g *convolution) fits() bool {
	if g.kh < 1 || g.kw < 1 || g.sh < 1 || g.sw < 1 || g.ph < 0 || g.pw < 0 || g.dh < 1 || g.dw < 1 {
		return false
	}
	high, wide := g.h+2*g.ph-g.dh*(g.kh-1)-1, g.w+2*g.pw-g.dw*(g.kw-1)-1
	return high >= 0 && wide >= 0 && g.oh == high/g.sh+1 && g.ow == wide/g.sw+1
}

// empty reports whether there is nothing to multiply.
func (g *convolution) empty() bool { return g.n*g.c*g.o*g.oh*g.ow == 0 }

// convolveNothing sets the output to the bias, or zero.
func (d *Device) convolveNothing(c *backend.Call) {
	fill := backend.Call{Op: backend.OpFill, NOut: 1, Out: [4]backend.View{c.Out[0]}}
	if c.Op != backend.OpConv2D || c.NIn < 3 {
		fillKernel(d, &fill)
		return
	}
	fill.Op, fill.NIn, fill.In[0] = backend.OpCopy, 1, c.Out[0]
	fill.In[0].Buf, fill.In[0].Offset, fill.In[0].Stride = c.In[2].Buf, c.In[2].Offset, [backend.MaxDims]int{0, 1}
	copyKernel(d, &fill)
}

func conv2DKernel(d *Device, c *backend.Call) {
	d.convolve(c, &c.In[0], &c.In[1], &c.Out[0], func(t *task) {
		if t.conv.winograd() {
			t.winograd()
			return
		}
		unfoldedConv2D[float32](t)
	}, unfoldedConv2D[float64])
}

func conv2DGradKernel(d *Device, c *backend.Call) {
	d.convolve(c, &c.Out[0], &c.In[1], &c.In[0], func(t *task) {
		if t.conv.winograd() {
			t.conv.turn()
			t.winograd()
			return
		}
		unfoldedGrad[float32](t)
	}, unfoldedGrad[float64])
}

func conv2DParamGradKernel(d *Device, c *backend.Call) {
	d.convolve(c, &c.In[0], &c.Out[0], &c.In[1], func(t *task) {
		if t.conv.winograd() {
			t.winogradParamGrad()
			return
		}
		unfoldedParamGrad[float32](t)
	}, unfoldedParamGrad[float64])
}

// turn makes it the convolution of gradients of results that gives those of the images, of a stride of 1.
func (g *convolution) turn() {
	g.c, g.o, g.h, g.w, g.oh, g.ow = g.o, g.c, g.oh, g.ow, g.h, g.w
	g.ph, g.pw, g.turned = g.dh*(g.kh-1)-g.ph, g.dw*(g.kw-1)-g.pw, true
}

// cut chooses what a piece has of so many rows, of size places or tiles each: at least so many places if there are as
// many.
func (g *convolution) cut(rows, size, places int) {
	g.images, g.rows = 1, rows
	if all := rows * size; all > places {
		g.rows = ceilDiv(rows, ceilDiv(all, places))
		return
	}
	for g.images < g.n && 2*g.images*rows*size <= places {
		g.images *= 2
	}
}

// divide cuts so many channels into blocks, where there are too few pieces otherwise. A block is a multiple of a
// panel's width.
func (g *convolution) divide(channels, pieces, panel int) {
	const narrowest = 64
	g.blocks = max(1, min(ceilDiv(convPieces, max(1, pieces)), channels/narrowest))
	g.width = roundUp(ceilDiv(channels, g.blocks), panel)
	g.blocks = max(1, ceilDiv(channels, g.width))
}

// group cuts the images into groups, so many that their gradients of the kernels of size bytes do not take too much
// memory.
func (g *convolution) group(size int) {
	g.groups = max(1, min(convPieces, g.n, convParts/max(1, size)))
	g.groups = ceilDiv(g.n, ceilDiv(g.n, g.groups))
}

// portion is rows [row, row+rows) of places or tiles of images [first, first+images).
type portion struct{ first, images, row, rows int }

// portions is the number of portions of images [0,n) with so many rows each.
func (g *convolution) portions(n, rows int) int { return ceilDiv(n, g.images) * ceilDiv(rows, g.rows) }

// portion is the i-th of images [first,end) with so many rows each.
func (g *convolution) portion(i, first, end, rows int) portion {
	per := ceilDiv(rows, g.rows)
	p := portion{first: first + i/per*g.images, row: i % per * g.rows}
	p.images, p.rows = min(g.images, end-p.first), min(g.rows, rows-p.row)
	return p
}

// block is the range of channels of block b of so many.
func (g *convolution) block(b, channels int) (first, n int) {
	first = b * g.width
	return first, min(g.width, channels-first)
}

// members is the range of images of a group.
func (g *convolution) members(group int) (first, end int) {
	size := ceilDiv(g.n, g.groups)
	return group * size, min((group+1)*size, g.n)
}

// taps is the number of elements of a kernel of one channel.
func (g *convolution) taps() int { return g.kh * g.kw }

func ceilDiv(a, b int) int { return (a + b - 1) / b }

func roundUp(a, b int) int { return ceilDiv(a, b) * b }

// held is the elements of the task's own memory.
func held[T float32 | float64](t *task) []T {
	return unsafe.Slice((*T)(t.parts.ptr), t.parts.n/int(unsafe.Sizeof(*new(T))))
}

// tapsRoom is how many rows transposeTaps may write at least.
const tapsRoom = 16

// transposeTaps sets dst[p·width + i] = src[i·taps + p] for i < lanes and p < taps, and rows up to tapsRoom to
// anything: whole squares are faster.
func transposeTaps[T float32 | float64](dst []T, width, lanes, taps int, src []T) {
	k := taps
	if taps > tapsRoom/2 && taps < tapsRoom && len(src) >= (lanes-1)*taps+tapsRoom {
		k = tapsRoom
	}
	transposeTo(dst, width, lanes, k, src, taps)
}

// transposeTo sets dst[p·width + i] = src[i·stride + p] for i < lanes and p < k.
func transposeTo[T float32 | float64](dst []T, width, lanes, k int, src []T, stride int) {
	if unsafe.Sizeof(*new(T)) == 4 {
		gemm.Transpose(cast[float32](dst), width, lanes, k, cast[float32](src), stride)
		return
	}
	for i := range lanes {
		for p, v := range src[i*stride : i*stride+k] {
			dst[p*width+i] = v
		}
	}
}
