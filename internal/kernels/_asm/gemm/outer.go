// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// outerVectors is how many vectors a turn of an outer kernel writes.
const outerVectors = 4

// outer emits the kernel for a row of an outer product. With nonTemporal it writes C by non-temporal stores.
func outer(c *build.Context, f family, nonTemporal bool) {
	name, note := fmt.Sprintf("outer%s", f.name), ""
	if nonTemporal {
		name, note = name+"NonTemporal",
			fmt.Sprintf(" It writes by non-temporal stores: c is a multiple of %d bytes, d nil, and others may not "+
				"read it before fence.", f.bytes())
	}
	width := outerVectors * f.lanes
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes %d·blocks elements of the row c = a·b, or c = d + a·b if d is not nil, blocks ≥ 1.%s",
			name, width, note))
	c.Pragma("noescape")
	c.SignatureExpr("func(a, b, c, d *float32, blocks int)")
	a, b, cc, d, blocks := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("a"), a)
	c.Load(c.Param("b"), b)
	c.Load(c.Param("c"), cc)
	c.Load(c.Param("blocks"), blocks)
	x, zero := f.register(c), f.register(c)
	c.VBROADCASTSS(operand.Mem{Base: a}, x)
	f.zero(c, zero)
	if !nonTemporal {
		c.Load(c.Param("d"), d)
		c.TESTQ(d, d)
		c.JNE(operand.LabelRef("add"))
	}
	turn := func(label string, add bool) {
		c.Label(label)
		var products []reg.VecVirtual
		for v := range outerVectors {
			y := f.register(c)
			c.VMOVUPS(operand.Mem{Base: b, Disp: v * f.bytes()}, y)
			c.VFMADD213PS(zero, x, y) // as a sum that begins with zero: −0 becomes 0
			products = append(products, y)
		}
		for v, y := range products {
			to := operand.Mem{Base: cc, Disp: v * f.bytes()}
			if add {
				c.VADDPS(operand.Mem{Base: d, Disp: v * f.bytes()}, y, y)
			}
			if nonTemporal {
				c.VMOVNTPS(y, to)
			} else {
				c.VMOVUPS(y, to)
			}
		}
		c.ADDQ(operand.U32(4*width), b)
		c.ADDQ(operand.U32(4*width), cc)
		if add {
			c.ADDQ(operand.U32(4*width), d)
		}
		c.DECQ(blocks)
		c.JNE(operand.LabelRef(label))
	}
	turn("write", false)
	if !nonTemporal {
		c.VZEROUPPER()
		c.RET()
		turn("add", true)
	}
	c.VZEROUPPER()
	c.RET()
}

// fence emits what makes non-temporal stores visible.
func fence(c *build.Context) {
	c.Function("fence")
	c.Doc("fence makes all non-temporal stores visible before what is written afterwards.")
	c.Pragma("noescape")
	c.SignatureExpr("func()")
	c.SFENCE()
	c.RET()
}
