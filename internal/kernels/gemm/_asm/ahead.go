package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
)

// aheadName is what the names of kernels end with that ask for memory ahead.
func aheadName(ahead bool) string {
	if ahead {
		return "Ahead"
	}
	return ""
}

// placedSignature is that of a kernel that reads A where it lies.
func placedSignature(ahead bool) string {
	const placed = "func(k int, a *T, astride int, b *T, bstride int, c *T, cstride int, d *T, dstride, blocks int"
	if ahead {
		return placed + ", next *uintptr)"
	}
	return placed + ")"
}

// fetchAhead emits a block's part of the two requests at next: address, stride, count and step each, in bytes. The address moves on by the step.
func fetchAhead(c *build.Context) {
	next := c.GP64()
	c.Load(c.Param("next"), next)
	for i := range 2 {
		at, stride, count, step := c.GP64(), c.GP64(), c.GP64(), c.GP64()
		loop, end := fmt.Sprintf("fetch%d", i), fmt.Sprintf("fetched%d", i)
		c.MOVQ(operand.Mem{Base: next, Disp: 32*i + 16}, count)
		c.TESTQ(count, count)
		c.JE(operand.LabelRef(end))
		c.MOVQ(operand.Mem{Base: next, Disp: 32 * i}, at)
		c.MOVQ(operand.Mem{Base: next, Disp: 32*i + 8}, stride)
		c.MOVQ(operand.Mem{Base: next, Disp: 32*i + 24}, step)
		c.ADDQ(at, step)
		c.MOVQ(step, operand.Mem{Base: next, Disp: 32 * i})
		c.Label(loop)
		c.PREFETCHT1(operand.Mem{Base: at})
		c.ADDQ(stride, at)
		c.DECQ(count)
		c.JNE(operand.LabelRef(loop))
		c.Label(end)
	}
}
