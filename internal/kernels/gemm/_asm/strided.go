package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// stridedUnroll is the number of products per turn of the main loop of a kernel that reads A with any strides: package gemm's productsPerTurn.
const stridedUnroll = 4

// strideds emits the kernels that read A with any strides, for each number of rows.
func strideds(c *build.Context, f family) {
	for rows := 1; rows <= f.mr; rows++ {
		strided(c, f, rows)
	}
}

// strided emits the kernel that reads A and B where they lie, for tiles side by side or below each other: engine.strided without its first parameter.
func strided(c *build.Context, f family, rows int) {
	name := fmt.Sprintf("strided%sx%d", f.name, rows)
	c.Function(name)
	c.Doc(fmt.Sprintf("%s computes count tiles of %d×%d elements of C = A·B, or C += A·B if add is not 0, over k ≥ 1 products, count ≥ 1.", name, rows, f.vectors*f.lanes),
		"Element (i, p) of A is at a[i·ars + p·acs], row p of B at b[p·brs], row i of C at c[i·crs]. From one tile to the next a, b and c move on by astep, bstep and cstep.",
		fmt.Sprintf("With each %d products it asks for two neighbouring cache lines, the first at next, which moves on by step bytes.", stridedUnroll))
	c.Pragma("noescape")
	c.SignatureExpr(f.signature("func(k int, a *T, ars, acs int, b *T, brs int, c *T, crs, add, count, astep, bstep, cstep int, next, step uintptr)"))
	load := func(name string) reg.GPVirtual {
		r := c.GP64()
		c.Load(c.Param(name), r)
		return r
	}
	inBytes := func(name string) reg.GPVirtual {
		r := load(name)
		f.scale(c, r)
		return r
	}
	p := pointers{a: load("a"), b: load("b"), cc: load("c"), bstride: inBytes("brs")}
	a, acs, next := rowsOf{stride: inBytes("ars"), size: f.size()}, inBytes("acs"), load("next")

	c.Label("tile")
	row := c.GP64()
	c.MOVQ(p.a, row)
	for i := 0; i < rows; i += 3 {
		r := c.GP64()
		c.MOVQ(row, r)
		a.third = append(a.third, r)
		if i+3 < rows {
			c.LEAQ(operand.Mem{Base: row, Index: a.stride, Scale: 2}, row)
			c.ADDQ(a.stride, row)
		}
	}
	sums := startRows(c, f, p, rows, inBytes("crs"), load("add"), inBytes("cstep"))
	inner := pointers{k: load("k"), b: c.GP64(), bstride: p.bstride}
	c.MOVQ(p.b, inner.b)
	stridedLoop(c, f, inner, a, acs, next, sums)
	to := c.GP64()
	c.MOVQ(p.cc, to)
	writeRows(c, f, to, inBytes("crs"), sums)
	c.ADDQ(inBytes("astep"), p.a)
	c.ADDQ(inBytes("bstep"), p.b)
	c.ADDQ(inBytes("cstep"), p.cc)
	c.DECQ(parameter(c, "count"))
	c.JNE(operand.LabelRef("tile"))
	c.VZEROUPPER()
	c.RET()
}

// startRows emits the beginning of the sums: C or zero. It asks for the tile of C that is next.
func startRows(c *build.Context, f family, p pointers, rows int, stride, add, step reg.GPVirtual) [][]reg.VecVirtual {
	from, next := c.GP64(), c.GP64()
	c.MOVQ(p.cc, from)
	c.LEAQ(operand.Mem{Base: p.cc, Index: step, Scale: 1}, next)
	for i := range rows {
		for offset := 0; offset < f.vectors*f.bytes(); offset += 64 {
			c.PREFETCHT0(operand.Mem{Base: next, Disp: offset})
		}
		if i+1 < rows {
			c.ADDQ(stride, next)
		}
	}
	sums := zeros(c, f, rows, f.vectors)
	c.TESTQ(add, add)
	c.JE(operand.LabelRef("products"))
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

// stridedLoop emits the loops over k.
func stridedLoop(c *build.Context, f family, p pointers, a rowsOf, acs, next reg.GPVirtual, sums [][]reg.VecVirtual) {
	step := func() {
		rowsProduct(c, f, p, a, 0, sums)
		for _, r := range a.third {
			c.ADDQ(acs, r)
		}
	}
	c.SUBQ(operand.Imm(stridedUnroll), p.k)
	c.JL(operand.LabelRef("tail"))
	c.Label("loop")
	for i := range stridedUnroll {
		switch i { // apart, as are other loads that miss
		case 0:
			c.PREFETCHT1(operand.Mem{Base: next})
		case stridedUnroll / 2:
			c.PREFETCHT1(operand.Mem{Base: next, Disp: 64})
			c.ADDQ(parameter(c, "step"), next)
		}
		step()
	}
	c.SUBQ(operand.Imm(stridedUnroll), p.k)
	c.JGE(operand.LabelRef("loop"))
	c.Label("tail")
	c.ADDQ(operand.Imm(stridedUnroll), p.k)
	c.JE(operand.LabelRef("store"))
	c.Label("single")
	step()
	c.DECQ(p.k)
	c.JNE(operand.LabelRef("single"))
	c.Label("store")
}

// parameter is where a parameter lies, for what no register is left for.
func parameter(c *build.Context, name string) operand.Mem {
	p, err := c.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return p.Addr
}
