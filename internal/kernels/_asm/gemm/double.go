// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The tiles are as many registers as those of float32, and half as wide.
var (
	avx512Double = family{name: "AVX512F64", lanes: 8, mr: 12, vectors: 2, double: true}
	avx2Double   = family{name: "AVX2F64", lanes: 4, mr: 6, vectors: 2, double: true}
)

// double emits the kernels for float64.
func double(c *build.Context) {
	for _, f := range []family{avx512Double, avx2Double} {
		for rows := 1; rows <= f.mr; rows++ {
			micro(c, f, rows)
		}
		placed(c, f)
		copyRows(c, f)
		copyTall64(c, f)
		strideds(c, f)
	}
	transpose4x4(c)
}

// copyTall64 emits the packing of a full panel of A whose columns are contiguous, of 12 or 6 rows.
func copyTall64(c *build.Context, f family) {
	rows, name := f.mr, fmt.Sprintf("copyTall%sx%d", f.name, f.mr)
	c.Function(name)
	c.Doc(fmt.Sprintf("%s sets dst[%d·p + i] = src[p·stride + i] for i < %d and p < k, k ≥ 1.", name, rows, rows))
	c.Pragma("noescape")
	c.SignatureExpr("func(k int, src *float64, stride int, dst *float64)")
	k, src, stride, dst, next := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("k"), k)
	c.Load(c.Param("src"), src)
	c.Load(c.Param("stride"), stride)
	c.Load(c.Param("dst"), dst)
	c.SHLQ(operand.Imm(3), stride)
	c.IMUL3Q(operand.Imm(copyPrefetch), stride, next)
	c.ADDQ(src, next)
	c.Label("loop")
	c.PREFETCHT0(operand.Mem{Base: next})
	for offset := 0; offset < 8*rows; offset += 16 {
		two := c.XMM()
		c.VMOVUPD(operand.Mem{Base: src, Disp: offset}, two)
		c.VMOVUPD(two, operand.Mem{Base: dst, Disp: offset})
	}
	c.ADDQ(stride, src)
	c.ADDQ(stride, next)
	c.ADDQ(operand.Imm(uint64(8*rows)), dst)
	c.DECQ(k)
	c.JNE(operand.LabelRef("loop"))
	c.RET()
}

// transpose4x4 emits the packing of four lanes of float64.
func transpose4x4(c *build.Context) {
	c.Function("transposeAVX2F64x4")
	c.Doc("transposeAVX2F64x4 sets dst[p·width + i] = src[i·stride + p] for i < 4 and p < 4·blocks, blocks ≥ 1.")
	c.Pragma("noescape")
	c.SignatureExpr("func(blocks int, src *float64, stride int, dst *float64, width int)")
	w := newWalker(c)
	c.SHLQ(operand.Imm(1), w.stride) // which newWalker takes for float32's
	c.SHLQ(operand.Imm(1), w.stride3)
	c.SHLQ(operand.Imm(1), w.width)
	c.SHLQ(operand.Imm(1), w.width3)
	c.Label("loop")
	rows := make([]reg.VecVirtual, 4)
	for i := range rows {
		rows[i] = c.YMM()
		c.VMOVUPD(at(w.src, w.stride, w.stride3, i), rows[i])
	}
	low01, high01, low23, high23 := c.YMM(), c.YMM(), c.YMM(), c.YMM()
	c.VUNPCKLPD(rows[1], rows[0], low01)
	c.VUNPCKHPD(rows[1], rows[0], high01)
	c.VUNPCKLPD(rows[3], rows[2], low23)
	c.VUNPCKHPD(rows[3], rows[2], high23)
	for i, pair := range [][2]reg.VecVirtual{{low23, low01}, {high23, high01}, {low23, low01}, {high23, high01}} {
		column := c.YMM()
		c.VPERM2F128(operand.Imm([]uint64{0x20, 0x20, 0x31, 0x31}[i]), pair[0], pair[1], column)
		c.VMOVUPD(column, at(w.dst, w.width, w.width3, i))
	}
	c.LEAQ(operand.Mem{Base: w.dst, Index: w.width, Scale: 4}, w.dst)
	c.ADDQ(operand.Imm(32), w.src)
	c.DECQ(w.blocks)
	c.JNE(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}
