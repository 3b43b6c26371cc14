// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// keeping emits the kernel that reads mr rows of A and a panel of B where they lie, and packs the panel by the way:
// writing is free among so many multiplications.
func keeping(c *build.Context, f family) {
	name := fmt.Sprintf("rows%sx%dKeeping", f.name, f.mr)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes %d×%d elements of C = A·B, or C = D + A·B if d is not nil, over k ≥ 1 products, and "+
			"sets kept[%d·p + j] to element (p, j) of B.", name, f.mr, f.vectors*f.lanes, f.vectors*f.lanes),
		"Row i of A is at a[i·astride], row p of B at b[p·bstride], row i of C at c[i·cstride], of D at "+
			"d[i·dstride]. With row p of B it prefetches as much at near[p·bstride].")
	c.Pragma("noescape")
	c.SignatureExpr(
		f.signature("func(k int, a *T, astride int, b *T, bstride int, c *T, cstride int, d *T, dstride int, kept, " +
			"near *T)"))
	p := newPointers(c, f)
	a := rowsOf{stride: c.GP64(), size: f.size()}
	c.Load(c.Param("astride"), a.stride)
	f.scale(c, a.stride)
	kept, near := c.GP64(), c.GP64()
	c.Load(c.Param("kept"), kept)
	c.Load(c.Param("near"), near)
	prefetchTile(c, f, p, f.mr)
	a.start(c, p.a, f.mr)
	sums := zeros(c, f, f.mr, f.vectors)
	c.Label("loop")
	for offset := 0; offset < f.vectors*f.bytes(); offset += 64 {
		c.PREFETCHT0(operand.Mem{Base: near, Disp: offset})
	}
	b := make([]reg.VecVirtual, f.vectors)
	for v := range b {
		b[v] = f.register(c)
		c.VMOVUPS(operand.Mem{Base: p.b, Disp: v * f.bytes()}, b[v])
		c.VMOVUPS(b[v], operand.Mem{Base: kept, Disp: v * f.bytes()})
	}
	addColumn(c, f, a, 0, b, sums)
	for _, r := range a.third {
		c.ADDQ(operand.Imm(uint64(f.size())), r)
	}
	c.ADDQ(p.bstride, p.b)
	c.ADDQ(p.bstride, near)
	c.ADDQ(operand.Imm(uint64(f.vectors*f.bytes())), kept)
	c.DECQ(p.k)
	c.JNE(operand.LabelRef("loop"))
	storeBlock(c, f, p, sums)
	c.VZEROUPPER()
	c.RET()
}
