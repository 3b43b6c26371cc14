// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
)

// wantNorm looks at x [N,C], operands of its shape, statistics [N] and, from input first on, parameters [C].
func (s *stream) wantNorm(c *backend.Call, same, stats []*backend.View, first int) (rows, cols int) {
	s.wantFloat(c)
	rows, cols = rowShape(&c.In[0])
	dt := c.In[0].DType
	s.wantRows(c, &c.In[0], "input", 0)
	for _, v := range same {
		s.wantVector(c, v, dt, rows*cols, "operand of x's shape")
	}
	for _, v := range stats {
		s.wantVector(c, v, statistic(dt), rows, "statistic")
	}
	for i := first; i < c.NIn; i++ {
		s.wantVector(c, &c.In[i], dt, cols, "parameter")
	}
	return rows, cols
}

func layerNorm(s *stream, c *backend.Call) {
	rows, cols := s.wantNorm(c, []*backend.View{&c.Out[0]}, []*backend.View{&c.Out[1], &c.Out[2]}, 1)
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
	s.rowKernel(c, "layer_norm", &a)
}

func rmsNorm(s *stream, c *backend.Call) {
	rows, cols := s.wantNorm(c, []*backend.View{&c.Out[0]}, []*backend.View{&c.Out[1]}, 1)
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
	s.rowKernel(c, "rms_norm", &a)
}

func layerNormGrad(s *stream, c *backend.Call) {
	rows, cols := s.wantNorm(c, []*backend.View{&c.In[3], &c.Out[0]}, []*backend.View{&c.In[1], &c.In[2]}, 4)
	s.normGrad(c, "layer_norm", 3, rows, cols)
}

func rmsNormGrad(s *stream, c *backend.Call) {
	rows, cols := s.wantNorm(c, []*backend.View{&c.In[2], &c.Out[0]}, []*backend.View{&c.In[1]}, 3)
	s.normGrad(c, "rms_norm", 2, rows, cols)
}

// normGrad makes dx, and the parameters' gradients if there are outputs for them. Input dy is followed by the weight.
func (s *stream) normGrad(c *backend.Call, norm string, dy, rows, cols int) {
	if rows*cols > 0 {
		var a args
		for i := range dy + 1 {
			a.ptr(s.addr(&c.In[i]))
		}
		a.ptr(s.optional(c, dy+1))
		a.ptr(s.addr(&c.Out[0]))
		a.i32(rows)
		a.i32(cols)
		s.rowKernel(c, norm+"_grad", &a)
	}
	if c.NOut > 1 {
		s.normParams(c, norm, dy, 1, rows, cols)
	}
}

func layerNormParamGrad(s *stream, c *backend.Call) {
	rows, cols := s.wantNorm(c, []*backend.View{&c.In[3]}, []*backend.View{&c.In[1], &c.In[2]}, c.NIn)
	s.normParams(c, "layer_norm", 3, 0, rows, cols)
}

func rmsNormParamGrad(s *stream, c *backend.Call) {
	rows, cols := s.wantNorm(c, []*backend.View{&c.In[2]}, []*backend.View{&c.In[1]}, c.NIn)
	s.normParams(c, "rms_norm", 2, 0, rows, cols)
}

// normRows is the number of rows that are summed first, and normAcross of chunks of 16 bytes that a block does.
const (
	normRows   = 64
	normAcross = 32
	normDown   = 8
)

// normParams makes the gradients of the parameters, the outputs from first on: sums over blocks of rows, then those in
// order.
func (s *stream) normParams(c *backend.Call, norm string, dy, first, rows, cols int) {
	dt := c.In[0].DType
	outs := c.NOut - first
	if norm == "rms_norm" {
		outs = 1
	}
	for i := range outs {
		s.wantVector(c, &c.Out[first+i], dt, cols, "gradient")
	}
	if cols == 0 {
		return
	}
	blocks := (rows + normRows - 1) / normRows
	weight, bias := s.scratch(8*outs*blocks*cols), cuda.Ptr(0)
	if outs > 1 {
		bias = weight + cuda.Ptr(8*blocks*cols)
	}
	if blocks > 0 {
		var a args
		for i := range dy + 1 {
			a.ptr(s.addr(&c.In[i]))
		}
		a.ptr(weight)
		if norm == "layer_norm" {
			a.ptr(bias)
		}
		a.i32(rows)
		a.i32(cols)
		s.kernel(norm+"_parts_"+suffix(dt), [3]uint32{uint32(blocks), blocksFor(cols*dt.Size(), 16*normAcross), 1},
			[3]uint32{normAcross, normDown, 1}, 0, &a)
	}
	var a args
	a.ptr(weight)
	a.ptr(bias)
	a.ptr(s.addr(&c.Out[first]))
	if outs > 1 {
		a.ptr(s.addr(&c.Out[first+1]))
	} else {
		a.ptr(0)
	}
	a.i32(blocks)
	a.i32(cols)
	s.kernel("norm_param_sum_"+suffix(dt), [3]uint32{blocksFor(cols, normAcross), uint32(outs), 1},
		[3]uint32{normAcross, normDown, 1}, 0, &a)
}
