package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// walkNear is how many bytes ahead in each column a walk kernel asks for memory, beside what it asks for by the way.
const walkNear = 64

// walk emits the kernel for one row and a B whose columns are contiguous that computes two vectors of C from wherever they are, and asks for what comes later in long
// runs.
func walk(c *build.Context, f family) {
	name := fmt.Sprintf("walk%s", f.name)
	c.Function(name)
	c.Doc(fmt.Sprintf("%s computes %d elements of each of two rows, c0 = d0 + a0·B0 and c1 = d1 + a1·B1, over %d products. Column j of B0 is at b0[j·bstride], of B1 at b1[j·bstride].", name, f.lanes, twinDepth),
		fmt.Sprintf("c0 is written before d1 is read. It asks for %d runs of %d bytes, the first of which is at next, and each nstride after the one before.", twinDepth/f.lanes, 2*f.lanes*f.bytes()))
	c.Pragma("noescape")
	c.SignatureExpr("func(a0, b0, c0, d0, a1, b1, c1, d1 *float32, bstride int, next *float32, nstride int)")
	stride, k, next, nstride := c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("bstride"), stride)
	c.Load(c.Param("next"), next)
	c.Load(c.Param("nstride"), nstride)
	f.scale(c, stride)
	f.scale(c, nstride)
	m := newMultiples(c, stride)
	w := &twoColumns{f: f, next: next}
	for v := range w.from {
		b := c.GP64()
		w.a[v] = c.GP64()
		c.Load(c.Param(fmt.Sprintf("a%d", v)), w.a[v])
		c.Load(c.Param(fmt.Sprintf("b%d", v)), b)
		w.from[v] = m.columns(c, f, b, 1)
	}
	w.sums = zeros(c, f, 1, len(w.from))[0]
	c.MOVQ(operand.U32(uint32(twinDepth/f.lanes)), k)
	c.Label("loop")
	w.asked = 0
	w.halves(c)
	for v, from := range w.from {
		from.advance(c)
		c.ADDQ(operand.Imm(uint64(f.bytes())), w.a[v])
	}
	c.ADDQ(nstride, next)
	c.DECQ(k)
	c.JNE(operand.LabelRef("loop"))
	for v, sum := range w.sums {
		d, to := c.GP64(), c.GP64()
		c.Load(c.Param(fmt.Sprintf("d%d", v)), d)
		c.Load(c.Param(fmt.Sprintf("c%d", v)), to)
		f.add(c, operand.Mem{Base: d}, sum, sum)
		c.VMOVUPS(sum, operand.Mem{Base: to})
	}
	c.VZEROUPPER()
	c.RET()
}

// walkCrowded emits the walk kernel for columns that crowd a cache: half as many, and in place of the others the same ones a block of products further down. It reads
// each line at once: none would stay until it is read again.
func walkCrowded(c *build.Context, f family) {
	name := fmt.Sprintf("walkCrowded%s", f.name)
	c.Function(name)
	c.Doc(fmt.Sprintf("%s computes %d elements of each of two rows, c0 = d0 + a0·B0 and c1 = d1 + a1·B1, over two blocks of %d products, of which elements of a0 and a1 alternate.", name, f.lanes/2, twinDepth),
		"Column j of B0 is at b0[j·bstride], of B1 at b1[j·bstride]. c0 is written before d1 is read.",
		fmt.Sprintf("It asks for %d runs of %d bytes: one at next and one behind it, and the same nstride further on.", twinDepth/f.lanes, 2*f.lanes*f.bytes()))
	c.Pragma("noescape")
	c.SignatureExpr("func(a0, b0, c0, d0, a1, b1, c1, d1 *float32, bstride int, next *float32, nstride int)")
	stride, k, next, step, back := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("bstride"), stride)
	c.Load(c.Param("next"), next)
	c.Load(c.Param("nstride"), back)
	f.scale(c, stride)
	f.scale(c, back)
	c.MOVQ(operand.U32(uint32(2*f.lanes*f.bytes())), step)
	c.SUBQ(step, back)
	m := newMultiples(c, stride)
	var a [2]reg.GPVirtual
	var from [2]*columns
	for v := range from {
		b := c.GP64()
		a[v] = c.GP64()
		c.Load(c.Param(fmt.Sprintf("a%d", v)), a[v])
		c.Load(c.Param(fmt.Sprintf("b%d", v)), b)
		from[v] = &columns{multiples: m, f: f, base: []reg.GPVirtual{b}}
	}
	sums := zeros(c, f, 1, len(from))[0]
	c.MOVQ(operand.U32(uint32(twinDepth/f.lanes)), k)
	c.Label("loop")
	for v, w := range from {
		square := make([]reg.VecVirtual, f.lanes)
		for i := range square {
			square[i] = f.register(c)
			at := w.at(i / 2)
			at.Disp = i % 2 * f.size() * twinDepth
			c.VMOVUPS(at, square[i])
			c.PREFETCHT1(operand.Mem{Base: next, Disp: (v*f.lanes + i) * 64})
		}
		for n, x := range transposed(c, f, square) {
			y := f.register(c)
			c.VBROADCASTSD(operand.Mem{Base: a[v], Disp: 2 * f.size() * n}, y)
			c.VFMADD231PS(y, x, sums[v])
		}
	}
	for v, w := range from {
		w.advance(c)
		c.ADDQ(operand.U32(uint32(2*f.bytes())), a[v])
	}
	c.ADDQ(step, next)
	c.XCHGQ(step, back)
	c.DECQ(k)
	c.JNE(operand.LabelRef("loop"))
	for v, sum := range sums {
		d, to := c.GP64(), c.GP64()
		c.Load(c.Param(fmt.Sprintf("d%d", v)), d)
		c.Load(c.Param(fmt.Sprintf("c%d", v)), to)
		first, second := c.YMM(), c.YMM()
		c.VPMOVQD(sum, first)
		c.VPSRLQ(operand.Imm(32), sum, sum)
		c.VPMOVQD(sum, second)
		c.VADDPS(operand.Mem{Base: d}, first, first)
		c.VADDPS(second, first, first)
		c.VMOVUPS(first, operand.Mem{Base: to})
	}
	c.VZEROUPPER()
	c.RET()
}

// twoColumns is what a walk kernel has for its two vectors.
type twoColumns struct {
	f     family
	a     [2]reg.GPVirtual
	from  [2]*columns
	sums  []reg.VecVirtual
	next  reg.GPVirtual
	asked int // lines of the run
}

// ask emits the request for the next line of the run.
func (w *twoColumns) ask(c *build.Context) {
	c.PREFETCHT1(operand.Mem{Base: w.next, Disp: w.asked * 64})
	w.asked++
}

// halves emits a square of each vector's columns, in two halves, of which the registers hold those of both vectors: so that their sums go side by side.
func (w *twoColumns) halves(c *build.Context) {
	for half := range 2 {
		var rows [2][]reg.VecVirtual
		for v, from := range w.from {
			rows[v] = w.half(c, from, half)
		}
		for n := range rows[0] {
			for v, x := range rows {
				w.f.multiplyAdd(c, operand.Mem{Base: w.a[v], Disp: w.f.size() * (n + half*len(x))}, x[n], w.sums[v])
			}
		}
	}
}

// half emits the reading of half a square, eight elements of each of 16 columns, as eight rows.
func (w *twoColumns) half(c *build.Context, from *columns, half int) []reg.VecVirtual {
	fresh := func() reg.VecVirtual { return w.f.register(c) }
	at := func(i int) operand.Mem {
		column := from.at(i)
		column.Disp = half * w.f.bytes() / 2
		return column
	}
	near := func(i int) {
		if half > 0 {
			return
		}
		column := from.at(i)
		column.Disp = walkNear
		c.PREFETCHT0(column)
	}
	x := make([]reg.VecVirtual, 8)
	for i := range x { // columns 0 and 4 to 3 and 7, 8 and 12 to 11 and 15
		low, column := c.YMM(), i%4+i/4*8
		x[i] = fresh()
		c.VMOVUPS(at(column), low)
		c.VINSERTF64X4(operand.Imm(1), at(column+4), low.AsZ(), x[i])
		near(column)
		near(column + 4)
	}
	for i := 0; i < len(x); i += 4 { // 4×4 within each 128 bit
		low01, high01, low23, high23 := fresh(), fresh(), fresh(), fresh()
		c.VUNPCKLPS(x[i+1], x[i], low01)
		c.VUNPCKHPS(x[i+1], x[i], high01)
		w.ask(c)
		c.VUNPCKLPS(x[i+3], x[i+2], low23)
		c.VUNPCKHPS(x[i+3], x[i+2], high23)
		w.ask(c)
		for j := range 4 {
			x[i+j] = fresh()
		}
		c.VUNPCKLPD(low23, low01, x[i])
		c.VUNPCKHPD(low23, low01, x[i+1])
		w.ask(c)
		c.VUNPCKLPD(high23, high01, x[i+2])
		c.VUNPCKHPD(high23, high01, x[i+3])
		w.ask(c)
	}
	y := make([]reg.VecVirtual, len(x))
	for j := range 4 { // then the 128 bits themselves
		y[j], y[4+j] = fresh(), fresh()
		c.VSHUFF32X4(operand.Imm(0x88), x[4+j], x[j], y[j])
		c.VSHUFF32X4(operand.Imm(0xdd), x[4+j], x[j], y[4+j])
	}
	return y
}
