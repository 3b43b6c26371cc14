// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gemvRowsAtOnce is the number of rows of B that a GEMV kernel reads side by side, and the number of vectors of one of
// its steps.
const gemvRowsAtOnce = 4

// gemvRows emits the kernel that reads so many rows of B at a time from end to end and keeps its sums in memory. With
// prefetch it prefetches the rows that follow.
func gemvRows(c *build.Context, f family, rows int, prefetch bool) {
	name, note := fmt.Sprintf("gemvRows%sx%d%s", f.name, rows, prefetchSuffix(prefetch)), ""
	if prefetch {
		note = fmt.Sprintf(" It prefetches %d rows ahead.", rows)
	}
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes %d·steps elements of the row c = a·B over k products, a multiple of %d, or adds "+
			"them to c if add is not 0. Row p of B is at b[p·bstride].%s", name, gemvRowsAtOnce*f.lanes, rows, note))
	c.Pragma("noescape")
	c.SignatureExpr("func(k int, a, b *float32, bstride int, c *float32, steps, add int)")
	k, a, b, stride, to, steps := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("k"), k)
	c.Load(c.Param("a"), a)
	c.Load(c.Param("b"), b)
	c.Load(c.Param("bstride"), stride)
	c.Load(c.Param("steps"), steps)
	f.scale(c, stride)
	stride3, add, next := c.GP64(), c.GP64(), c.GP64()
	c.LEAQ(operand.Mem{Base: stride, Index: stride, Scale: 2}, stride3)
	c.Load(c.Param("add"), add)
	c.LEAQ(operand.Mem{Base: b, Index: stride, Scale: uint8(rows)}, next)

	c.Label("rows")
	xs := make([]reg.VecVirtual, rows)
	for r := range xs {
		xs[r] = f.register(c)
		f.broadcast(c, operand.Mem{Base: a, Disp: f.size() * r}, xs[r])
	}
	from := c.GP64()
	c.MOVQ(b, from)
	c.Load(c.Param("c"), to)
	// of as many columns as are prefetched, of one of the rows, in the course of it
	for segment := range gemvRowsAtOnce {
		label, left := fmt.Sprintf("segment%d", segment), c.GP64()
		line := c.GP64()
		c.MOVQ(next, line)
		c.MOVQ(steps, left)
		c.Label(label)
		sum := f.register(c)
		f.zero(c, sum)
		c.TESTQ(add, add)
		c.JE(operand.LabelRef(label + "new"))
		c.VMOVUPS(operand.Mem{Base: to}, sum)
		c.Label(label + "new")
		for r, x := range xs {
			if prefetch {
				c.PREFETCHT0(operand.Mem{Base: line, Disp: 64 * r})
			}
			c.VFMADD231PS(at(from, stride, stride3, r), x, sum)
		}
		c.VMOVUPS(sum, operand.Mem{Base: to})
		for _, p := range []reg.GPVirtual{from, to} {
			c.ADDQ(operand.Imm(uint64(f.bytes())), p)
		}
		c.ADDQ(operand.U32(uint32(gemvRowsAtOnce*f.bytes())), line)
		c.DECQ(left)
		c.JNE(operand.LabelRef(label))
		c.ADDQ(stride, next)
	}
	c.LEAQ(operand.Mem{Base: b, Index: stride, Scale: uint8(rows)}, b)
	c.ADDQ(operand.Imm(uint64(rows*f.size())), a)
	c.MOVQ(operand.U32(1), add)
	c.SUBQ(operand.Imm(uint64(rows)), k)
	c.JNE(operand.LabelRef("rows"))
	c.VZEROUPPER()
	c.RET()
}

// addBlocks emits the kernel that adds what GEMV kernels have written.
func addBlocks(c *build.Context, f family) {
	name := fmt.Sprintf("addBlocks%s", f.name)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s adds count ≥ 1 rows from b on to d, one after the other, and writes the %d·steps sums to c. "+
			"Rows are bstride apart.", name, gemvRowsAtOnce*f.lanes))
	c.Pragma("noescape")
	c.SignatureExpr("func(c, d, b *float32, bstride, count, steps int)")
	to, d, b, stride, count, steps := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("c"), to)
	c.Load(c.Param("d"), d)
	c.Load(c.Param("b"), b)
	c.Load(c.Param("bstride"), stride)
	c.Load(c.Param("count"), count)
	c.Load(c.Param("steps"), steps)
	f.scale(c, stride)
	c.Label("loop")
	sums := make([]reg.VecVirtual, gemvRowsAtOnce)
	for v := range sums {
		sums[v] = f.register(c)
		c.VMOVUPS(operand.Mem{Base: d, Disp: v * f.bytes()}, sums[v])
	}
	row, left := c.GP64(), c.GP64()
	c.MOVQ(b, row)
	c.MOVQ(count, left)
	c.Label("add")
	for v, sum := range sums {
		f.add(c, operand.Mem{Base: row, Disp: v * f.bytes()}, sum, sum)
	}
	c.ADDQ(stride, row)
	c.DECQ(left)
	c.JNE(operand.LabelRef("add"))
	for v, sum := range sums {
		c.VMOVUPS(sum, operand.Mem{Base: to, Disp: v * f.bytes()})
	}
	for _, p := range []reg.GPVirtual{to, d, b} {
		c.ADDQ(operand.U32(uint32(gemvRowsAtOnce*f.bytes())), p)
	}
	c.DECQ(steps)
	c.JNE(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}
