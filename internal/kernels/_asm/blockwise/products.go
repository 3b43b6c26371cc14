// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Of package blockwise: the numbers of a block of Q8_0, and its bytes.
const (
	q8Block = 32
	q8Bytes = 34
)

// q8Ahead is how many bytes ahead a product prefetches: a page ends what the processor sees by itself.
const q8Ahead = 1024

// productQ8 emits the kernel for so many rows of x. What a block is widened to stays in registers for all rows.
func productQ8(c *build.Context, rows int) {
	name := fmt.Sprintf("productQ8AVX2x%d", rows)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s multiplies %d rows of x by columns ≥ 1 of w, which lie one after the other, each of", name, rows),
		"blocks ≥ 1 of Q8_0. Block i of row r is at "+
			fmt.Sprintf("x[32·(%d·i + r)], and the product of row r and column j goes to y[%d·j + r].", rows, rows))
	c.Pragma("noescape")
	c.SignatureExpr("func(columns, blocks int, w *uint8, x, y *float32)")
	load := func(param string) reg.GPVirtual {
		r := c.GP64()
		c.Load(c.Param(param), r)
		return r
	}
	columns, blocks, w, x, y := load("columns"), load("blocks"), load("w"), load("x"), load("y")
	c.Label("column")
	n, at := c.GP64(), c.GP64()
	c.MOVQ(blocks, n)
	c.MOVQ(x, at)
	sums := make([]reg.VecVirtual, rows)
	for r := range sums {
		sums[r] = c.YMM()
		c.VXORPS(sums[r], sums[r], sums[r])
	}
	c.Label("block")
	c.PREFETCHT0(operand.Mem{Base: w, Disp: q8Ahead})
	addBlockQ8(c, w, at, sums)
	c.ADDQ(operand.Imm(q8Bytes), w)
	c.ADDQ(operand.U32(uint32(4*q8Block*rows)), at)
	c.DECQ(n)
	c.JNE(operand.LabelRef("block"))
	for r, sum := range sums {
		storeSum(c, sum.(reg.Register), operand.Mem{Base: y, Disp: 4 * r})
	}
	c.ADDQ(operand.Imm(uint64(4*rows)), y)
	c.DECQ(columns)
	c.JNE(operand.LabelRef("column"))
	c.VZEROUPPER()
	c.RET()
}

// addBlockQ8 emits the addition of a block's products to the sums of rows.
func addBlockQ8(c *build.Context, w, x reg.GPVirtual, sums []reg.VecVirtual) {
	half, scale := c.XMM(), c.YMM()
	c.VPBROADCASTW(operand.Mem{Base: w}, half)
	c.VCVTPH2PS(half, scale)
	numbers := make([]reg.VecVirtual, q8Block/lanes)
	for i := range numbers {
		numbers[i] = c.YMM()
		c.VPMOVSXBD(operand.Mem{Base: w, Disp: 2 + lanes*i}, numbers[i])
		c.VCVTDQ2PS(numbers[i], numbers[i])
	}
	for r, sum := range sums {
		dot := c.YMM()
		for i, number := range numbers {
			from := operand.Mem{Base: x, Disp: 4 * (q8Block*r + lanes*i)}
			if i == 0 {
				c.VMULPS(from, number, dot)
			} else {
				c.VFMADD231PS(from, number, dot)
			}
		}
		c.VFMADD231PS(scale, dot, sum)
	}
}

// storeSum emits the sum of a vector's elements: halves, then halves of these, then the last two.
func storeSum(c *build.Context, sum reg.Register, to operand.Mem) {
	low, other := sum.(reg.Vec).AsX(), c.XMM()
	c.VEXTRACTF128(operand.Imm(1), sum, other)
	c.VADDPS(other, low, low)
	c.VMOVHLPS(low, low, other)
	c.VADDPS(other, low, low)
	c.VMOVSHDUP(low, other)
	c.VADDSS(other, low, low)
	c.VMOVSS(low, to)
}
