// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// batchFlops is the number of multiplications of one product from which it is spread over the workers itself; smaller
// ones are spread as a batch.
const batchFlops = 1 << 22

// product is C = A·B of one batch element, with the batch walked by three dims.
type product struct {
	m, n, k                 int
	ars, acs, brs, bcs, ldc int
	a, b, c                 dims // the batch
	accumulate              bool
}

func matMulKernel(d *Device, c *backend.Call) {
	if c.Out[0].DType.IsHalf() && repeats(&c.Out[0]) { // what is added up is float32 until the end
		d.launchWidened(&kernels[backend.OpMatMul], c)
		return
	}
	t := d.begin(c)
	defer t.end()
	d.product(c, &t.product)
	batch := t.product.c.numel()
	p := &t.product
	if batch == 0 || p.m == 0 || p.n == 0 {
		return
	}
	flops := p.m * p.n * p.k
	pool, grain := d.pool, batch // one chunk: each product uses the pool
	if flops < batchFlops && batch > 1 {
		pool, grain = nil, max(1, (batchFlops>>2)/max(1, flops))
	}
	switch c.Out[0].DType {
	case dtype.Float32:
		if c.In[0].DType.IsHalf() {
			wide, serial := productsWide[dtype.BF16], productsWideSerial[dtype.BF16]
			if c.In[0].DType == dtype.Float16 {
				wide, serial = productsWide[dtype.F16], productsWideSerial[dtype.F16]
			}
			if pool != nil {
				wide(t, pool, 0, batch)
				return
			}
			t.do(batch, grain, serial)
			return
		}
		if pool != nil {
			products[float32](t, pool, 0, batch)
			return
		}
		t.do(batch, grain, productsSerial[float32])
	case dtype.Float64:
		if pool != nil {
			products[float64](t, pool, 0, batch)
			return
		}
		t.do(batch, grain, productsSerial[float64])
	case dtype.BFloat16:
		if pool != nil {
			productsHalf[dtype.BF16](t, batch)
			return
		}
		t.setHalf()
		t.do(batch, grain, productsHalfSerial[dtype.BF16])
	case dtype.Float16:
		if pool != nil {
			productsHalf[dtype.F16](t, batch)
			return
		}
		t.setHalf()
		t.do(batch, grain, productsHalfSerial[dtype.F16])
	default:
		d.fault(c, "no kernel for %s", c.Out[0].DType)
	}
}

// product checks the operands and lays out the products. Rows of a batch that share B become one product.
func (d *Device) product(c *backend.Call, p *product) {
	a, b, out := &c.In[0], &c.In[1], &c.Out[0]
	nd := out.NDim
	if nd < 2 || a.NDim != nd || b.NDim != nd || a.DType != b.DType || a.DType != out.DType &&
		!(a.DType.IsHalf() && out.DType == dtype.Float32) {
		d.fault(c, "%s %v times %s %v gives no %s %v", a.DType, a.Shape[:a.NDim], b.DType, b.Shape[:b.NDim], out.DType,
			out.Shape[:nd])
	}
	i, j := nd-2, nd-1
	*p = product{
		m: out.Shape[i], n: out.Shape[j], k: a.Shape[j], accumulate: c.Ints[0] == 1,
		ars: a.Stride[i], acs: a.Stride[j], brs: b.Stride[i], bcs: b.Stride[j], ldc: out.Shape[j],
	}
	if p.m > 1 && p.n > 0 {
		p.ldc = out.Stride[i]
	}
	fits := a.Shape[i] == p.m && b.Shape[i] == p.k && b.Shape[j] == p.n
	for k := range i {
		fits = fits && a.Shape[k] == out.Shape[k] && b.Shape[k] == out.Shape[k]
		p.a.add(out.Shape[k], a.Stride[k])
		p.b.add(out.Shape[k], b.Stride[k])
		p.c.add(out.Shape[k], out.Stride[k])
	}
	if !fits {
		d.fault(c, "%v times %v gives no %v", a.Shape[:nd], b.Shape[:nd], out.Shape[:nd])
	}
	if p.ldc < p.n || p.n > 1 && out.Stride[j] != 1 {
		d.fault(c, "the output's rows are not contiguous or overlap: shape %v, strides %v", out.Shape[:nd],
			out.Stride[:nd])
	}
	for k := i - 1; k >= 0; k-- { // innermost batch dim first
		size := out.Shape[k]
		if size != 1 && (b.Stride[k] != 0 || out.Stride[k] != p.m*p.ldc || a.Stride[k] != p.m*p.ars || p.accumulate &&
			out.Stride[k] == 0) {
			break
		}
		if size != 1 {
			p.m *= size
		}
		p.a.nd, p.b.nd, p.c.nd = k, k, k
	}
}

func productsSerial[T float](t *task, _ *workspace, lo, hi int) { products[T](t, nil, lo, hi) }

func products[T float](t *task, pool *parallel.Pool, lo, hi int) {
	p := &t.product
	a, b, out := &t.c.In[0], &t.c.In[1], &t.c.Out[0]
	for i := lo; i < hi; i++ {
		multiply(pool, p.m, p.n, p.k, from[T](a, a.Offset+p.a.offset(i)), p.ars, p.acs,
			from[T](b, b.Offset+p.b.offset(i)), p.brs, p.bcs,
			from[T](out, out.Offset+p.c.offset(i)), p.ldc, p.accumulate)
	}
}

// multiply is C = A·B or C += A·B by package gemm.
func multiply[T float](pool *parallel.Pool, m, n, k int, a []T, ars, acs int, b []T, brs, bcs int, c []T, ldc int,
	accumulate bool) {
	if unsafe.Sizeof(*new(T)) == 4 {
		gemm.Float32(pool, m, n, k, gemm.Strided(cast[float32](a), ars, acs), gemm.Strided(cast[float32](b), brs, bcs),
			gemm.InRows(cast[float32](c), ldc), accumulate)
		return
	}
	gemm.Float64(pool, m, n, k, gemm.Strided(cast[float64](a), ars, acs), gemm.Strided(cast[float64](b), brs, bcs),
		gemm.InRows(cast[float64](c), ldc), accumulate)
}
