// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/vecmath"
)

// blocks are the block functions of an elementwise op, by the dtype of its inputs; nil where the op has none.
type blocks struct{ f32, f64, i32, i64, u8, boolean block }

func (b *blocks) of(t dtype.DType) block {
	switch t {
	case dtype.Float32:
		return b.f32
	case dtype.Float64:
		return b.f64
	case dtype.Int32:
		return b.i32
	case dtype.Int64:
		return b.i64
	case dtype.Uint8:
		return b.u8
	case dtype.Bool:
		return b.boolean
	}
	return nil
}

// pointwise is the kernel of an elementwise op whose output has the dtype of its inputs.
func pointwise(ins int, b blocks) kernel {
	return kernel{outs: 1, ins: ins, run: func(d *Device, c *backend.Call) {
		launchBlocks(d, c, ins, &b, c.In[0].DType)
	}, flat: b.flat(false)}
}

// comparison is the kernel of an elementwise op with a bool output.
func comparison(b blocks) kernel {
	return kernel{outs: 1, ins: 2, run: func(d *Device, c *backend.Call) {
		launchBlocks(d, c, 2, &b, dtype.Bool)
	}, flat: b.flat(true)}
}

func launchBlocks(d *Device, c *backend.Call, ins int, b *blocks, out dtype.DType) {
	in := c.In[0].DType
	f := b.of(in)
	if f == nil {
		d.fault(c, "no kernel for %s", in)
	}
	for k := range ins {
		if c.In[k].DType != in || c.Out[0].DType != out {
			d.fault(c, "inputs of %s and %s give %s, not %s", in, c.In[k].DType, out, c.Out[0].DType)
		}
	}
	d.sameShapes(c, ins)
	t := d.begin(c)
	t.block = f
	switch ins {
	case 1:
		t.loops.set(&c.Out[0], &c.In[0])
	case 2:
		t.loops.set(&c.Out[0], &c.In[0], &c.In[1])
	default:
		t.loops.set(&c.Out[0], &c.In[0], &c.In[1], &c.In[2])
	}
	grain := elementGrain
	if t.nonTemporal {
		grain = vecmath.NonTemporalLength
	}
	t.do(t.loops.numel(), grain, elementwise)
	t.end()
}

// where copies by element size, whatever the dtype.
func where(d *Device, c *backend.Call) {
	if c.In[0].DType != dtype.Bool || c.In[1].DType != c.Out[0].DType || c.In[2].DType != c.Out[0].DType {
		d.fault(c, "%s ? %s : %s gives no %s", c.In[0].DType, c.In[1].DType, c.In[2].DType, c.Out[0].DType)
	}
	d.sameShapes(c, 3)
	t := d.begin(c)
	switch c.Out[0].DType.Size() {
	case 1:
		t.block = whereBlock[uint8]
	case 2:
		t.block = whereBlock[uint16]
	case 4:
		t.block = whereBlock[uint32]
	default:
		t.block = whereBlock[uint64]
	}
	t.loops.set(&c.Out[0], &c.In[0], &c.In[1], &c.In[2])
	t.do(t.loops.numel(), elementGrain, elementwise)
	t.end()
}

func whereBlock[T uint8 | uint16 | uint32 | uint64](_ *backend.Call, p *[4]unsafe.Pointer, n int) {
	out, cond := unsafe.Slice((*T)(p[0]), n), unsafe.Slice((*uint8)(p[1]), n)
	yes, no := unsafe.Slice((*T)(p[2]), n), unsafe.Slice((*T)(p[3]), n)
	for i := range out {
		v := no[i]
		if cond[i] != 0 {
			v = yes[i]
		}
		out[i] = v
	}
}

// sameShapes faults unless the first inputs have the shape of the output.
func (d *Device) sameShapes(c *backend.Call, ins int) {
	out := &c.Out[0]
	for k := range ins {
		if in := &c.In[k]; in.NDim != out.NDim || in.Shape != out.Shape && !backend.SameShape(in, out) {
			d.fault(c, "input %d has shape %v, the output %v", k, in.Shape[:in.NDim], out.Shape[:out.NDim])
		}
	}
}

// operands1 and operands2 are the slices of a block with one and two inputs; the results have equal length, so that
// loops need no bounds checks.
func operands1[T any](p *[4]unsafe.Pointer, n int) (out, x []T) {
	return unsafe.Slice((*T)(p[0]), n), unsafe.Slice((*T)(p[1]), n)
}

func operands2[T any](p *[4]unsafe.Pointer, n int) (out, x, y []T) {
	return unsafe.Slice((*T)(p[0]), n), unsafe.Slice((*T)(p[1]), n), unsafe.Slice((*T)(p[2]), n)
}
