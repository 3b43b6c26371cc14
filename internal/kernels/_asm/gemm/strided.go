// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// stridedUnroll is the number of products per turn of the main loop of a kernel that reads A with any strides: package
// gemm's productsPerTurn.
const stridedUnroll = 4

// strideds emits the kernels that read A with any strides, for the numbers of rows of which package gemm's byRows puts
// the others together.
func strideds(c *build.Context, f family) {
	for _, rows := range []int{1, 2, 4, 8, f.mr} {
		if rows <= f.mr {
			strided(c, f, rows)
		}
	}
	if f.broadcasts() {
		broad(c, f)
	}
}

// strided emits the kernel that reads A and B where they lie, for tiles side by side or below each other:
// engine.strided without its first parameter.
func strided(c *build.Context, f family, rows int) {
	name := fmt.Sprintf("strided%sx%d", f.name, rows)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes count tiles of %d×%d elements of C = A·B, or C += A·B if add is not 0, over k ≥ 1 "+
			"products, count ≥ 1.", name, rows, f.vectors*f.lanes),
		"Element (i, p) of A is at a[i·ars + p·acs], row p of B at b[p·brs], row i of C at c[i·crs]. From one tile "+
			"to the next a, b and c move on by astep, bstep and cstep.",
		fmt.Sprintf("With each %d products it prefetches two neighbouring cache lines, the first at next, which moves "+
			"on by step bytes.", stridedUnroll))
	c.Pragma("noescape")
	c.SignatureExpr(
		f.signature("func(k int, a *T, ars, acs int, b *T, brs int, c *T, crs, add, count, astep, bstep, cstep int, " +
			"next, step uintptr)"))
	load, inBytes := loaders(c, f)
	p := pointers{a: load("a"), b: load("b"), cc: load("c"), bstride: inBytes("brs")}
	a, acs, next := rowsOf{stride: inBytes("ars"), size: f.size()}, inBytes("acs"), load("next")

	c.Label("tile")
	first := c.GP64()
	c.MOVQ(p.a, first)
	a.start(c, first, rows)
	if !f.broadcasts() {
		nextTile(c, f, p, rows, inBytes("crs"), inBytes("cstep"))
	}
	sums := startRows(c, f, p, rows, inBytes("crs"), load("add"))
	inner := pointers{k: load("k"), b: c.GP64(), bstride: p.bstride}
	c.MOVQ(p.b, inner.b)
	s := stridedProducts{Context: c, family: f, pointers: inner, a: a, acs: acs, next: next, sums: sums}
	if f.broadcasts() {
		c.SUBQ(operand.Imm(stridedUnroll), inner.k)
		c.JL(operand.LabelRef("few"))
		s.loop()
		s.lastTurn(p.cc, inBytes("crs"), inBytes("cstep"))
		c.JMP(operand.LabelRef("end"))
		c.Label("few")
		c.ADDQ(operand.Imm(stridedUnroll), inner.k)
		s.each("fewProducts")
	} else {
		s.loop()
	}
	to := c.GP64()
	c.MOVQ(p.cc, to)
	writeRows(c, f, to, inBytes("crs"), sums)
	c.Label("end")
	c.ADDQ(inBytes("astep"), p.a)
	c.ADDQ(inBytes("bstep"), p.b)
	c.ADDQ(inBytes("cstep"), p.cc)
	c.DECQ(parameter(c, "count"))
	c.JNE(operand.LabelRef("tile"))
	c.VZEROUPPER()
	c.RET()
}

// loaders are what emits the reading of a parameter, and of one that counts elements.
func loaders(c *build.Context, f family) (load, inBytes func(name string) reg.GPVirtual) {
	load = func(name string) reg.GPVirtual {
		r := c.GP64()
		c.Load(c.Param(name), r)
		return r
	}
	inBytes = func(name string) reg.GPVirtual {
		r := load(name)
		f.scale(c, r)
		return r
	}
	return load, inBytes
}

// startRows emits the beginning of the sums: C or zero.
func startRows(c *build.Context, f family, p pointers, rows int, stride, add reg.GPVirtual) [][]reg.VecVirtual {
	sums := zeros(c, f, rows, f.vectors)
	c.TESTQ(add, add)
	c.JE(operand.LabelRef("products"))
	from := c.GP64()
	c.MOVQ(p.cc, from)
	for i, sum := range sums {
		for v, x := range sum {
			c.VMOVUPS(operand.Mem{Base: from, Disp: v * f.bytes()}, x)
		}
		if i+1 < rows {
			c.ADDQ(stride, from)
		}
	}
	c.Label("products")
	return sums
}

// nextTile emits the request for the tile of C that is next.
func nextTile(c *build.Context, f family, p pointers, rows int, stride, step reg.GPVirtual) {
	next := c.GP64()
	c.LEAQ(operand.Mem{Base: p.cc, Index: step, Scale: 1}, next)
	for i := range rows {
		requestRow(c, f, next)
		if i+1 < rows {
			c.ADDQ(stride, next)
		}
	}
}

// requestRow emits the request for a row of a tile.
func requestRow(c *build.Context, f family, at reg.GPVirtual) {
	for offset := 0; offset < f.vectors*f.bytes(); offset += 64 {
		c.PREFETCHT0(operand.Mem{Base: at, Disp: offset})
	}
}

// stridedProducts are the products of a tile.
type stridedProducts struct {
	*build.Context
	family
	pointers
	a         rowsOf
	acs, next reg.GPVirtual
	second    reg.GPVirtual // bytes to a second panel of B with half of the vectors; nil: there is one panel
	sums      [][]reg.VecVirtual
}

// loop emits the loops over k, of which nothing is left.
func (s stridedProducts) loop() {
	s.SUBQ(operand.Imm(stridedUnroll), s.k)
	s.JL(operand.LabelRef("tail"))
	s.Label("loop")
	for i := range stridedUnroll {
		s.prefetch(i)
		s.product()
	}
	s.SUBQ(operand.Imm(stridedUnroll), s.k)
	s.JGE(operand.LabelRef("loop"))
	s.Label("tail")
	s.ADDQ(operand.Imm(stridedUnroll), s.k)
	s.JE(operand.LabelRef("last"))
	s.each("single")
	s.Label("last")
}

// each emits the loop over the last k ≥ 1.
func (s stridedProducts) each(label string) {
	s.Label(label)
	s.product()
	s.DECQ(s.k)
	s.JNE(operand.LabelRef(label))
}

func (s stridedProducts) product() {
	rowsProduct(s.Context, s.family, s.pointers, s.a, 0, s.sums, s.second)
	for _, r := range s.a.third {
		s.ADDQ(s.acs, r)
	}
}

// prefetch emits what a turn's product prefetches: half of it, apart from the other, as are other loads that miss.
func (s stridedProducts) prefetch(product int) {
	switch product {
	case 0:
		s.PREFETCHT1(operand.Mem{Base: s.next})
	case stridedUnroll / 2:
		s.PREFETCHT1(operand.Mem{Base: s.next, Disp: 64})
		s.ADDQ(parameter(s.Context, "step"), s.next)
	}
}

// lastTurn emits the last products three rows at a time, which are written while the next ones are computed: a
// processor holds few writes that wait, and all at once would keep the next tile from beginning. Meanwhile it
// prefetches that tile's rows.
func (s stridedProducts) lastTurn(to, stride, step reg.GPVirtual) {
	row, next := s.GP64(), s.GP64()
	s.MOVQ(to, row)
	var b [stridedUnroll][]reg.VecVirtual
	for p := range b {
		s.prefetch(p)
		for v := range s.vectors {
			x := s.register(s.Context)
			s.VMOVUPS(operand.Mem{Base: s.b, Disp: v * s.bytes()}, x)
			b[p] = append(b[p], x)
		}
		s.ADDQ(s.bstride, s.b)
	}
	s.LEAQ(operand.Mem{Base: to, Index: step, Scale: 1}, next)
	for first := 0; first < len(s.sums); first += 3 {
		rows := s.sums[first:min(first+3, len(s.sums))]
		for range rows {
			requestRow(s.Context, s.family, next)
			s.ADDQ(stride, next)
		}
		for p := range b {
			for i, sum := range rows {
				for v, x := range sum {
					s.fmaBroadcast(s.Context, s.a.at(first+i, 0), b[p][v], x)
				}
			}
			s.ADDQ(s.acs, s.a.third[first/3])
		}
		writeRows(s.Context, s.family, row, stride, rows)
	}
}

// parameter is where a parameter lies, for what no register is left for.
func parameter(c *build.Context, name string) operand.Mem {
	p, err := c.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return p.Addr
}
