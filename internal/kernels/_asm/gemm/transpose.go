// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const transposeSignature = "func(blocks int, src *float32, stride int, dst *float32, width int)"

// walker steps through a transposition; strides are in bytes.
type walker struct {
	blocks, src, stride, stride3, dst, width, width3 reg.GPVirtual
}

func newWalker(c *build.Context) walker {
	w := walker{c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()}
	c.Load(c.Param("blocks"), w.blocks)
	c.Load(c.Param("src"), w.src)
	c.Load(c.Param("stride"), w.stride)
	c.Load(c.Param("dst"), w.dst)
	c.Load(c.Param("width"), w.width)
	c.SHLQ(operand.Imm(2), w.stride)
	c.SHLQ(operand.Imm(2), w.width)
	c.LEAQ(operand.Mem{Base: w.stride, Index: w.stride, Scale: 2}, w.stride3)
	c.LEAQ(operand.Mem{Base: w.width, Index: w.width, Scale: 2}, w.width3)
	return w
}

// at returns the address of row 0, 1, 2 or 3 from base.
func at(base, stride, stride3 reg.Register, row int) operand.Mem {
	switch row {
	case 0:
		return operand.Mem{Base: base}
	case 1:
		return operand.Mem{Base: base, Index: stride, Scale: 1}
	case 2:
		return operand.Mem{Base: base, Index: stride, Scale: 2}
	default:
		return operand.Mem{Base: base, Index: stride3, Scale: 1}
	}
}

// exchange emits the transposition of 4×4 elements, within each 128 bit half of the registers, and stores the four
// columns.
func (w walker) exchange(c *build.Context, rows []reg.VecVirtual, fresh func() reg.VecVirtual) {
	low01, high01, low23, high23 := fresh(), fresh(), fresh(), fresh()
	c.VUNPCKLPS(rows[1], rows[0], low01)
	c.VUNPCKHPS(rows[1], rows[0], high01)
	c.VUNPCKLPS(rows[3], rows[2], low23)
	c.VUNPCKHPS(rows[3], rows[2], high23)
	cols := []reg.VecVirtual{fresh(), fresh(), fresh(), fresh()}
	c.VUNPCKLPD(low23, low01, cols[0])
	c.VUNPCKHPD(low23, low01, cols[1])
	c.VUNPCKLPD(high23, high01, cols[2])
	c.VUNPCKHPD(high23, high01, cols[3])
	for i, col := range cols {
		c.VMOVUPS(col, at(w.dst, w.width, w.width3, i))
	}
	c.LEAQ(operand.Mem{Base: w.dst, Index: w.width, Scale: 4}, w.dst)
	c.ADDQ(operand.Imm(16), w.src)
	c.DECQ(w.blocks)
	c.JNE(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}

// transpose4 emits the packing of four lanes.
func transpose4(c *build.Context) {
	c.Function("transposeAVX2x4")
	c.Doc("transposeAVX2x4 sets dst[p·width + i] = src[i·stride + p] for i < 4 and p < 4·blocks, blocks ≥ 1.")
	c.Pragma("noescape")
	c.SignatureExpr(transposeSignature)
	w := newWalker(c)
	c.Label("loop")
	rows := make([]reg.VecVirtual, 4)
	for i := range rows {
		rows[i] = c.XMM()
		c.VMOVUPS(at(w.src, w.stride, w.stride3, i), rows[i])
	}
	w.exchange(c, rows, c.XMM)
}

// transpose8 emits the packing of eight lanes, four in each half of the registers.
func transpose8(c *build.Context) {
	c.Function("transposeAVX2x8")
	c.Doc("transposeAVX2x8 sets dst[p·width + i] = src[i·stride + p] for i < 8 and p < 4·blocks, blocks ≥ 1.")
	c.Pragma("noescape")
	c.SignatureExpr(transposeSignature)
	w := newWalker(c)
	upper := c.GP64()
	c.LEAQ(operand.Mem{Base: w.src, Index: w.stride, Scale: 4}, upper)
	c.Label("loop")
	rows := make([]reg.VecVirtual, 4)
	for i := range rows {
		low := c.XMM()
		rows[i] = c.YMM()
		c.VMOVUPS(at(w.src, w.stride, w.stride3, i), low)
		c.VINSERTF128(operand.Imm(1), at(upper, w.stride, w.stride3, i), low.AsY(), rows[i])
	}
	c.ADDQ(operand.Imm(16), upper)
	w.exchange(c, rows, c.YMM)
}

// transpose16 emits the transposition of a square of 16×16 elements.
func transpose16(c *build.Context) {
	c.Function("transposeAVX512x16")
	c.Doc("transposeAVX512x16 sets dst[p·width + i] = src[i·stride + p] for i < 16 and p < 16.")
	c.Pragma("noescape")
	c.SignatureExpr("func(src *float32, stride int, dst *float32, width int)")
	src, stride, dst, width := c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("src"), src)
	c.Load(c.Param("stride"), stride)
	c.Load(c.Param("dst"), dst)
	c.Load(c.Param("width"), width)
	c.SHLQ(operand.Imm(2), stride)
	c.SHLQ(operand.Imm(2), width)
	rows := make([]reg.VecVirtual, 16)
	for i := range rows {
		rows[i] = c.ZMM()
		c.VMOVUPS(operand.Mem{Base: src}, rows[i])
		c.ADDQ(stride, src)
	}
	for _, column := range transposed(c, avx512, rows) {
		c.VMOVUPS(column, operand.Mem{Base: dst})
		c.ADDQ(width, dst)
	}
	c.VZEROUPPER()
	c.RET()
}
