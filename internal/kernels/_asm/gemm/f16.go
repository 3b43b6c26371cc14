// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// float16 emits the kernels for float16 operands.
func float16(c *build.Context) {
	for _, f := range []family{avx512, avx2} {
		streamF16(c, f)
		copyRowsHalf(c, f, "F16")
		copyPanelsHalf(c, f, "F16", "A", f.mr)
		copyPanelsHalf(c, f, "F16", "B", f.vectors*f.lanes)
		copyTallHalf(c, f, "F16")
		dots(c, f, "F16")
	}
	dots(c, avx2, eitherHalf)
	transposeF16(c, 4)
	transposeF16(c, 8)
}

// streamF16 emits stream for a B of float16.
func streamF16(c *build.Context, f family) {
	for _, size := range streamSizes(f) {
		streamOf(c, f, "F16", size, func() streamed {
			return streamed{product: func(p pointers, sums [][]reg.VecVirtual) { streamProductF16(c, f, p, sums) },
				row: func(p pointers) (bs []reg.VecVirtual) {
					for v := range size.vectors {
						bs = append(bs, f.register(c))
						c.VCVTPH2PS(operand.Mem{Base: p.b, Disp: v * f.bytes() / 2}, bs[v])
					}
					return bs
				}}
		})
	}
}

// streamProductF16 is streamProduct for a B of float16.
func streamProductF16(c *build.Context, f family, p pointers, sums [][]reg.VecVirtual) {
	rows, vectors := len(sums), len(sums[0])
	element := func(i int) reg.VecVirtual {
		x := f.register(c)
		c.VBROADCASTSS(operand.Mem{Base: p.a, Disp: 4 * i}, x)
		return x
	}
	widened := func(v int) reg.VecVirtual {
		b := f.register(c)
		c.VCVTPH2PS(operand.Mem{Base: p.b, Disp: v * f.bytes() / 2}, b)
		return b
	}
	if rows <= vectors {
		var xs []reg.VecVirtual
		for i := range rows {
			xs = append(xs, element(i))
		}
		for v := range vectors {
			b := widened(v)
			for i, x := range xs {
				c.VFMADD231PS(b, x, sums[i][v])
			}
		}
	} else {
		var bs []reg.VecVirtual
		for v := range vectors {
			bs = append(bs, widened(v))
		}
		for i := range rows {
			x := element(i)
			for v, b := range bs {
				c.VFMADD231PS(b, x, sums[i][v])
			}
		}
	}
	c.ADDQ(operand.Imm(uint64(4*rows)), p.a)
	c.ADDQ(p.bstride, p.b)
}

// transposeF16 emits the packing of four or eight lanes of float16 that are contiguous along k.
func transposeF16(c *build.Context, lanes int) {
	name := fmt.Sprintf("transposeF16AVX2x%d", lanes)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s sets dst[p·width + i] = src[i·stride + p] for i < %d and p < 8·blocks, blocks ≥ 1, for a src "+
			"of float16.", name, lanes))
	c.Pragma("noescape")
	c.SignatureExpr("func(blocks int, src *uint16, stride int, dst *float32, width int)")
	w := newWalker(c)
	c.SHRQ(operand.Imm(1), w.stride) // which newWalker takes for float32's
	c.SHRQ(operand.Imm(1), w.stride3)
	c.Label("loop")
	from := w.src
	for lane := 0; lane < lanes; lane += 4 {
		if lane > 0 {
			from = c.GP64()
			c.LEAQ(operand.Mem{Base: w.src, Index: w.stride, Scale: 4}, from)
		}
		var rows [4]reg.VecVirtual
		for i := range rows {
			rows[i] = c.YMM()
			c.VCVTPH2PS(at(from, w.stride, w.stride3, i), rows[i])
		}
		low01, high01, low23, high23 := c.YMM(), c.YMM(), c.YMM(), c.YMM()
		c.VUNPCKLPS(rows[1], rows[0], low01)
		c.VUNPCKHPS(rows[1], rows[0], high01)
		c.VUNPCKLPS(rows[3], rows[2], low23)
		c.VUNPCKHPS(rows[3], rows[2], high23)
		// columns i and 4+i, in the two halves of the registers
		cols := []reg.VecVirtual{c.YMM(), c.YMM(), c.YMM(), c.YMM()}
		c.VUNPCKLPD(low23, low01, cols[0])
		c.VUNPCKHPD(low23, low01, cols[1])
		c.VUNPCKLPD(high23, high01, cols[2])
		c.VUNPCKHPD(high23, high01, cols[3])
		upper := c.GP64()
		c.LEAQ(operand.Mem{Base: w.dst, Index: w.width, Scale: 4}, upper)
		for i, col := range cols {
			to, second := at(w.dst, w.width, w.width3, i), at(upper, w.width, w.width3, i)
			to.Disp, second.Disp = 4*lane, 4*lane
			c.VMOVUPS(col.AsX(), to)
			c.VEXTRACTF128(operand.Imm(1), col, second)
		}
	}
	for range 2 {
		c.LEAQ(operand.Mem{Base: w.dst, Index: w.width, Scale: 4}, w.dst)
	}
	c.ADDQ(operand.Imm(16), w.src)
	c.DECQ(w.blocks)
	c.JNE(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}
