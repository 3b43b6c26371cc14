// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// norm is a call of a norm or of a gradient of one.
type norm struct {
	*backend.Call
	name       string // "layer_norm" or "rms_norm"
	rows, cols int
	stats      int           // mean and 1/σ, or 1/rms
	ins, outs  int           // inputs up to the parameters, and outputs up to their gradients
	y          *backend.View // or dy

	part, more, rounded cuda.Ptr // of the operands behind those; 0: none
}

func layerNormOf(c *backend.Call) *norm { return &norm{Call: c, name: "layer_norm", stats: 2} }
func rmsNormOf(c *backend.Call) *norm   { return &norm{Call: c, name: "rms_norm", stats: 1} }

// want looks at x [N,C], y or dy of its shape, dx (nil: none), statistics [N], from input first on parameters [C], and
// what follows them.
func (n *norm) want(s *stream, y, dx *backend.View, stats []backend.View, first int) {
	c, x := n.Call, n.In[0].DType
	n.y = y
	n.rows, n.cols = n.In[0].Rows()
	s.wantRows(c, &n.In[0], "input", 0)
	of := x
	if x == dtype.Float32 && y.DType.IsHalf() {
		of = y.DType
	}
	s.wantVector(c, y, of, n.rows*n.cols, "operand of x's shape")
	for i := range n.stats {
		s.wantVector(c, &stats[i], statistic(x), n.rows, "statistic")
	}
	o := c.NormOperands()
	n.ins, n.outs = o.Ins, o.Outs
	for i := first; i < n.ins; i++ {
		s.wantVector(c, &n.In[i], x, n.cols, "parameter")
	}
	if dx != nil {
		s.wantVector(c, dx, x, n.rows*n.cols, "dx")
	}
	matrix := func(v *backend.View, dt dtype.DType, what string, has bool) cuda.Ptr {
		if v == nil {
			return 0
		}
		if !has {
			s.fault(c, "no kernel for %s of %s for %s and %s", what, v.DType, x, y.DType)
		}
		s.wantVector(c, v, dt, n.rows*n.cols, what)
		return s.addr(v)
	}
	n.part = matrix(o.Part, of, "part", of != x && n.name == "layer_norm")
	n.more = matrix(o.More, x, "more", dx != nil && !x.IsHalf())
	n.rounded = matrix(o.Rounded, of, "rounded dx", dx != nil && of != x)
}

// kernel is the name of a kernel for x and for y or dy, whose dtypes may differ.
func (n *norm) kernel(ending string) string {
	name := n.name + ending + "_" + suffix(n.In[0].DType)
	if n.y.DType != n.In[0].DType {
		name += "_" + suffix(n.y.DType)
	}
	return name
}

// inputs packs x, part, and the inputs from 1 up to end, 0 for those that are missing.
func (n *norm) inputs(s *stream, a *args, end int) {
	a.ptr(s.addr(&n.In[0]))
	if n.name == "layer_norm" {
		a.ptr(n.part)
	}
	for i := 1; i < end; i++ {
		if i < n.ins {
			a.ptr(s.addr(&n.In[i]))
		} else {
			a.ptr(0)
		}
	}
}

func layerNorm(s *stream, c *backend.Call) { layerNormOf(c).rowwise(s) }
func rmsNorm(s *stream, c *backend.Call)   { rmsNormOf(c).rowwise(s) }

// rowwise queues the norm itself. A layer norm has one parameter more, too.
func (n *norm) rowwise(s *stream) {
	n.want(s, &n.Out[0], nil, n.Out[1:], 1)
	if n.rows == 0 {
		return
	}
	var a args
	n.inputs(s, &a, 1+n.stats)
	for i := range 1 + n.stats {
		a.ptr(s.addr(&n.Out[i]))
	}
	a.i32(n.rows)
	a.i32(n.cols)
	a.f64(n.Floats[0])
	s.rowKernel(n.Call, n.kernel(""), &a)
}

func layerNormGrad(s *stream, c *backend.Call) { layerNormOf(c).grad(s) }
func rmsNormGrad(s *stream, c *backend.Call)   { rmsNormOf(c).grad(s) }

// normShared is the shared memory that the kernel of all gradients in one may take: two blocks fit a multiprocessor of
// an H100.
const normShared = 112 << 10

// dy is the input that is the gradient of y, behind x and the statistics. The weight follows it.
func (n *norm) dy() int { return 1 + n.stats }

// grad makes dx, and the parameters' gradients if there are outputs for them. One kernel does both where a row's sums
// fit shared memory; the bits of the parameters' gradients are the same.
func (n *norm) grad(s *stream) {
	n.want(s, &n.In[n.dy()], &n.Out[0], n.In[1:], n.dy()+1)
	if n.outs == 1 || n.rows*n.cols == 0 {
		n.rowGrad(s)
		if n.outs > 1 {
			n.params(s, 1)
		}
		return
	}
	dt := n.In[0].DType
	sums := n.sums(s, 1)
	shared := sums.outs * normDown * roundUp(n.cols*dt.Size(), 16) / dt.Size() * statistic(dt).Size()
	if shared > min(normShared, s.d.info.SharedOpt) {
		// The parameters' gradients first: dx may lie where an operand does.
		n.parts(s, sums)
		n.rowGrad(s)
		n.addParts(s, 1, sums)
		return
	}
	var a args
	n.inputs(s, &a, n.dy()+2)
	a.ptr(n.more)
	a.ptr(s.addr(&n.Out[0]))
	a.ptr(n.rounded)
	sums.pack(&a, n)
	a.i32(n.rows)
	a.i32(n.cols)
	s.kernel(n.kernel("_grad_parts"), [3]uint32{uint32(sums.blocks), 1, 1}, [3]uint32{normAcross, normDown, 1}, shared,
		&a)
	n.addParts(s, 1, sums)
}

// rowGrad makes dx alone.
func (n *norm) rowGrad(s *stream) {
	if n.rows*n.cols == 0 {
		return
	}
	var a args
	n.inputs(s, &a, n.dy()+2)
	a.ptr(n.more)
	a.ptr(s.addr(&n.Out[0]))
	a.ptr(n.rounded)
	a.i32(n.rows)
	a.i32(n.cols)
	s.rowKernel(n.Call, n.kernel("_grad"), &a)
}

func layerNormParamGrad(s *stream, c *backend.Call) { layerNormOf(c).paramGrad(s) }
func rmsNormParamGrad(s *stream, c *backend.Call)   { rmsNormOf(c).paramGrad(s) }

// paramGrad makes the gradients of the parameters alone.
func (n *norm) paramGrad(s *stream) {
	n.want(s, &n.In[n.dy()], nil, n.In[1:], n.dy()+1)
	n.params(s, 0)
}

// normRows is the number of rows that are summed first, by normDown warps; normAcross is the number of a row's chunks
// of 16 bytes that a block does.
const (
	normRows   = 64
	normAcross = 32
	normDown   = 8
)

// normSums is where the sums over blocks of rows lie, for the weight and for the bias if outs is 2.
type normSums struct {
	outs, blocks int
	weight, bias cuda.Ptr
}

// sums checks the outputs from first on, and makes room for what they are the sums of.
func (n *norm) sums(s *stream, first int) normSums {
	to := normSums{outs: min(n.outs-first, n.stats), blocks: (n.rows + normRows - 1) / normRows}
	for i := range to.outs {
		s.wantVector(n.Call, &n.Out[first+i], n.In[0].DType, n.cols, "gradient")
	}
	to.weight = s.scratch(8 * to.outs * to.blocks * n.cols)
	if to.outs > 1 {
		to.bias = to.weight + cuda.Ptr(8*to.blocks*n.cols)
	}
	return to
}

// pack adds the addresses that a norm's kernel needs.
func (to *normSums) pack(a *args, n *norm) {
	a.ptr(to.weight)
	if n.name == "layer_norm" {
		a.ptr(to.bias)
	}
}

// params makes the gradients of the parameters, the outputs from first on: sums over blocks of rows, then those in
// order.
func (n *norm) params(s *stream, first int) {
	sums := n.sums(s, first)
	if n.cols == 0 {
		return
	}
	if n.rows > 0 {
		n.parts(s, sums)
	}
	n.addParts(s, first, sums)
}

// parts makes the sums over blocks of rows.
func (n *norm) parts(s *stream, sums normSums) {
	var a args
	n.inputs(s, &a, n.dy()+1)
	sums.pack(&a, n)
	a.i32(n.rows)
	a.i32(n.cols)
	grid := [3]uint32{uint32(sums.blocks), blocksFor(n.cols*n.In[0].DType.Size(), 16*normAcross), 1}
	s.kernel(n.kernel("_parts"), grid, [3]uint32{normAcross, normDown, 1}, 0, &a)
}

// addParts adds them up.
func (n *norm) addParts(s *stream, first int, sums normSums) {
	var a args
	a.ptr(sums.weight)
	a.ptr(sums.bias)
	a.ptr(s.addr(&n.Out[first]))
	if sums.outs > 1 {
		a.ptr(s.addr(&n.Out[first+1]))
	} else {
		a.ptr(0)
	}
	a.i32(sums.blocks)
	a.i32(n.cols)
	s.kernel("norm_param_sum_"+suffix(n.In[0].DType), [3]uint32{blocksFor(n.cols, normAcross), uint32(sums.outs), 1},
		[3]uint32{normAcross, normDown, 1}, 0, &a)
}
