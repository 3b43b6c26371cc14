// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// linear is what a task needs for OpLinear.
type linear struct {
	fused32  gemm.Fused[float32]
	fused64  gemm.Fused[float64]
	activate func(i0, i1, j0, j1 int) // t.activate, bound once
}

func linearKernel(d *Device, c *backend.Call) {
	d.checkLinear(c)
	t := d.begin(c)
	defer t.end()
	if op := backend.Op(c.Ints[0]); op != backend.OpInvalid {
		sums := c.Out[0].DType
		if sums.IsHalf() {
			sums = dtype.Float32
		}
		t.block = activations[op].of(sums)
	}
	switch c.Out[0].DType {
	case dtype.Float32:
		linearProduct(t, &t.linear.fused32, gemm.Float32Fused)
	case dtype.Float64:
		linearProduct(t, &t.linear.fused64, gemm.Float64Fused)
	case dtype.BFloat16:
		linearHalf[dtype.BF16](t)
	case dtype.Float16:
		linearHalf[dtype.F16](t)
	default:
		d.fault(c, "no kernel for %s", c.Out[0].DType)
	}
}

// checkLinear faults unless the operands fit.
func (d *Device) checkLinear(c *backend.Call) {
	x, w, out := &c.In[0], &c.In[1], &c.Out[0]
	fits := x.NDim == 2 && w.NDim == 2 && out.NDim == 2 && x.Shape[1] == w.Shape[0] && out.Shape[0] == x.Shape[0] &&
		out.Shape[1] == w.Shape[1] &&
		x.DType == out.DType && w.DType == out.DType
	if c.NIn > 2 {
		fits = fits && c.In[2].NDim == 1 && c.In[2].Shape[0] == out.Shape[1] && c.In[2].DType == out.DType
	}
	for i := range c.NOut {
		fits = fits && backend.SameShape(&c.Out[i], out) && c.Out[i].DType == out.DType && c.Out[i].Contiguous()
	}
	if !fits {
		d.fault(c, "%s %v times %s %v, with a bias of [N] if any, gives no contiguous %s %v", x.DType, x.Shape[:x.NDim],
			w.DType, w.Shape[:w.NDim], out.DType, out.Shape[:out.NDim])
	}
	if op := c.Ints[0]; op < 0 || op >= int(backend.NumOps) || op != int(backend.OpInvalid) &&
		activations[op].f32 == nil || op == int(backend.OpInvalid) && c.NOut > 1 {
		d.fault(c, "cannot apply op %d to give %d outputs", op, c.NOut)
	}
}

// linearProduct runs the product, which goes to the last output.
func linearProduct[T float32 | float64](t *task, f *gemm.Fused[T],
	run func(p *parallel.Pool, m, n, k int, a, b gemm.Matrix[T], c gemm.Rows[T], f *gemm.Fused[T])) {
	c := t.c
	x, w, out := &c.In[0], &c.In[1], &c.Out[c.NOut-1]
	*f = gemm.Fused[T]{}
	if c.NIn > 2 {
		f.Add, f.ColStride = from[T](&c.In[2], c.In[2].Offset), c.In[2].Stride[0]
	}
	if t.block != nil {
		f.Finish = t.linear.activate
	}
	run(t.d.pool, out.Shape[0], out.Shape[1], x.Shape[1], gemm.Strided(from[T](x, x.Offset), x.Stride[0], x.Stride[1]),
		gemm.Strided(from[T](w, w.Offset), w.Stride[0], w.Stride[1]),
		gemm.InRows(from[T](out, out.Offset), out.Shape[1]), f)
	*f = gemm.Fused[T]{}
}

// activate applies the task's block function to rows [i0, i1) × columns [j0, j1) of the product.
func (t *task) activate(i0, i1, j0, j1 int) {
	y, z := &t.c.Out[0], &t.c.Out[t.c.NOut-1]
	n := y.Shape[1]
	ws := t.d.workspace()
	defer t.d.putWorkspace(ws)
	if j1-j0 == n {
		ws.p[0], ws.p[1] = at(y, y.Offset+i0*n), at(z, z.Offset+i0*n)
		t.block(t.c, &ws.p, (i1-i0)*n)
		return
	}
	for i := i0; i < i1; i++ {
		ws.p[0], ws.p[1] = at(y, y.Offset+i*n+j0), at(z, z.Offset+i*n+j0)
		t.block(t.c, &ws.p, j1-j0)
	}
}
