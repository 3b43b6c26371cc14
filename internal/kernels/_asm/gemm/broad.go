// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
)

// broad emits the kernel for half as many rows and two panels of B: engine.broad. It has as many sums as the one for
// whole tiles, but reads 6 elements of A and 4 vectors of B for 24 multiply-adds, where that reads 12 and 2.
func broad(c *build.Context, f family) {
	rows, panels := f.mr/2, 2
	name := fmt.Sprintf("broad%sx%d", f.name, rows)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes count tiles of %d×%d elements of C = A·B, or C += A·B if add is not 0, over k ≥ 1 "+
			"products, count ≥ 1.", name, rows, panels*f.vectors*f.lanes),
		"Element (i, p) of A is at a[i·ars + p·acs], row p of B at b[p·brs] and, its second half, at b[bps + p·brs], "+
			"row i of C at c[i·crs]. From one tile to the next a and c move on by astep and cstep.",
		fmt.Sprintf("With each %d products it prefetches two neighbouring cache lines, the first at next, which moves "+
			"on by step bytes.", stridedUnroll))
	c.Pragma("noescape")
	c.SignatureExpr(
		f.signature("func(k int, a *T, ars, acs int, b *T, brs, bps int, c *T, crs, add, count, astep, cstep int, " +
			"next, step uintptr)"))
	load, inBytes := loaders(c, f)
	p := pointers{a: load("a"), b: load("b"), cc: load("c"), bstride: inBytes("brs"), cstride: inBytes("crs")}
	a, acs, next, second := rowsOf{stride: inBytes("ars"), size: f.size()}, inBytes("acs"), load("next"), inBytes("bps")
	f.vectors *= panels

	c.Label("tile")
	first := c.GP64()
	c.MOVQ(p.a, first)
	a.start(c, first, rows)
	sums := startRows(c, f, p, rows, p.cstride, load("add"))
	inner := pointers{k: load("k"), b: c.GP64(), bstride: p.bstride}
	c.MOVQ(p.b, inner.b)
	s := stridedProducts{Context: c, family: f, pointers: inner, a: a, acs: acs, next: next, second: second, sums: sums}
	s.loop()
	to := c.GP64()
	c.MOVQ(p.cc, to)
	writeRows(c, f, to, p.cstride, sums)
	c.ADDQ(inBytes("astep"), p.a)
	c.ADDQ(inBytes("cstep"), p.cc)
	c.DECQ(parameter(c, "count"))
	c.JNE(operand.LabelRef("tile"))
	c.VZEROUPPER()
	c.RET()
}
