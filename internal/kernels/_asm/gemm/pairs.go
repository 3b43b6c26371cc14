// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/lockstep-ml/lockstep/internal/kernels/_asm/assemble"
)

// Panels of pairs hold two bfloat16 of neighbouring products in 32 bits, the first in the upper half, as VDPBF16PS adds
// that one first.

// pairs emits the kernels for panels of pairs.
func pairs(c *build.Context) {
	for _, dot := range []bool{false, true} {
		microPairs(c, upTo{least: 1, most: avx512.mr - 1}, dot)
		microPairs(c, upTo{least: avx512.mr, most: avx512.mr}, dot)
	}
	copyPairs(c, avx512.vectors*avx512.lanes)
	copyPairs(c, avx512.mr)
	endPairs(c)
}

// microPairs emits micro for panels of pairs: with VDPBF16PS if dot is set, else by widening in registers. Full tiles have
// a kernel of their own, which compares nothing.
func microPairs(c *build.Context, rows upTo, dot bool) {
	f := avx512
	name, how := fmt.Sprintf("microWidenedAVX512x%d", rows.most), "widens them in registers"
	if dot {
		name = fmt.Sprintf("microDotAVX512BF16x%d", rows.most)
		how = "takes VDPBF16PS, for which denormal numbers are zero"
	}
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes rows×(%d·blocks) elements of C = A·B, or C = D + A·B if d is not nil, over k ≥ 1 "+
			"pairs of products, %d ≤ rows ≤ %d, blocks ≥ 1, of panels of pairs of bfloat16. It %s.", name,
			f.vectors*f.lanes, rows.least, rows.most, how),
		"A is packed: a[rows·p + i]. Pair p of B is at b[p·bstride], that of the next block after the last of this "+
			"one; row i of C is at c[i·cstride], of D at d[i·dstride].")
	c.Pragma("noescape")
	c.SignatureExpr(
		f.signature("func(rows, k int, a, b *T, bstride int, c *T, cstride int, d *T, dstride, blocks int)"))
	p := newPointers(c, f)
	rows.n = c.GP64()
	column := c.GP64() // of A, in bytes
	c.Load(c.Param("rows"), rows.n)
	c.MOVQ(rows.n, column)
	c.SHLQ(operand.Imm(2), column)
	var mask reg.VecVirtual
	if !dot {
		mask = f.oddMask(c)
	}
	c.Label("block")
	k, a, row := c.GP64(), c.GP64(), c.GP64()
	c.MOVQ(p.k, k)
	c.MOVQ(p.a, a)
	c.Load(c.Param("c"), row)
	rows.each(c, "prefetched", func(i int) {
		c.PREFETCHT0(operand.Mem{Base: row})
		c.PREFETCHT0(operand.Mem{Base: row, Disp: f.vectors*f.bytes() - 4})
		if i+1 < rows.most {
			c.LEAQ(operand.Mem{Base: row, Index: p.cstride, Scale: 1}, row)
		}
	})
	sums := zeros(c, f, rows.most, f.vectors)
	c.Label("loop")
	if dot {
		dotPairs(c, rows, a, p.b, sums)
	} else {
		widenedPairs(c, rows, a, p.b, mask, sums)
	}
	c.ADDQ(column, a)
	c.ADDQ(p.bstride, p.b)
	c.DECQ(k)
	c.JNE(operand.LabelRef("loop"))
	rows.store(c, f, sums)
	nextBlock(c)
	c.VZEROUPPER()
	c.RET()
}

// dotPairs emits the addition of one pair of products to all sums.
func dotPairs(c *build.Context, rows upTo, a, b reg.GPVirtual, sums [][]reg.VecVirtual) {
	bs := make([]reg.VecVirtual, avx512.vectors)
	for v := range bs {
		bs[v] = c.ZMM()
		c.VMOVUPS(operand.Mem{Base: b, Disp: 64 * v}, bs[v])
	}
	rows.each(c, "added", func(i int) {
		x := c.ZMM()
		c.VBROADCASTSS(operand.Mem{Base: a, Disp: 4 * i}, x)
		for v, y := range bs {
			c.VPDPWSSD(y, x, sums[i][v]) // becomes VDPBF16PS
		}
	})
}

// widenedPairs is dotPairs without VDPBF16PS.
func widenedPairs(c *build.Context, rows upTo, a, b reg.GPVirtual, mask reg.VecVirtual, sums [][]reg.VecVirtual) {
	var first, second []reg.VecVirtual
	for v := range avx512.vectors {
		y := c.ZMM()
		c.VMOVUPS(operand.Mem{Base: b, Disp: 64 * v}, y)
		low, high := avx512.widen(c, y, mask)
		first, second = append(first, high), append(second, low)
	}
	rows.each(c, "added", func(i int) {
		x := c.ZMM()
		c.VBROADCASTSS(operand.Mem{Base: a, Disp: 4 * i}, x)
		low, high := avx512.widen(c, x, mask)
		for v := range first {
			c.VFMADD231PS(first[v], high, sums[i][v])
		}
		for v := range second {
			c.VFMADD231PS(second[v], low, sums[i][v])
		}
	})
}

// copyPairs emits the packing of a full panel whose lanes lie side by side.
func copyPairs(c *build.Context, width int) {
	name := fmt.Sprintf("copyPairsAVX512x%d", width)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s sets dst[%d·p + i] = src[2·p·stride + i] + 65536·src[(2·p+1)·stride + i] for i < %d and p < "+
			"k, k ≥ 1.", name, width, width))
	c.Pragma("noescape")
	c.SignatureExpr("func(k int, src *uint16, stride int, dst *float32)")
	k, src, stride, dst, next := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("k"), k)
	c.Load(c.Param("src"), src)
	c.Load(c.Param("stride"), stride)
	c.Load(c.Param("dst"), dst)
	c.SHLQ(operand.Imm(1), stride)
	c.IMUL3Q(operand.Imm(copyPrefetch), stride, next)
	c.ADDQ(src, next)
	c.Label("loop")
	c.PREFETCHT0(operand.Mem{Base: next})
	c.PREFETCHT0(operand.Mem{Base: next, Index: stride, Scale: 1})
	for at := 0; at < width; {
		x, y, lanes := c.ZMM(), c.ZMM(), 16
		switch width - at {
		case 12:
			x, y, lanes = c.YMM(), c.YMM(), 8
		case 4:
			x, y, lanes = c.XMM(), c.XMM(), 4
		}
		c.VPMOVZXWD(operand.Mem{Base: src, Disp: 2 * at}, x)
		c.VPMOVZXWD(operand.Mem{Base: src, Index: stride, Scale: 1, Disp: 2 * at}, y)
		c.VPSLLD(operand.Imm(16), y, y)
		c.VPORD(x, y, y)
		c.VMOVUPS(y, operand.Mem{Base: dst, Disp: 4 * at})
		at += lanes
	}
	c.LEAQ(operand.Mem{Base: src, Index: stride, Scale: 2}, src)
	c.LEAQ(operand.Mem{Base: next, Index: stride, Scale: 2}, next)
	c.ADDQ(operand.Imm(uint64(4*width)), dst)
	c.DECQ(k)
	c.JNE(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}

// endPairs emits the last pass over a packed panel.
func endPairs(c *build.Context) {
	c.Function("endPairsAVX512")
	c.Doc("endPairsAVX512 exchanges the halves of 16·n elements of x, n ≥ 1, and returns the least of the bfloat16 " +
		"in them without their signs, less one; that of zero is 65535.")
	c.Pragma("noescape")
	c.SignatureExpr("func(n int, x *float32) uint32")
	n, x := c.GP64(), c.GP64()
	c.Load(c.Param("n"), n)
	c.Load(c.Param("x"), x)
	least, ones, magnitude := c.ZMM(), c.ZMM(), c.ZMM()
	c.VPTERNLOGD(operand.Imm(0xff), least, least, least)
	c.VPTERNLOGD(operand.Imm(0xff), ones, ones, ones)
	c.VPSRLW(operand.Imm(1), ones, magnitude)
	c.Label("loop")
	v, m := c.ZMM(), c.ZMM()
	c.VMOVDQU32(operand.Mem{Base: x}, v)
	c.VPANDD(v, magnitude, m)
	c.VPADDW(ones, m, m)
	c.VPMINUW(m, least, least)
	c.VPROLD(operand.Imm(16), v, v)
	c.VMOVDQU32(v, operand.Mem{Base: x})
	c.ADDQ(operand.Imm(64), x)
	c.DECQ(n)
	c.JNE(operand.LabelRef("loop"))
	upper := c.YMM()
	c.VEXTRACTI64X4(operand.Imm(1), least, upper)
	half := c.YMM()
	c.VPMINUW(upper, least.AsY(), half)
	quarter := c.XMM()
	c.VEXTRACTI128(operand.Imm(1), half, quarter)
	c.VPMINUW(quarter, half.AsX(), quarter)
	c.VPHMINPOSUW(quarter, quarter)
	result := c.GP32()
	c.VMOVD(quarter, result)
	c.ANDL(operand.U32(0xffff), result)
	c.VZEROUPPER()
	c.Store(result, c.ReturnIndex(0))
	c.RET()
}

// markDots says what the instruction needs that VPDPWSSD becomes.
func markDots(file *ir.File) error {
	for _, f := range file.Functions() {
		for _, i := range f.Instructions() {
			if i.Opcode == "VPDPWSSD" {
				i.ISA = []string{"AVX512F", assemble.BF16}
			}
		}
	}
	return nil
}

// encodeDots replaces VPDPWSSD, which no kernel needs, by VDPBF16PS, which Go's assembler does not know: they are coded
// alike but for their prefix.
func encodeDots(file *ir.File) error {
	for _, f := range file.Functions() {
		for _, i := range f.Instructions() {
			if i.Opcode != "VPDPWSSD" {
				continue
			}
			var n [3]byte
			for k, o := range i.Operands {
				r, ok := o.(reg.Physical)
				if !ok || r.Size() != 64 {
					return fmt.Errorf("operand %s of %s: want a register of 512 bits", o.Asm(), i.Opcode)
				}
				n[k] = byte(r.PhysicalIndex())
			}
			y, x, sum := n[0], n[1], n[2]
			not := func(v byte, bit int) byte { return ^v >> bit & 1 }
			code := [6]byte{0x62,
				not(sum, 3)<<7 | not(y, 4)<<6 | not(y, 3)<<5 | not(sum, 4)<<4 | 0x02, // 0F38
				(^x&15)<<3 | 0x04 | 0x02, // F3
				0x40 | not(x, 4)<<3,      // 512 bits
				0x52, 0xc0 | sum&7<<3 | y&7}
			i.Opcode = fmt.Sprintf("LONG $0x%02x%02x%02x%02x; WORD $0x%02x%02x // VDPBF16PS %s, %s, %s", code[3],
				code[2], code[1], code[0], code[5], code[4],
				i.Operands[0].Asm(), i.Operands[1].Asm(), i.Operands[2].Asm())
			i.Operands = nil
		}
	}
	return nil
}
