package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// ahead is how many rows ahead copyRows asks for memory: rows lie apart by a multiple of a page often enough, where processors do not look ahead by themselves.
const ahead = 16

// copyRows emits the packing of a full panel of B whose rows are contiguous.
func copyRows(c *build.Context, f family) {
	width := f.vectors * f.lanes
	name := fmt.Sprintf("copyRows%s", f.name)
	c.Function(name)
	c.Doc(fmt.Sprintf("%s sets dst[%d·p + i] = src[p·stride + i] for i < %d and p < k, k ≥ 1.", name, width, width))
	c.Pragma("noescape")
	c.SignatureExpr(f.signature("func(k int, src *T, stride int, dst *T)"))
	k, src, stride, dst, next := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("k"), k)
	c.Load(c.Param("src"), src)
	c.Load(c.Param("stride"), stride)
	c.Load(c.Param("dst"), dst)
	f.scale(c, stride)
	c.IMUL3Q(operand.Imm(ahead), stride, next)
	c.ADDQ(src, next)
	c.Label("loop")
	for offset := 0; offset < f.size()*width; offset += 64 {
		c.PREFETCHT0(operand.Mem{Base: next, Disp: offset})
	}
	row := make([]reg.VecVirtual, f.vectors)
	for v := range row {
		row[v] = f.register(c)
		c.VMOVUPS(operand.Mem{Base: src, Disp: v * f.bytes()}, row[v])
	}
	for v := range row {
		c.VMOVUPS(row[v], operand.Mem{Base: dst, Disp: v * f.bytes()})
	}
	c.ADDQ(stride, src)
	c.ADDQ(stride, next)
	c.ADDQ(operand.Imm(uint64(f.size()*width)), dst)
	c.DECQ(k)
	c.JNE(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}

// copyTall emits the packing of a full panel of A whose columns are contiguous, of 12 or 6 rows.
func copyTall(c *build.Context, rows int) {
	name := fmt.Sprintf("copyTall%d", rows)
	c.Function(name)
	c.Doc(fmt.Sprintf("%s sets dst[%d·p + i] = src[p·stride + i] for i < %d and p < k, k ≥ 1.", name, rows, rows))
	c.Pragma("noescape")
	c.SignatureExpr("func(k int, src *float32, stride int, dst *float32)")
	k, src, stride, dst, next := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("k"), k)
	c.Load(c.Param("src"), src)
	c.Load(c.Param("stride"), stride)
	c.Load(c.Param("dst"), dst)
	c.SHLQ(operand.Imm(2), stride)
	c.IMUL3Q(operand.Imm(ahead), stride, next)
	c.ADDQ(src, next)
	c.Label("loop")
	c.PREFETCHT0(operand.Mem{Base: next})
	if rows == 12 {
		eight, four := c.YMM(), c.XMM()
		c.VMOVUPS(operand.Mem{Base: src}, eight)
		c.VMOVUPS(operand.Mem{Base: src, Disp: 32}, four)
		c.VMOVUPS(eight, operand.Mem{Base: dst})
		c.VMOVUPS(four, operand.Mem{Base: dst, Disp: 32})
	} else {
		four, two := c.XMM(), c.XMM()
		c.VMOVUPS(operand.Mem{Base: src}, four)
		c.VMOVSD(operand.Mem{Base: src, Disp: 16}, two)
		c.VMOVUPS(four, operand.Mem{Base: dst})
		c.VMOVSD(two, operand.Mem{Base: dst, Disp: 16})
	}
	c.ADDQ(stride, src)
	c.ADDQ(stride, next)
	c.ADDQ(operand.Imm(uint64(4*rows)), dst)
	c.DECQ(k)
	c.JNE(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}
