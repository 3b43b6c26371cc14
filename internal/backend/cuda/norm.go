// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// wantNorm looks at x [N,C], y or dy of its shape, dx (nil: none), statistics [N] and, from input first on, parameters
// [C].
func (s *stream) wantNorm(c *backend.Call, y, dx *backend.View, stats []*backend.View, first int) (rows, cols int) {
	s.wantFloat(c)
	rows, cols = c.In[0].Rows()
	dt, of := c.In[0].DType, c.In[0].DType
	s.wantRows(c, &c.In[0], "input", 0)
	if dt == dtype.Float32 && y.DType.IsHalf() {
		of = y.DType
	}
	s.wantVector(c, y, of, rows*cols, "operand of x's shape")
	if dx != nil {
		s.wantVector(c, dx, dt, rows*cols, "dx")
	}
	for _, v := range stats {
		s.wantVector(c, v, statistic(dt), rows, "statistic")
	}
	for i := first; i < c.NIn; i++ {
		s.wantVector(c, &c.In[i], dt, cols, "parameter")
	}
	return rows, cols
}

// normKernel is the name of a kernel for x and for y or dy, whose dtypes may differ.
func normKernel(name string, x, y *backend.View) string {
	if x.DType == y.DType {
		return name + "_" + suffix(x.DType)
	}
	return name + "_" + suffix(x.DType) + "_" + suffix(y.DType)
}

func layerNorm(s *stream, c *backend.Call) {
	rows, cols := s.wantNorm(c, &c.Out[0], nil, []*backend.View{&c.Out[1], &c.Out[2]}, 1)
	if rows == 0 {
		return
	}
	var a args
	a.ptr(s.addr(&c.In[0]))
	a.ptr(s.optional(c, 1))
	a.ptr(s.optional(c, 2))
	for i := range 3 {
		a.ptr(s.addr(&c.Out[i]))
	}
	a.i32(rows)
	a.i32(cols)
	a.f64(c.Floats[0])
	s.rowKernel(c, normKernel("layer_norm", &c.In[0], &c.Out[0]), &a)
}

func rmsNorm(s *stream, c *backend.Call) {
	rows, cols := s.wantNorm(c, &c.Out[0], nil, []*backend.View{&c.Out[1]}, 1)
	if rows == 0 {
		return
	}
	var a args
	a.ptr(s.addr(&c.In[0]))
	a.ptr(s.optional(c, 1))
	a.ptr(s.addr(&c.Out[0]))
	a.ptr(s.addr(&c.Out[1]))
	a.i32(rows)
	a.i32(cols)
	a.f64(c.Floats[0])
	s.rowKernel(c, normKernel("rms_norm", &c.In[0], &c.Out[0]), &a)
}

func layerNormGrad(s *stream, c *backend.Call) {
	rows, cols := s.wantNorm(c, &c.In[3], &c.Out[0], []*backend.View{&c.In[1], &c.In[2]}, 4)
	s.normGrad(c, "layer_norm", 3, rows, cols)
}

func rmsNormGrad(s *stream, c *backend.Call) {
	rows, cols := s.wantNorm(c, &c.In[2], &c.Out[0], []*backend.View{&c.In[1]}, 3)
	s.normGrad(c, "rms_norm", 2, rows, cols)
}

// normShared is the shared memory that the kernel of all gradients in one may take: two blocks fit a multiprocessor of
// an H100.
const normShared = 112 << 10

// normGrad makes dx, and the parameters' gradients if there are outputs for them. Input dy is followed by the weight.
// One kernel does both where a row's sums fit shared memory; the bits of the parameters' gradients are the same.
func (s *stream) normGrad(c *backend.Call, norm string, dy, rows, cols int) {
	if c.NOut == 1 || rows*cols == 0 {
		s.rowGrad(c, norm, dy, rows, cols)
		if c.NOut > 1 {
			s.normParams(c, norm, dy, 1, rows, cols)
		}
		return
	}
	dt := c.In[0].DType
	sums := s.normSums(c, norm, 1, rows, cols)
	shared := sums.outs * normDown * roundUp(cols*dt.Size(), 16) / dt.Size() * statistic(dt).Size()
	if shared > min(normShared, s.d.info.SharedOpt) {
		s.rowGrad(c, norm, dy, rows, cols)
		s.normParts(c, norm, dy, rows, cols, sums)
		s.addNormParts(c, 1, cols, sums)
		return
	}
	var a args
	for i := range dy + 1 {
		a.ptr(s.addr(&c.In[i]))
	}
	a.ptr(s.optional(c, dy+1))
	a.ptr(s.addr(&c.Out[0]))
	sums.pack(&a, norm)
	a.i32(rows)
	a.i32(cols)
	s.kernel(normKernel(norm+"_grad_parts", &c.In[0], &c.In[dy]), [3]uint32{uint32(sums.blocks), 1, 1},
		[3]uint32{normAcross, normDown, 1}, shared, &a)
	s.addNormParts(c, 1, cols, sums)
}

// rowGrad makes dx alone.
func (s *stream) rowGrad(c *backend.Call, norm string, dy, rows, cols int) {
	if rows*cols == 0 {
		return
	}
	var a args
	for i := range dy + 1 {
		a.ptr(s.addr(&c.In[i]))
	}
	a.ptr(s.optional(c, dy+1))
	a.ptr(s.addr(&c.Out[0]))
	a.i32(rows)
	a.i32(cols)
	s.rowKernel(c, normKernel(norm+"_grad", &c.In[0], &c.In[dy]), &a)
}

func layerNormParamGrad(s *stream, c *backend.Call) {
	rows, cols := s.wantNorm(c, &c.In[3], nil, []*backend.View{&c.In[1], &c.In[2]}, c.NIn)
	s.normParams(c, "layer_norm", 3, 0, rows, cols)
}

func rmsNormParamGrad(s *stream, c *backend.Call) {
	rows, cols := s.wantNorm(c, &c.In[2], nil, []*backend.View{&c.In[1]}, c.NIn)
	s.normParams(c, "rms_norm", 2, 0, rows, cols)
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

// normSums checks the outputs from first on, and makes room for what they are the sums of.
func (s *stream) normSums(c *backend.Call, norm string, first, rows, cols int) normSums {
	n := normSums{outs: c.NOut - first, blocks: (rows + normRows - 1) / normRows}
	if norm == "rms_norm" {
		n.outs = 1
	}
	for i := range n.outs {
		s.wantVector(c, &c.Out[first+i], c.In[0].DType, cols, "gradient")
	}
	n.weight = s.scratch(8 * n.outs * n.blocks * cols)
	if n.outs > 1 {
		n.bias = n.weight + cuda.Ptr(8*n.blocks*cols)
	}
	return n
}

// pack adds the addresses that a norm's kernel wants.
func (n *normSums) pack(a *args, norm string) {
	a.ptr(n.weight)
	if norm == "layer_norm" {
		a.ptr(n.bias)
	}
}

// normParams makes the gradients of the parameters, the outputs from first on: sums over blocks of rows, then those in
// order.
func (s *stream) normParams(c *backend.Call, norm string, dy, first, rows, cols int) {
	sums := s.normSums(c, norm, first, rows, cols)
	if cols == 0 {
		return
	}
	if rows > 0 {
		s.normParts(c, norm, dy, rows, cols, sums)
	}
	s.addNormParts(c, first, cols, sums)
}

// normParts makes the sums over blocks of rows.
func (s *stream) normParts(c *backend.Call, norm string, dy, rows, cols int, sums normSums) {
	var a args
	for i := range dy + 1 {
		a.ptr(s.addr(&c.In[i]))
	}
	sums.pack(&a, norm)
	a.i32(rows)
	a.i32(cols)
	dt := c.In[0].DType
	s.kernel(normKernel(norm+"_parts", &c.In[0], &c.In[dy]),
		[3]uint32{uint32(sums.blocks), blocksFor(cols*dt.Size(), 16*normAcross), 1},
		[3]uint32{normAcross, normDown, 1}, 0, &a)
}

// addNormParts adds them up.
func (s *stream) addNormParts(c *backend.Call, first, cols int, sums normSums) {
	var a args
	a.ptr(sums.weight)
	a.ptr(sums.bias)
	a.ptr(s.addr(&c.Out[first]))
	if sums.outs > 1 {
		a.ptr(s.addr(&c.Out[first+1]))
	} else {
		a.ptr(0)
	}
	a.i32(sums.blocks)
	a.i32(cols)
	s.kernel("norm_param_sum_"+suffix(c.In[0].DType), [3]uint32{blocksFor(cols, normAcross), uint32(sums.outs), 1},
		[3]uint32{normAcross, normDown, 1}, 0, &a)
}
