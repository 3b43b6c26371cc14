// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"unsafe"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/kernels/gemm"
	"github.com/lockstep-ml/lockstep/internal/parallel"
)

// halfProduct is what a task needs for a product of half operands. Package gemm widens them while it reads them; its
// sums are float32, and are rounded to the outputs piece by piece, when they are complete.
type halfProduct struct {
	fused       gemm.Fused[float32]
	sums        []float32                // [M,N]
	n, ld       int                      // columns, and elements of an output from a row to the next
	offset      int                      // of the product's element (0, 0) from the start of each output
	widen, down block                    // conversions from the half type to float32, and back
	finish      func(i0, i1, j0, j1 int) // t.round, bound once
}

// half is a dtype that is widened where it is computed with.
type half interface{ dtype.BF16 | dtype.F16 }

// setHalf chooses the conversions.
func (t *task) setHalf() {
	of := t.c.Out[0].DType
	t.half.widen, t.half.down = casts[dtype.Float32][of], casts[of][dtype.Float32]
}

// beginHalf makes room for the sums of one product of [m,n], and for a bias.
func (t *task) beginHalf(m, n, ld int) (bias []float32) {
	h := &t.half
	t.setHalf()
	t.parts = t.d.scratch(4 * (m*n + n))
	all := unsafe.Slice((*float32)(t.parts.ptr), m*n+n)
	h.sums, h.n, h.ld, h.offset = all[:m*n], n, ld, 0
	h.fused = gemm.Fused[float32]{Finish: h.finish}
	return all[m*n:]
}

// endHalf lets go of the memory.
func (t *task) endHalf() { t.half.sums, t.half.fused = nil, gemm.Fused[float32]{} }

// round finishes rows [i0, i1) × columns [j0, j1) of the sums.
func (t *task) round(i0, i1, j0, j1 int) {
	n, ld := t.half.n, t.half.ld
	ws := t.d.workspace()
	defer t.d.putWorkspace(ws)
	if j1-j0 == n && ld == n {
		t.roundRun(ws, i0*n, i1*n, i0*n)
		return
	}
	for i := i0; i < i1; i++ {
		t.roundRun(ws, i*n+j0, i*n+j1, i*ld+j0)
	}
}

// roundRun rounds sums [lo, hi) to the last output, from its element to on. If the task has a block function, it is
// applied to what was rounded, and what comes of it is rounded to the first output.
func (t *task) roundRun(ws *workspace, lo, hi, to int) {
	const piece = 4096 // stays in the first-level cache
	h := &t.half
	for ; lo < hi; lo, to = lo+piece, to+piece {
		n := min(piece, hi-lo)
		sums, out := unsafe.Pointer(&h.sums[lo]), &t.c.Out[t.c.NOut-1]
		rounded := at(out, out.Offset+h.offset+to)
		ws.p[0], ws.p[1] = rounded, sums
		h.down(t.c, &ws.p, n)
		if t.block == nil {
			continue
		}
		ws.p[0], ws.p[1] = sums, rounded
		h.widen(t.c, &ws.p, n)
		ws.p[0], ws.p[1] = sums, sums
		t.block(t.c, &ws.p, n)
		y := &t.c.Out[0]
		ws.p[0], ws.p[1] = at(y, y.Offset+h.offset+to), sums
		h.down(t.c, &ws.p, n)
	}
}

// linearHalf is linearProduct for half operands.
func linearHalf[H half](t *task) {
	c, h := t.c, &t.half
	x, w, out := &c.In[0], &c.In[1], &c.Out[0]
	m, n := out.Shape[0], out.Shape[1]
	bias := t.beginHalf(m, n, n)
	if c.NIn > 2 {
		t.widenRow(bias, &c.In[2])
		h.fused.Add, h.fused.ColStride = bias, 1
	}
	gemm.Widened(t.d.pool, m, n, x.Shape[1], gemm.Strided(from[H](x, x.Offset), x.Stride[0], x.Stride[1]),
		gemm.Strided(from[H](w, w.Offset), w.Stride[0], w.Stride[1]), gemm.InRows(h.sums, n), &h.fused)
	t.endHalf()
}

// widenRow widens a half view of one dim.
func (t *task) widenRow(dst []float32, v *backend.View) {
	ws := t.d.workspace()
	defer t.d.putWorkspace(ws)
	n, step := len(dst), 1
	if v.Stride[0] == 1 {
		step = n
	}
	for i := 0; i < n; i += step {
		ws.p[0], ws.p[1] = unsafe.Pointer(&dst[i]), at(v, v.Offset+i*v.Stride[0])
		t.half.widen(t.c, &ws.p, step)
	}
}

// productsHalf computes products [0, batch) of half operands, one after the other on all workers.
func productsHalf[H half](t *task, batch int) {
	p, h := &t.product, &t.half
	t.beginHalf(p.m, p.n, p.ldc)
	for i := range batch {
		h.offset = p.c.offset(i)
		if p.accumulate {
			t.do(p.m, max(1, elementGrain/p.n), loadSums)
			h.fused.Add, h.fused.RowStride, h.fused.ColStride = h.sums, p.n, 1
		}
		productHalf[H](t, t.d.pool, i, h.sums, p.n, &h.fused)
	}
	t.endHalf()
}

// productsWide computes products [lo, hi) of half operands whose output is float32: the sums are it.
func productsWide[H half](t *task, pool *parallel.Pool, lo, hi int) {
	p, out := &t.product, &t.c.Out[0]
	for i := lo; i < hi; i++ {
		sums := from[float32](out, out.Offset+p.c.offset(i))
		f := gemm.Fused[float32]{}
		if p.accumulate {
			f = gemm.Fused[float32]{Add: sums, RowStride: p.ldc, ColStride: 1}
		}
		productHalf[H](t, pool, i, sums, p.ldc, &f)
	}
}

func productsWideSerial[H half](t *task, _ *workspace, lo, hi int) { productsWide[H](t, nil, lo, hi) }

// loadSums widens rows [lo, hi) of what the output holds.
func loadSums(t *task, ws *workspace, lo, hi int) {
	h, out := &t.half, &t.c.Out[0]
	for i := lo; i < hi; i++ {
		ws.p[0], ws.p[1] = unsafe.Pointer(&h.sums[i*h.n]), at(out, out.Offset+h.offset+i*h.ld)
		h.widen(t.c, &ws.p, h.n)
	}
}

// productsHalfSerial computes products [lo, hi) of half operands on one worker, with sums in its own memory.
func productsHalfSerial[H half](t *task, ws *workspace, lo, hi int) {
	p, out := &t.product, &t.c.Out[0]
	runs, size := p.m, p.n // of the output
	if p.ldc == p.n {
		runs, size = 1, p.m*p.n
	}
	ws.reserve(4 * p.m * p.n)
	sums := carve[float32](ws, p.m*p.n)
	for i := lo; i < hi; i++ {
		f, first := gemm.Fused[float32]{}, out.Offset+p.c.offset(i)
		if p.accumulate {
			for r := range runs {
				ws.p[0], ws.p[1] = unsafe.Pointer(&sums[r*size]), at(out, first+r*p.ldc)
				t.half.widen(t.c, &ws.p, size)
			}
			f = gemm.Fused[float32]{Add: sums, RowStride: p.n, ColStride: 1}
		}
		productHalf[H](t, nil, i, sums, p.n, &f)
		for r := range runs {
			ws.p[0], ws.p[1] = at(out, first+r*p.ldc), unsafe.Pointer(&sums[r*size])
			t.half.down(t.c, &ws.p, size)
		}
	}
}

// productHalf computes the sums of product i of the batch, in rows of ld elements.
func productHalf[H half](t *task, pool *parallel.Pool, i int, sums []float32, ld int, f *gemm.Fused[float32]) {
	p, a, b := &t.product, &t.c.In[0], &t.c.In[1]
	gemm.Widened(pool, p.m, p.n, p.k, gemm.Strided(from[H](a, a.Offset+p.a.offset(i)), p.ars, p.acs),
		gemm.Strided(from[H](b, b.Offset+p.b.offset(i)), p.brs, p.bcs), gemm.InRows(sums, ld), f)
}

// repeats reports whether elements of the view share memory, so that what is rounded to one would be read again as
// another.
func repeats(v *backend.View) bool {
	for k := range v.NDim {
		if v.Stride[k] == 0 && v.Shape[k] > 1 {
			return true
		}
	}
	return false
}
