// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// rowOps work along the last dim of contiguous operands (kernels/softmax.cu, norm_*.cu, batchnorm.cu).
var rowOps = map[backend.Op]row{
	backend.OpSoftmax:        {plainRows(1), floats},
	backend.OpSoftmaxGrad:    {plainRows(2), floats},
	backend.OpLogSoftmax:     {plainRows(1), floats},
	backend.OpLogSoftmaxGrad: {plainRows(2), floats},

	backend.OpCrossEntropy:     {crossEntropy, floats},
	backend.OpCrossEntropyGrad: {crossEntropyGrad, floats},

	backend.OpLayerNorm:          {layerNorm, floats},
	backend.OpLayerNormGrad:      {layerNormGrad, floats},
	backend.OpLayerNormParamGrad: {layerNormParamGrad, floats},
	backend.OpRMSNorm:            {rmsNorm, floats},
	backend.OpRMSNormGrad:        {rmsNormGrad, floats},
	backend.OpRMSNormParamGrad:   {rmsNormParamGrad, floats},

	backend.OpBatchStats:    {batchStats, floats},
	backend.OpBatchNorm:     {batchNorm, floats},
	backend.OpBatchNormGrad: {batchNormGrad, floats},
}

// statistic is the dtype of an op's statistics on operands of dt.
func statistic(dt dtype.DType) dtype.DType {
	if dt == dtype.Float64 {
		return dt
	}
	return dtype.Float32
}

// wantRows faults unless the view is contiguous and of the first input's dtype.
func (s *stream) wantRows(c *backend.Call, v *backend.View, what string, i int) {
	if err := c.WantRows(v); err != nil {
		s.fault(c, "%s %d %v", what, i, err)
	}
}

// wantRowsApart faults unless the view is of the first input's dtype and its rows are contiguous.
func (s *stream) wantRowsApart(c *backend.Call, v *backend.View, what string, i int) {
	if err := c.WantRowsApart(v); err != nil {
		s.fault(c, "%s %d %v", what, i, err)
	}
}

// wantVector faults unless the view is contiguous, has n elements and the dtype.
func (s *stream) wantVector(c *backend.Call, v *backend.View, dt dtype.DType, n int, what string) {
	if err := v.WantVector(dt, n); err != nil {
		s.fault(c, "%s %v", what, err)
	}
}

// wantIndices faults unless the view holds n contiguous indices. Whether they are in range is seen by the kernel.
func (s *stream) wantIndices(c *backend.Call, v *backend.View, n int) {
	if v.DType != dtype.Int32 && v.DType != dtype.Int64 || v.Numel() != n || !v.Contiguous() {
		s.fault(c, "indices are %s of shape %v: want %d contiguous int32 or int64", v.DType, v.Shape[:v.NDim], n)
	}
}

// indices packs an operand of indices, as kernels/index.cuh has it.
func (s *stream) indices(a *args, v *backend.View) {
	a.ptr(s.addr(v))
	if v.DType == dtype.Int64 {
		a.i32(1)
	} else {
		a.i32(0)
	}
}

// faults packs where a kernel puts a bad index.
func (s *stream) packFault(a *args, c *backend.Call) {
	a.ptr(s.faultWord())
	a.u32(uint32(c.Op))
}

// Rows with so many chunks of 16 bytes or fewer have a warp each.
const (
	warpChunks   = 256
	warpsOfBlock = 4
)

// rowGrid is the grid and block for rows of n elements of dt. It decides the order of a row's sum, and so depends on
// that alone.
func rowGrid(rows, n int, dt dtype.DType) (grid, block [3]uint32) {
	chunk := 16 / dt.Size()
	switch chunks := (n + chunk - 1) / chunk; {
	case chunks <= warpChunks:
		return [3]uint32{blocksFor(rows, warpsOfBlock), 1, 1}, [3]uint32{32, warpsOfBlock, 1}
	case chunks <= 1024:
		block = [3]uint32{128, 1, 1}
	case chunks <= 4096:
		block = [3]uint32{256, 1, 1}
	case chunks <= 8192:
		block = [3]uint32{512, 1, 1}
	default:
		block = [3]uint32{1024, 1, 1}
	}
	return [3]uint32{blocksFor(rows, 1), 1, 1}, block
}

// rowKernel queues a kernel over the rows of the first input.
func (s *stream) rowKernel(c *backend.Call, name string, a *args) {
	rows, cols := c.In[0].Rows()
	grid, block := rowGrid(rows, cols, c.In[0].DType)
	s.kernel(name, grid, block, 0, a)
}

// plainRows launches an op whose so many inputs and output have one shape.
func plainRows(ins int) launcher {
	return func(s *stream, c *backend.Call) {
		n := c.In[0].Numel()
		for i := range ins {
			s.wantRows(c, &c.In[i], "input", i)
			s.wantVector(c, &c.In[i], c.In[0].DType, n, "input")
		}
		s.wantVector(c, &c.Out[0], c.In[0].DType, n, "output")
		if n == 0 {
			return
		}
		var a args
		for i := range ins {
			a.ptr(s.addr(&c.In[i]))
		}
		a.ptr(s.addr(&c.Out[0]))
		rows, cols := c.In[0].Rows()
		a.i32(rows)
		a.i32(cols)
		s.rowKernel(c, c.Op.String()+"_"+suffix(c.In[0].DType), &a)
	}
}

// optional is the address of input i, 0 if the call has fewer.
func (s *stream) optional(c *backend.Call, i int) cuda.Ptr {
	if i >= c.NIn {
		return 0
	}
	return s.addr(&c.In[i])
}

// result is the address of output i, 0 if the call has fewer.
func (s *stream) result(c *backend.Call, i int) cuda.Ptr {
	if i >= c.NOut {
		return 0
	}
	return s.addr(&c.Out[i])
}

func crossEntropy(s *stream, c *backend.Call) {
	rows, cols := c.In[0].Rows()
	stat := statistic(c.In[0].DType)
	s.wantRowsApart(c, &c.In[0], "input", 0)
	s.wantIndices(c, &c.In[1], rows)
	s.wantVector(c, &c.Out[0], stat, rows, "loss")
	if c.NOut > 1 {
		s.wantVector(c, &c.Out[1], stat, rows, "log-sum-exp")
	}
	from, _ := c.In[0].RowStride()
	to := 0
	if c.NOut > 2 {
		s.wantRowsApart(c, &c.Out[2], "slope", 2)
		to, _ = c.Out[2].RowStride()
	}
	if rows == 0 {
		return
	}
	var a args
	a.ptr(s.addr(&c.In[0]))
	s.indices(&a, &c.In[1])
	a.ptr(s.addr(&c.Out[0]))
	a.ptr(s.result(c, 1))
	a.ptr(s.result(c, 2))
	a.i32(rows)
	a.i32(cols)
	a.i64(from)
	a.i64(to)
	a.i64(c.Ints[0])
	s.packFault(&a, c)
	s.rowKernel(c, "cross_entropy_"+suffix(c.In[0].DType), &a)
}

func crossEntropyGrad(s *stream, c *backend.Call) {
	rows, cols := c.In[0].Rows()
	stat := statistic(c.In[0].DType)
	s.wantRows(c, &c.In[0], "input", 0)
	s.wantIndices(c, &c.In[1], rows)
	s.wantVector(c, &c.In[2], stat, rows, "log-sum-exp")
	s.wantVector(c, &c.Out[0], c.In[0].DType, rows*cols, "output")
	dloss := &c.In[3]
	if dloss.DType != stat || dloss.Numel() != rows || dloss.NDim > 1 {
		s.fault(c, "dloss is %s of shape %v: want [%d] of %s", dloss.DType, dloss.Shape[:dloss.NDim], rows, stat)
	}
	if rows*cols == 0 {
		return
	}
	var a args
	a.ptr(s.addr(&c.In[0]))
	s.indices(&a, &c.In[1])
	a.ptr(s.addr(&c.In[2]))
	a.ptr(s.addr(dloss))
	a.i64(dloss.Stride[0])
	a.ptr(s.addr(&c.Out[0]))
	a.i32(rows)
	a.i32(cols)
	a.i64(c.Ints[0])
	s.packFault(&a, c)
	s.rowKernel(c, "cross_entropy_grad_"+suffix(c.In[0].DType), &a)
}
