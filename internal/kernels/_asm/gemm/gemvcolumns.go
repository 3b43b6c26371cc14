// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gemvDepth is the number of products of a kernel for one row and columns of B: kc of package gemm.
const gemvDepth = 256

// gemvNear is how many bytes ahead in each column a GEMV kernel prefetches, beside the runs that its caller names.
const gemvNear = 128

const walkSignature = "func(a0, b0, c0, d0, a1, b1, c1, d1 *float32, bstride int, next *float32, nstride int)"

// gemvColumns emits the kernel for one row and a B whose columns are contiguous that computes two vectors of C from
// wherever they are, and prefetches what comes later in long runs.
func gemvColumns(c *build.Context, f family) {
	name := fmt.Sprintf("gemvColumns%s", f.name)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes %d elements of each of two rows, c0 = d0 + a0·B0 and c1 = d1 + a1·B1, over %d "+
			"products. Column j of B0 is at b0[j·bstride], of B1 at b1[j·bstride].", name, f.lanes, gemvDepth),
		fmt.Sprintf("c0 is written before d1 is read. It prefetches %d runs of %d bytes, the first of which is at "+
			"next, and each nstride after the one before.", gemvDepth/f.lanes, 2*f.lanes*f.bytes()))
	c.Pragma("noescape")
	c.SignatureExpr(walkSignature)
	w := newWalk(c, f, 1)
	nstride := c.GP64()
	c.Load(c.Param("nstride"), nstride)
	f.scale(c, nstride)
	w.emit(c, func() { c.ADDQ(nstride, w.next) })
	for v, sum := range w.sums {
		d, to := w.result(c, v)
		f.add(c, operand.Mem{Base: d}, sum, sum)
		c.VMOVUPS(sum, operand.Mem{Base: to})
	}
	c.VZEROUPPER()
	c.RET()
}

// gemvColumnsCrowded emits the kernel for columns that crowd a cache: half as many, and in place of the others the same
// ones a block of products further down.
func gemvColumnsCrowded(c *build.Context, f family) {
	name := fmt.Sprintf("gemvColumnsCrowded%s", f.name)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes %d elements of each of two rows, c0 = d0 + a0·B0 and c1 = d1 + a1·B1, over two "+
			"blocks of %d products, of which elements of a0 and a1 alternate.", name, f.lanes/2, gemvDepth),
		"Column j of B0 is at b0[j·bstride], of B1 at b1[j·bstride]. c0 is written before d1 is read.",
		fmt.Sprintf("It prefetches %d runs of %d bytes: one at next, one behind it, and the same nstride further on.",
			gemvDepth/f.lanes, 2*f.lanes*f.bytes()))
	c.Pragma("noescape")
	c.SignatureExpr(walkSignature)
	w := newWalk(c, f, 2)
	step, back := c.GP64(), c.GP64()
	c.Load(c.Param("nstride"), back)
	f.scale(c, back)
	c.MOVQ(operand.U32(uint32(2*f.lanes*f.bytes())), step)
	c.SUBQ(step, back)
	w.emit(c, func() {
		c.ADDQ(step, w.next)
		c.XCHGQ(step, back)
	})
	for v, sum := range w.sums {
		d, to := w.result(c, v)
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

// gemvKernel is what a GEMV kernel has: two vectors' columns, each of so many blocks of products, their sums, and half
// a square of each, transposed.
type gemvKernel struct {
	f      family
	blocks int
	a      [2]reg.GPVirtual
	from   [2]*columns
	sums   []reg.VecVirtual
	halves [2][]reg.VecVirtual
	next   reg.GPVirtual
}

func newWalk(c *build.Context, f family, blocks int) *gemvKernel {
	w := &gemvKernel{f: f, blocks: blocks, next: c.GP64()}
	stride := c.GP64()
	c.Load(c.Param("bstride"), stride)
	c.Load(c.Param("next"), w.next)
	f.scale(c, stride)
	m := newMultiples(c, stride)
	for v := range w.from {
		b := c.GP64()
		w.a[v] = c.GP64()
		c.Load(c.Param(fmt.Sprintf("a%d", v)), w.a[v])
		c.Load(c.Param(fmt.Sprintf("b%d", v)), b)
		if w.from[v] = m.columns(c, f, b, 1); blocks > 1 {
			w.from[v] = &columns{multiples: m, f: f, base: []reg.GPVirtual{b}}
		}
		for range f.lanes / 2 {
			w.halves[v] = append(w.halves[v], f.register(c))
		}
	}
	w.sums = zeros(c, f, 1, len(w.from))[0]
	return w
}

// emit emits the loop; advance goes on to the next run. While one half of the squares is summed, the next one is
// transposed: a core that shares its units with another looks too few instructions ahead to do that by itself.
func (w *gemvKernel) emit(c *build.Context, advance func()) {
	first, second := 0, w.f.bytes()/2
	k := c.GP64()
	c.MOVQ(operand.U32(uint32(gemvDepth/w.f.lanes)), k)
	for v := range w.from {
		w.transpose(c, v, first, w.requests(c, v))
	}
	c.Label("loop")
	for v := range w.from {
		w.transpose(c, v, second, w.products(c, v, first), w.requests(c, len(w.from)+v), w.nearRequests(c, v, first))
	}
	advance()
	c.DECQ(k)
	c.JEQ(operand.LabelRef("last"))
	for v, from := range w.from {
		from.advance(c)
		w.transpose(c, v, first, w.products(c, v, second), w.requests(c, v), w.nearRequests(c, v, second))
		c.ADDQ(operand.U32(uint32(w.blocks*w.f.bytes())), w.a[v])
	}
	c.JMP(operand.LabelRef("loop"))
	c.Label("last")
	for v := range w.from {
		for _, product := range w.products(c, v, second) {
			product()
		}
	}
}

// result returns where vector v of C is, and what is added to it.
func (w *gemvKernel) result(c *build.Context, v int) (d, to reg.GPVirtual) {
	d, to = c.GP64(), c.GP64()
	c.Load(c.Param(fmt.Sprintf("d%d", v)), d)
	c.Load(c.Param(fmt.Sprintf("c%d", v)), to)
	return d, to
}

// spread emits the first list, and the others evenly among it.
func spread(main []func(), others ...[]func()) {
	for i, emit := range main {
		emit()
		for _, other := range others {
			for _, more := range other[len(other)*i/len(main) : len(other)*(i+1)/len(main)] {
				more()
			}
		}
	}
}

// at returns the address of a row of vector v's squares.
func (w *gemvKernel) at(v, row, disp int) operand.Mem {
	m := w.from[v].at(row / w.blocks)
	m.Disp = disp + row%w.blocks*gemvDepth*w.f.size()
	return m
}

// requests lists those for a quarter of a run.
func (w *gemvKernel) requests(c *build.Context, quarter int) (list []func()) {
	lines := w.f.lanes / 2
	for i := range lines {
		list = append(list, func() { c.PREFETCHT1(operand.Mem{Base: w.next, Disp: (quarter*lines + i) * 64}) })
	}
	return list
}

// nearRequests lists those for half the rows of vector v's next squares.
func (w *gemvKernel) nearRequests(c *build.Context, v, half int) (list []func()) {
	for i := range w.f.lanes / 2 {
		row := i + half/w.f.size()
		list = append(list, func() { c.PREFETCHT0(w.at(v, row, gemvNear)) })
	}
	return list
}

// products lists those of the transposed half of vector v's square, whose elements of A are disp bytes behind the
// square's first.
func (w *gemvKernel) products(c *build.Context, v, disp int) (list []func()) {
	for n, x := range w.halves[v] {
		a := operand.Mem{Base: w.a[v], Disp: w.blocks * (disp + w.f.size()*n)}
		list = append(list, func() {
			if w.blocks == 1 {
				w.f.multiplyAdd(c, a, x, w.sums[v])
				return
			}
			y := w.f.register(c)
			c.VBROADCASTSD(a, y)
			c.VFMADD231PS(y, x, w.sums[v])
		})
	}
	return list
}

// transpose emits the reading of half of vector v's square, eight elements of each of 16 rows, as eight vectors, and
// others by the way: the products of the half that was there before are among them.
func (w *gemvKernel) transpose(c *build.Context, v, disp int, others ...[]func()) {
	fresh := func() reg.VecVirtual { return w.f.register(c) }
	var list []func()
	x := make([]reg.VecVirtual, 8)
	for first := 0; first < len(x); first += 4 {
		for i := first; i < first+4; i++ { // rows 0 and 4 to 3 and 7, 8 and 12 to 11 and 15
			low, row := c.YMM(), i%4+i/4*8
			both := fresh()
			x[i] = both
			list = append(list,
				func() { c.VMOVUPS(w.at(v, row, disp), low) },
				func() { c.VINSERTF64X4(operand.Imm(1), w.at(v, row+4, disp), low.AsZ(), both) })
		}
		from, low01, high01, low23, high23 := [4]reg.VecVirtual(x[first:]), fresh(), fresh(), fresh(), fresh()
		to := [4]reg.VecVirtual{fresh(), fresh(), fresh(), fresh()}
		copy(x[first:], to[:])
		list = append(list, // 4×4 within each 128 bit
			func() { c.VUNPCKLPS(from[1], from[0], low01) },
			func() { c.VUNPCKHPS(from[1], from[0], high01) },
			func() { c.VUNPCKLPS(from[3], from[2], low23) },
			func() { c.VUNPCKHPS(from[3], from[2], high23) },
			func() { c.VUNPCKLPD(low23, low01, to[0]) },
			func() { c.VUNPCKHPD(low23, low01, to[1]) },
			func() { c.VUNPCKLPD(high23, high01, to[2]) },
			func() { c.VUNPCKHPD(high23, high01, to[3]) })
	}
	spread(list, others...)
	for j := range 4 { // then the 128 bits themselves
		c.VSHUFF32X4(operand.Imm(0x88), x[4+j], x[j], w.halves[v][j])
		c.VSHUFF32X4(operand.Imm(0xdd), x[4+j], x[j], w.halves[v][4+j])
	}
}
