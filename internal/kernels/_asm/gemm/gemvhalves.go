// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gemvHalves emits the kernel for one row and a B whose columns are contiguous that computes two vectors of C from
// wherever they are: half as many columns as those of dots are read side by side in two places each.
func gemvHalves(c *build.Context, f family) {
	name := fmt.Sprintf("gemvHalves%s", f.name)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes %d elements of each of two rows, c0 = d0 + a0·B0 and c1 = d1 + a1·B1, over %d "+
			"products. Column j of B0 is at b0[j·bstride], of B1 at b1[j·bstride].", name, f.lanes, gemvDepth))
	c.Pragma("noescape")
	c.SignatureExpr("func(a0, b0, c0, d0, a1, b1, c1, d1 *float32, bstride int)")
	stride, k := c.GP64(), c.GP64()
	c.Load(c.Param("bstride"), stride)
	f.scale(c, stride)
	m := newMultiples(c, stride)
	var a, b [2]reg.GPVirtual
	var from [2]*columns
	for v := range from {
		a[v], b[v] = c.GP64(), c.GP64()
		c.Load(c.Param(fmt.Sprintf("a%d", v)), a[v])
		c.Load(c.Param(fmt.Sprintf("b%d", v)), b[v])
		from[v] = m.columns(c, f, b[v], 1)
	}
	sums := zeros(c, f, 1, len(from))[0]
	c.MOVQ(operand.U32(uint32(gemvDepth/f.lanes)), k)
	c.Label("loop")
	for v, w := range from {
		for n, x := range transposed(c, f, w.load(c, 0)) {
			f.multiplyAdd(c, operand.Mem{Base: a[v], Disp: f.size() * n}, x, sums[v])
		}
		w.advance(c)
		c.ADDQ(operand.Imm(uint64(f.bytes())), a[v])
	}
	c.DECQ(k)
	c.JNE(operand.LabelRef("loop"))
	for v, sum := range sums {
		d, to := c.GP64(), c.GP64()
		c.Load(c.Param(fmt.Sprintf("d%d", v)), d)
		c.Load(c.Param(fmt.Sprintf("c%d", v)), to)
		f.add(c, operand.Mem{Base: d}, sum, sum)
		c.VMOVUPS(sum, operand.Mem{Base: to})
	}
	c.VZEROUPPER()
	c.RET()
}
