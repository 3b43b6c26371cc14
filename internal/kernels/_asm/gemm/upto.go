// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// upTo is a number of rows that a kernel is told: at least least, at most most.
type upTo struct {
	n           reg.GPVirtual
	least, most int
	sameColumns bool // whether the next block is of the same columns
}

// each emits what row emits for each row, and where there may be no more, a jump to label, which comes behind the last.
// row must leave the flags as they are: one comparison decides about two rows.
func (u upTo) each(c *build.Context, label string, row func(i int)) {
	compared := false
	for i := range u.most {
		row(i)
		switch done := i + 1; {
		case done < u.least || done == u.most:
		case compared:
			c.JE(operand.LabelRef(label))
			compared = false
		default:
			c.CMPQ(u.n, operand.Imm(uint64(done+1)))
			c.JL(operand.LabelRef(label))
			compared = true
		}
	}
	c.Label(label)
}

// store emits the writing of the sums to C, with D's rows added if d is not nil, and moves the parameters c and d on to
// the next block's columns. All of D is read before anything is written, as by storeBlock.
func (u upTo) store(c *build.Context, f family, sums [][]reg.VecVirtual) {
	load := func(name string) reg.GPVirtual {
		x := c.GP64()
		c.Load(c.Param(name), x)
		return x
	}
	width := operand.U32(len(sums[0]) * f.bytes())
	d := load("d")
	c.TESTQ(d, d)
	c.JE(operand.LabelRef("write"))
	if !u.sameColumns {
		c.ADDQ(width, parameter(c, "d"))
	}
	dstride := load("dstride")
	f.scale(c, dstride)
	u.each(c, "write", func(i int) {
		for v, x := range sums[i] {
			f.add(c, operand.Mem{Base: d, Disp: v * f.bytes()}, x, x)
		}
		if i+1 < u.most {
			c.LEAQ(operand.Mem{Base: d, Index: dstride, Scale: 1}, d)
		}
	})
	to, cstride := load("c"), load("cstride")
	f.scale(c, cstride)
	if !u.sameColumns {
		c.ADDQ(width, parameter(c, "c"))
	}
	u.each(c, "written", func(i int) {
		for v, x := range sums[i] {
			c.VMOVUPS(x, operand.Mem{Base: to, Disp: v * f.bytes()})
		}
		if i+1 < u.most {
			c.LEAQ(operand.Mem{Base: to, Index: cstride, Scale: 1}, to)
		}
	})
}
