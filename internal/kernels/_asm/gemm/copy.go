// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// copyPrefetch is how many rows ahead copyRows prefetches: rows often lie a multiple of a page apart, where processors
// do not prefetch by themselves.
const copyPrefetch = 16

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
	c.IMUL3Q(operand.Imm(copyPrefetch), stride, next)
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
func copyTall(c *build.Context, f family) {
	rows, name := f.mr, fmt.Sprintf("copyTall%sx%d", f.name, f.mr)
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
	c.IMUL3Q(operand.Imm(copyPrefetch), stride, next)
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

// together is how many panels are packed side by side, so that whole cache lines are read at once, and togetherPrefetch
// how many rows ahead that prefetches: rows may lie a multiple of 4 KiB apart, and more of them than a set of the
// first-level cache has places would push each other out.
const (
	together         = 4
	togetherPrefetch = 8
)

// placed emits the kernels of the blocked algorithm beside micro: for an A that is read where it lies, and for packing.
func placed(c *build.Context, f family) {
	rows(c, f, true)
	tall(c, f, true)
	copyPanels(c, f, "A", f.mr)
	copyPanels(c, f, "B", f.vectors*f.lanes)
}

// copyPanels emits the packing of several full panels, of so many lanes that are contiguous.
func copyPanels(c *build.Context, f family, of string, lanes int) {
	name := fmt.Sprintf("copyPanels%s%s", of, f.name)
	c.Function(name)
	c.Doc(fmt.Sprintf("%s sets dst[pitch·j + %d·p + i] = src[p·stride + %d·j + i] for i < %d, j < %d and p < k, k ≥ 1.",
		name, lanes, lanes, lanes, together))
	c.Pragma("noescape")
	c.SignatureExpr(f.signature("func(k int, src *T, stride int, dst *T, pitch int)"))
	k, src, stride, next, pitch := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("k"), k)
	c.Load(c.Param("src"), src)
	c.Load(c.Param("stride"), stride)
	c.Load(c.Param("pitch"), pitch)
	f.scale(c, stride)
	f.scale(c, pitch)
	c.IMUL3Q(operand.Imm(togetherPrefetch), stride, next)
	c.ADDQ(src, next)
	dst := panelPointers(c, pitch)
	size := f.size() * lanes
	c.Label("loop")
	for offset := 0; offset < together*size; offset += 64 {
		c.PREFETCHT0(operand.Mem{Base: next, Disp: offset})
	}
	for j := range dst {
		for at := 0; at < size; {
			n := 8
			for n < f.bytes() && at+2*n <= size {
				n *= 2
			}
			move(c, n, operand.Mem{Base: src, Disp: j*size + at}, operand.Mem{Base: dst[j], Disp: at})
			at += n
		}
		c.ADDQ(operand.Imm(uint64(size)), dst[j])
	}
	c.ADDQ(stride, src)
	c.ADDQ(stride, next)
	c.DECQ(k)
	c.JNE(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}

// panelPointers emits the addresses of the panels that are packed together, pitch bytes apart.
func panelPointers(c *build.Context, pitch reg.GPVirtual) []reg.GPVirtual {
	dst := make([]reg.GPVirtual, together)
	for j := range dst {
		dst[j] = c.GP64()
		if j == 0 {
			c.Load(c.Param("dst"), dst[j])
		} else {
			c.LEAQ(operand.Mem{Base: dst[j-1], Index: pitch, Scale: 1}, dst[j])
		}
	}
	return dst
}

// move emits the copy of n bytes: 8, 16, 32 or 64.
func move(c *build.Context, n int, from, to operand.Mem) {
	if n == 8 {
		x := c.XMM()
		c.VMOVSD(from, x)
		c.VMOVSD(x, to)
		return
	}
	x := map[int]func() reg.VecVirtual{16: c.XMM, 32: c.YMM, 64: c.ZMM}[n]()
	c.VMOVUPS(from, x)
	c.VMOVUPS(x, to)
}
