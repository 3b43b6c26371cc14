// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/cuda"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

var productOps = map[backend.Op]row{backend.OpMatMul: {matMul, floats}, backend.OpLinear: {linear, floats}}

// factor is one matrix of a product, for a library that counts columns first: a row-major matrix is its transpose
// there. So C = A·B of row-major matrices is asked for as Cᵀ = Bᵀ·Aᵀ, with the operands in turn.
type factor struct {
	at             cuda.Ptr
	rows, cols, ld int // as the library sees it
	trans          bool
}

func matMul(s *stream, c *backend.Call) {
	a, b, out := &c.In[0], &c.In[1], &c.Out[0]
	nd := out.NDim
	if nd < 2 || a.NDim != nd || b.NDim != nd || a.DType != b.DType || !a.DType.IsFloat() || a.DType != out.DType &&
		!(a.DType.IsHalf() && out.DType == dtype.Float32) {
		s.fault(c, "%s %v times %s %v gives no %s %v", a.DType, a.Shape[:a.NDim], b.DType, b.Shape[:b.NDim], out.DType,
			out.Shape[:nd])
	}
	i, j := nd-2, nd-1
	m, n, k := out.Shape[i], out.Shape[j], a.Shape[j]
	fits := a.Shape[i] == m && b.Shape[i] == k && b.Shape[j] == n
	for d := range i {
		fits = fits && a.Shape[d] == out.Shape[d] && b.Shape[d] == out.Shape[d]
	}
	if !fits {
		s.fault(c, "%v times %v gives no %v", a.Shape[:nd], b.Shape[:nd], out.Shape[:nd])
	}
	if m > 1 && out.Stride[i] < n || n > 1 && out.Stride[j] != 1 {
		s.fault(c, "the output's rows are not contiguous or overlap: shape %v, strides %v", out.Shape[:nd],
			out.Stride[:nd])
	}
	if out.Numel() == 0 {
		return
	}
	accumulate := c.Ints[0] == 1
	if k == 0 {
		if !accumulate {
			each := once(*out, nd)
			s.run(backend.OpFill, 0, &each)
		}
		return
	}
	if out.DType.IsHalf() && repeats(out, i) { // what is added up is float32 until the end
		s.matMulWide(a, b, out, accumulate)
		return
	}
	s.batched(*a, *b, *out, accumulate)
}

// repeats reports whether one matrix is the output of several products.
func repeats(out *backend.View, batch int) bool {
	for d := range batch {
		if out.Shape[d] > 1 && out.Stride[d] == 0 {
			return true
		}
	}
	return false
}

// matMulWide adds several products to one matrix of a half type.
func (s *stream) matMulWide(a, b, out *backend.View, accumulate bool) {
	each := once(*out, out.NDim)
	sums := s.temporary(dtype.Float32, each.Shape[:each.NDim]...)
	if accumulate {
		s.run(backend.OpCopy, 0, &sums, &each)
	}
	s.batched(*a, *b, again(sums, out, out.NDim), accumulate)
	s.run(backend.OpCopy, 0, &each, &sums)
}

// once shows what a view repeats in its first dims once.
func once(v backend.View, dims int) backend.View {
	for d := range dims {
		if v.Stride[d] == 0 {
			v.Shape[d] = min(1, v.Shape[d])
		}
	}
	return v
}

// again repeats what once showed once.
func again(v backend.View, like *backend.View, dims int) backend.View {
	for d := range dims {
		if like.Stride[d] == 0 {
			v.Shape[d], v.Stride[d] = like.Shape[d], 0
		}
	}
	return v
}

// batched queues the products of a batch, in as few calls as its strides allow. Nothing is empty.
func (s *stream) batched(a, b, out backend.View, accumulate bool) {
	a, b = s.readable(a), s.readable(b)
	joinRows(&a, &b, &out)
	nd := out.NDim
	// The last batch dim, with those before it that continue it, is one call's batch; the others are walked.
	inner := nd - 3
	count, strides := 1, [3]int{}
	for ; inner >= 0; inner-- {
		size := out.Shape[inner]
		if size == 1 {
			continue
		}
		have := [3]int{a.Stride[inner], b.Stride[inner], out.Stride[inner]}
		if count == 1 && have[2] == 0 {
			break // one after the other
		}
		if count > 1 && have != [3]int{strides[0] * count, strides[1] * count, strides[2] * count} {
			break
		}
		if count == 1 {
			strides = have
		}
		count *= size
	}
	s.walk(a, b, out, 0, inner+1, func(a, b, out backend.View) {
		s.product(&a, &b, &out, count, strides, accumulate)
	})
}

// walk calls f for each element of the dims from d to end, with views that begin there.
func (s *stream) walk(a, b, out backend.View, d, end int, f func(a, b, out backend.View)) {
	if d == end {
		f(a, b, out)
		return
	}
	for range out.Shape[d] {
		s.walk(a, b, out, d+1, end, f)
		a.Offset, b.Offset, out.Offset = a.Offset+a.Stride[d], b.Offset+b.Stride[d], out.Offset+out.Stride[d]
	}
}

// joinRows makes one product of those that share the right-hand matrix and have neighbouring rows.
func joinRows(a, b, out *backend.View) {
	i := out.NDim - 2
	if a.Shape[i] == 1 { // it has no stride of rows yet
		for k := i - 1; k >= 0; k-- {
			if out.Shape[k] != 1 {
				a.Stride[i] = a.Stride[k]
				break
			}
		}
	}
	if out.Shape[i] == 1 {
		out.Stride[i] = out.Shape[i+1]
	}
	for k := i - 1; k >= 0; k-- {
		size := out.Shape[k]
		if size == 1 {
			continue
		}
		rows := out.Shape[i]
		if b.Stride[k] != 0 || out.Stride[k] != rows*out.Stride[i] || a.Stride[k] != rows*a.Stride[i] ||
			!byRows(rows*size, a.Shape[i+1], a.Stride[i], a.Stride[i+1]) &&
				!byRows(a.Shape[i+1], rows*size, a.Stride[i+1], a.Stride[i]) {
			break
		}
		out.Shape[i] *= size
		a.Shape[i] = out.Shape[i]
		out.Shape[k], a.Shape[k], b.Shape[k] = 1, 1, 1
	}
}

// readable is the view, or a contiguous copy of it where its last two dims are not laid out as the library reads them:
// one of them without gaps, and nothing repeated.
func (s *stream) readable(v backend.View) backend.View {
	i, j := v.NDim-2, v.NDim-1
	rows, cols, rs, cs := v.Shape[i], v.Shape[j], v.Stride[i], v.Stride[j]
	if byRows(rows, cols, rs, cs) || byRows(cols, rows, cs, rs) {
		return v
	}
	each := once(v, i) // what the batch repeats is copied once
	t := s.temporary(v.DType, each.Shape[:each.NDim]...)
	s.run(backend.OpCopy, 0, &t, &each)
	return again(t, &v, i)
}

// byRows reports whether rows lie without gaps and do not overlap.
func byRows(rows, cols, rs, cs int) bool { return (cols == 1 || cs == 1) && (rows == 1 || rs >= cols) }

// factorOf describes the last two dims of a readable view.
func (s *stream) factorOf(v *backend.View) factor {
	i, j := v.NDim-2, v.NDim-1
	rows, cols, rs, cs := v.Shape[i], v.Shape[j], v.Stride[i], v.Stride[j]
	if byRows(rows, cols, rs, cs) {
		ld := cols
		if rows > 1 {
			ld = rs
		}
		return factor{at: s.addr(v), rows: cols, cols: rows, ld: ld}
	}
	ld := rows
	if cols > 1 {
		ld = cs
	}
	return factor{at: s.addr(v), rows: rows, cols: cols, ld: ld, trans: true}
}

func (f factor) matrix(dt dtype.DType, count, stride int) cuda.Matrix {
	if count == 1 {
		stride = 0
	}
	return cuda.Matrix{Type: dataTypes[dt], Rows: f.rows, Cols: f.cols, LD: f.ld, Batch: count, Stride: stride}
}

// product queues count products whose matrices lie strides apart.
func (s *stream) product(a, b, out *backend.View, count int, strides [3]int, accumulate bool) {
	p, o := s.describe(a, b, out, count, strides)
	if accumulate {
		p.Beta = 1
	}
	s.multiply(p, o)
}

// describe is a product without an epilogue.
func (s *stream) describe(a, b, out *backend.View, count int, strides [3]int) (cuda.Product, cuda.Operands) {
	left, right := s.factorOf(b), s.factorOf(a)
	i, n := out.NDim-2, out.Shape[out.NDim-1]
	d := cuda.Matrix{Type: dataTypes[out.DType], Rows: n, Cols: out.Shape[i], LD: n, Batch: count}
	if d.Cols > 1 {
		d.LD = out.Stride[i]
	}
	if count > 1 {
		d.Stride = strides[2]
	}
	at := s.addr(out)
	return cuda.Product{Compute: s.d.compute(a.DType), TransA: left.trans, TransB: right.trans,
			A: left.matrix(a.DType, count, strides[1]), B: right.matrix(a.DType, count, strides[0]), C: d, D: d,
			Alpha: 1, Epilogue: cuda.EpilogueNone},
		cuda.Operands{A: left.at, B: right.at, C: at, D: at}
}

// linear is a product with a bias and an elementwise op after it. The library does what it can while it has the numbers
// at hand: the bias except for float64, ReLU, and for half types GELU by tanh.
func linear(s *stream, c *backend.Call) {
	s.checkLinear(c)
	x, w, out := c.In[0], c.In[1], &c.Out[0]
	op := backend.Op(c.Ints[0])
	n := out.Shape[1]
	if out.Numel() == 0 {
		return
	}
	if x.Shape[1] == 0 || x.DType == dtype.Float64 {
		s.linearByParts(c)
		return
	}
	x, w = s.readable(x), s.readable(w)
	sums := &c.Out[c.NOut-1] // what the op is applied to, if anybody needs to know
	fused, aux := op == backend.OpInvalid, false
	switch op {
	case backend.OpReLU:
		fused = c.NOut == 1
	case backend.OpGELUTanh:
		fused = x.DType.IsHalf() && (c.NOut == 1 || n%8 == 0 && s.addr(sums)%16 == 0)
		aux = fused && c.NOut > 1
	}
	to := sums
	if fused {
		to = out
	}
	p, o := s.describe(&x, &w, to, 1, [3]int{})
	if c.NIn > 2 {
		bias := c.In[2]
		if n > 1 && bias.Stride[0] != 1 {
			t := s.temporary(bias.DType, n)
			s.run(backend.OpCopy, 0, &t, &bias)
			bias = t
		}
		p.BiasType, o.Bias = p.D.Type, s.addr(&bias)
	}
	p.Epilogue = epilogue(op, fused, c.NIn > 2, aux)
	if aux {
		p.AuxLD, o.Aux = n, s.addr(sums)
	}
	s.multiply(p, o)
	if !fused {
		s.run(op, 0, out, sums)
	}
}

// epilogue is the library's name of what it does after a product.
func epilogue(op backend.Op, fused, biased, aux bool) cuda.Epilogue {
	e := cuda.EpilogueNone
	switch {
	case fused && op == backend.OpReLU:
		e = cuda.EpilogueReLU
	case aux:
		e = cuda.EpilogueGELUAux
	case fused && op == backend.OpGELUTanh:
		e = cuda.EpilogueGELU
	}
	if !biased {
		return e
	}
	if e == cuda.EpilogueNone {
		return cuda.EpilogueBias
	}
	return e | cuda.EpilogueBias
}

// linearByParts copies the bias, adds the product to it, and applies the op.
func (s *stream) linearByParts(c *backend.Call) {
	out, sums := &c.Out[0], &c.Out[c.NOut-1]
	if c.NIn > 2 {
		bias := c.In[2]
		bias.NDim, bias.Shape, bias.Stride[1] = 2, out.Shape, bias.Stride[0]
		bias.Stride[0] = 0
		s.run(backend.OpCopy, 0, sums, &bias)
	}
	if c.In[0].Shape[1] > 0 {
		s.batched(c.In[0], c.In[1], *sums, c.NIn > 2)
	} else if c.NIn == 2 {
		s.run(backend.OpFill, 0, sums)
	}
	if op := backend.Op(c.Ints[0]); op != backend.OpInvalid {
		s.run(op, 0, out, sums)
	}
}

// checkLinear faults unless the operands fit.
func (s *stream) checkLinear(c *backend.Call) {
	x, w, out := &c.In[0], &c.In[1], &c.Out[0]
	fits := x.NDim == 2 && w.NDim == 2 && out.NDim == 2 && x.Shape[1] == w.Shape[0] && out.Shape[0] == x.Shape[0] &&
		out.Shape[1] == w.Shape[1] && x.DType == out.DType && w.DType == out.DType && out.DType.IsFloat()
	if c.NIn > 2 {
		fits = fits && c.In[2].NDim == 1 && c.In[2].Shape[0] == out.Shape[1] && c.In[2].DType == out.DType
	}
	for i := range c.NOut {
		o := &c.Out[i]
		fits = fits && backend.SameShape(o, out) && o.DType == out.DType && o.Contiguous()
	}
	if !fits {
		s.fault(c, "%s %v times %s %v, with a bias of [N] if any, gives no contiguous %s %v", x.DType, x.Shape[:x.NDim],
			w.DType, w.Shape[:w.NDim], out.DType, out.Shape[:out.NDim])
	}
	switch op := backend.Op(c.Ints[0]); op {
	case backend.OpInvalid:
		if c.NOut == 1 {
			return
		}
	case backend.OpReLU, backend.OpGELU, backend.OpGELUTanh, backend.OpSiLU:
		return
	}
	s.fault(c, "cannot apply op %d to give %d outputs", c.Ints[0], c.NOut)
}
