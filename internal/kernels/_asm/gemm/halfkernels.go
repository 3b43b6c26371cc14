// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A bfloat16 is the upper half of a float32. So one shift widens those at even places of a vector and one mask those at
// odd places, and a square of pairs is transposed as one of float32 is.

const directHalf = "func(k int, a *float32, b *uint16, bstride int, c *float32, cstride int, d *float32, dstride, " +
	"blocks int)"

// halfNames are the names of the half types by those of their kernels.
var halfNames = map[string]string{"BF16": "bfloat16", "F16": "float16"}

// halves emits the kernels for operands of half types.
func halves(c *build.Context) {
	for _, f := range []family{avx512, avx2} {
		streamBF16(c, f)
		dots(c, f, "BF16")
		copyRowsHalf(c, f, "BF16")
		copyPanelsHalf(c, f, "BF16", "A", f.mr)
		copyPanelsHalf(c, f, "BF16", "B", f.vectors*f.lanes)
		copyTallHalf(c, f, "BF16")
	}
	transposePairs(c, 4)
	transposePairs(c, 8)
	transposePairs16(c)
	transposePairs12(c)
	float16(c)
	pairs(c)
}

// oddMask emits the mask of the odd places of a vector of bfloat16.
func (f family) oddMask(c *build.Context) reg.VecVirtual {
	mask := f.register(c)
	if f.lanes == 16 {
		c.VPTERNLOGD(operand.Imm(0xff), mask, mask, mask)
	} else {
		c.VPCMPEQD(mask, mask, mask)
	}
	c.VPSLLD(operand.Imm(16), mask, mask)
	return mask
}

// widen emits the conversion of the pairs in x: the even places go to a new register and the odd ones stay in x.
func (f family) widen(c *build.Context, x, mask reg.VecVirtual) (even, odd reg.VecVirtual) {
	even = f.register(c)
	c.VPSLLD(operand.Imm(16), x, even)
	if f.lanes == 16 {
		c.VPANDD(x, mask, x)
	} else {
		c.VPAND(x, mask, x)
	}
	return even, x
}

// streamSizesBF16 is streamSizes for a B of bfloat16: even numbers of vectors, since a vector of B widens to two.
func streamSizesBF16(f family) []streamSize {
	if f.lanes == 16 {
		return []streamSize{{16, 1, 1}, {12, 2, 2}, {8, 3, 3}, {6, 4, 4}, {4, 5, 6}, {2, 7, 8}}
	}
	return []streamSize{{8, 1, 1}, {4, 2, 2}, {4, 3, 3}, {2, 4, 4}}
}

// streamBF16 emits stream for a B of bfloat16. Of each pair of vectors of sums the first are those of the even columns.
func streamBF16(c *build.Context, f family) {
	for _, size := range streamSizesBF16(f) {
		streamOf(c, f, "BF16", size, func() streamed {
			mask := f.oddMask(c)
			return streamed{
				product: func(p pointers, sums [][]reg.VecVirtual) { streamProductBF16(c, f, p, mask, sums) },
				row: func(p pointers) (bs []reg.VecVirtual) {
					for v := range size.vectors / 2 {
						pairs := f.register(c)
						c.VMOVUPS(operand.Mem{Base: p.b, Disp: v * f.bytes()}, pairs)
						even, odd := f.widen(c, pairs, mask)
						bs = append(bs, even, odd)
					}
					return bs
				},
				end: func(sums [][]reg.VecVirtual) {
					for _, sum := range sums {
						for v := 0; v < len(sum); v += 2 {
							sum[v], sum[v+1] = f.interleaved(c, sum[v], sum[v+1])
						}
					}
				},
			}
		})
	}
}

// streamProductBF16 is streamProduct for a B of bfloat16. Of each pair of vectors of sums the first are those of the
// even columns.
func streamProductBF16(c *build.Context, f family, p pointers, mask reg.VecVirtual, sums [][]reg.VecVirtual) {
	rows, vectors := len(sums), len(sums[0])
	element := func(i int) reg.VecVirtual {
		x := f.register(c)
		c.VBROADCASTSS(operand.Mem{Base: p.a, Disp: 4 * i}, x)
		return x
	}
	kept := rows*vectors+rows+3 <= 2*f.lanes // of 32 or 16 registers
	var xs []reg.VecVirtual
	for i := 0; kept && i < rows; i++ {
		xs = append(xs, element(i))
	}
	for v := 0; v < vectors; v += 2 {
		pairs := f.register(c)
		c.VMOVUPS(operand.Mem{Base: p.b, Disp: v / 2 * f.bytes()}, pairs)
		even, odd := f.widen(c, pairs, mask)
		for i := range rows {
			var x reg.VecVirtual
			if kept {
				x = xs[i]
			} else {
				x = element(i)
			}
			c.VFMADD231PS(even, x, sums[i][v])
			c.VFMADD231PS(odd, x, sums[i][v+1])
		}
	}
	c.ADDQ(operand.Imm(uint64(4*rows)), p.a)
	c.ADDQ(p.bstride, p.b)
}

// interleaved emits the merging of two vectors: the first of even, the first of odd, the second of even and so on.
func (f family) interleaved(c *build.Context, even, odd reg.VecVirtual) (low, high reg.VecVirtual) {
	first, second := f.register(c), f.register(c)
	c.VUNPCKLPS(odd, even, first)
	c.VUNPCKHPS(odd, even, second)
	if f.lanes == 8 {
		c.VPERM2F128(operand.Imm(0x20), second, first, even)
		c.VPERM2F128(operand.Imm(0x31), second, first, odd)
		return even, odd
	}
	c.VSHUFF32X4(operand.Imm(0x44), second, first, even) // parts 0 and 1 of both
	c.VSHUFF32X4(operand.Imm(0xee), second, first, odd)  // parts 2 and 3 of both
	c.VSHUFF32X4(operand.Imm(0xd8), even, even, even)
	c.VSHUFF32X4(operand.Imm(0xd8), odd, odd, odd)
	return even, odd
}

// copier walks through the rows of a panel that is packed; strides are in bytes.
type copier struct {
	k, src, stride, dst, next reg.GPVirtual
	of                        string
}

// newCopier emits the start of a kernel that packs k rows of a half type.
func newCopier(c *build.Context, of, name string, width int) copier {
	c.Function(name)
	c.Doc(fmt.Sprintf("%s sets dst[%d·p + i] = src[p·stride + i] for i < %d and p < k, k ≥ 1, for a src of %s.", name,
		width, width, halfNames[of]))
	c.Pragma("noescape")
	c.SignatureExpr("func(k int, src *uint16, stride int, dst *float32)")
	w := copier{c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64(), of}
	c.Load(c.Param("k"), w.k)
	c.Load(c.Param("src"), w.src)
	c.Load(c.Param("stride"), w.stride)
	c.Load(c.Param("dst"), w.dst)
	c.SHLQ(operand.Imm(1), w.stride)
	c.IMUL3Q(operand.Imm(copyPrefetch), w.stride, w.next)
	c.ADDQ(w.src, w.next)
	c.Label("loop")
	c.PREFETCHT0(operand.Mem{Base: w.next})
	return w
}

// part emits the packing of as many elements of a row as x has lanes, from element i on.
func (w copier) part(c *build.Context, i int, x reg.VecVirtual) {
	w.widen(c, operand.Mem{Base: w.src, Disp: 2 * i}, x)
	c.VMOVUPS(x, operand.Mem{Base: w.dst, Disp: 4 * i})
}

// pair emits the packing of two elements of a row, from element i on.
func (w copier) pair(c *build.Context, i int) {
	w.two(c, operand.Mem{Base: w.src, Disp: 2 * i}, operand.Mem{Base: w.dst, Disp: 4 * i})
}

// two emits the conversion of two elements.
func (w copier) two(c *build.Context, from, to operand.Mem) {
	two := c.XMM()
	c.VMOVD(from, two)
	w.widen(c, two, two)
	c.VMOVQ(two, to)
}

// widen emits the conversion of as many elements as x has lanes.
func (w copier) widen(c *build.Context, from operand.Op, x reg.VecVirtual) {
	if w.of == "F16" {
		c.VCVTPH2PS(from, x)
		return
	}
	c.VPMOVZXWD(from, x)
	c.VPSLLD(operand.Imm(16), x, x)
}

// end emits the way to the next row.
func (w copier) end(c *build.Context, width int) {
	c.ADDQ(w.stride, w.src)
	c.ADDQ(w.stride, w.next)
	c.ADDQ(operand.Imm(uint64(4*width)), w.dst)
	c.DECQ(w.k)
	c.JNE(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}

// copyRowsHalf emits the packing of a full panel of B whose rows are contiguous.
func copyRowsHalf(c *build.Context, f family, of string) {
	width := f.vectors * f.lanes
	w := newCopier(c, of, "copyRows"+of+f.name, width)
	for v := range f.vectors {
		w.part(c, v*f.lanes, f.register(c))
	}
	w.end(c, width)
}

// copyPanelsHalf emits the packing of several full panels, of so many lanes that are contiguous.
func copyPanelsHalf(c *build.Context, f family, of, operands string, lanes int) {
	name := "copyPanels" + operands + of + f.name
	c.Function(name)
	c.Doc(fmt.Sprintf("%s sets dst[pitch·j + %d·p + i] = src[p·stride + %d·j + i] for i < %d, j < %d and p < k, k ≥ "+
		"1, for a src of %s.", name, lanes, lanes, lanes, together, halfNames[of]))
	c.Pragma("noescape")
	c.SignatureExpr("func(k int, src *uint16, stride int, dst *float32, pitch int)")
	w := copier{c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64(), of}
	pitch := c.GP64()
	c.Load(c.Param("k"), w.k)
	c.Load(c.Param("src"), w.src)
	c.Load(c.Param("stride"), w.stride)
	c.Load(c.Param("pitch"), pitch)
	c.SHLQ(operand.Imm(1), w.stride)
	c.SHLQ(operand.Imm(2), pitch)
	c.IMUL3Q(operand.Imm(togetherPrefetch), w.stride, w.next)
	c.ADDQ(w.src, w.next)
	panels := panelPointers(c, pitch)
	c.Label("loop")
	for offset := 0; offset < 2*together*lanes; offset += 64 {
		c.PREFETCHT0(operand.Mem{Base: w.next, Disp: offset})
	}
	for j, panel := range panels {
		for i := 0; i < lanes; {
			n := f.lanes
			for i+n > lanes {
				n /= 2
			}
			from, to := operand.Mem{Base: w.src, Disp: 2 * (j*lanes + i)}, operand.Mem{Base: panel, Disp: 4 * i}
			if n == 2 {
				w.two(c, from, to)
			} else {
				x := map[int]func() reg.VecVirtual{4: c.XMM, 8: c.YMM, 16: c.ZMM}[n]()
				w.widen(c, from, x)
				c.VMOVUPS(x, to)
			}
			i += n
		}
		c.ADDQ(operand.Imm(uint64(4*lanes)), panel)
	}
	c.ADDQ(w.stride, w.src)
	c.ADDQ(w.stride, w.next)
	c.DECQ(w.k)
	c.JNE(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}

// copyTallHalf emits the packing of a full panel of A whose columns are contiguous, of 12 or 6 rows.
func copyTallHalf(c *build.Context, f family, of string) {
	w := newCopier(c, of, fmt.Sprintf("copyTall%s%sx%d", of, f.name, f.mr), f.mr)
	if f.mr == 12 {
		w.part(c, 0, c.YMM())
		w.part(c, 8, c.XMM())
	} else {
		w.part(c, 0, c.XMM())
		w.pair(c, 4)
	}
	w.end(c, f.mr)
}

// transposePairs emits the packing of four or eight lanes of bfloat16 that are contiguous along k.
func transposePairs(c *build.Context, lanes int) {
	name := fmt.Sprintf("transposeBF16AVX2x%d", lanes)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s sets dst[p·width + i] = src[i·stride + p] for i < %d and p < 8·blocks, blocks ≥ 1, for a src "+
			"of bfloat16.", name, lanes))
	c.Pragma("noescape")
	c.SignatureExpr("func(blocks int, src *uint16, stride int, dst *float32, width int)")
	w := newWalker(c)
	c.SHRQ(operand.Imm(1), w.stride) // which newWalker takes for float32's
	c.SHRQ(operand.Imm(1), w.stride3)
	fresh := c.XMM
	if lanes == 8 {
		fresh = c.YMM
	}
	upper, mask := c.GP64(), fresh()
	c.LEAQ(operand.Mem{Base: w.src, Index: w.stride, Scale: 4}, upper)
	c.VPCMPEQD(mask, mask, mask)
	c.VPSLLD(operand.Imm(16), mask, mask)
	c.Label("loop")
	rows := make([]reg.VecVirtual, 4)
	for i := range rows {
		low := c.XMM()
		c.VMOVUPS(at(w.src, w.stride, w.stride3, i), low)
		rows[i] = low
		if lanes == 8 {
			rows[i] = c.YMM()
			c.VINSERTF128(operand.Imm(1), at(upper, w.stride, w.stride3, i), low.AsY(), rows[i])
		}
	}
	c.ADDQ(operand.Imm(16), upper)
	low01, high01, low23, high23 := fresh(), fresh(), fresh(), fresh()
	c.VUNPCKLPS(rows[1], rows[0], low01)
	c.VUNPCKHPS(rows[1], rows[0], high01)
	c.VUNPCKLPS(rows[3], rows[2], low23)
	c.VUNPCKHPS(rows[3], rows[2], high23)
	for i, halves := range [][2]reg.VecVirtual{{low23, low01}, {high23, high01}} {
		for j := range 2 { // columns 4·i + 2·j and the next of the block of eight
			pairs, even := fresh(), fresh()
			if j == 0 {
				c.VUNPCKLPD(halves[0], halves[1], pairs)
			} else {
				c.VUNPCKHPD(halves[0], halves[1], pairs)
			}
			c.VPSLLD(operand.Imm(16), pairs, even)
			c.VPAND(pairs, mask, pairs)
			c.VMOVUPS(even, at(w.dst, w.width, w.width3, 2*j))
			c.VMOVUPS(pairs, at(w.dst, w.width, w.width3, 2*j+1))
		}
		if i == 0 {
			c.LEAQ(operand.Mem{Base: w.dst, Index: w.width, Scale: 4}, w.dst)
		}
	}
	c.LEAQ(operand.Mem{Base: w.dst, Index: w.width, Scale: 4}, w.dst)
	c.ADDQ(operand.Imm(16), w.src)
	c.DECQ(w.blocks)
	c.JNE(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}

// transposePairs16 emits the packing of a block of 16 lanes of 32 bfloat16.
func transposePairs16(c *build.Context) {
	c.Function("transposeBF16AVX512x16")
	c.Doc("transposeBF16AVX512x16 sets dst[p·width + i] = src[i·stride + p] for i < 16 and p < 32, for a src of " +
		"bfloat16.")
	c.Pragma("noescape")
	c.SignatureExpr("func(src *uint16, stride int, dst *float32, width int)")
	src, stride, dst, width := c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("src"), src)
	c.Load(c.Param("stride"), stride)
	c.Load(c.Param("dst"), dst)
	c.Load(c.Param("width"), width)
	c.SHLQ(operand.Imm(1), stride)
	c.SHLQ(operand.Imm(2), width)
	mask := avx512.oddMask(c)
	rows := make([]reg.VecVirtual, 16)
	for i := range rows {
		rows[i] = c.ZMM()
		c.VMOVUPS(operand.Mem{Base: src}, rows[i])
		c.ADDQ(stride, src)
	}
	for _, pairs := range transposed(c, avx512, rows) {
		even, odd := avx512.widen(c, pairs, mask)
		c.VMOVUPS(even, operand.Mem{Base: dst})
		c.ADDQ(width, dst)
		c.VMOVUPS(odd, operand.Mem{Base: dst})
		c.ADDQ(width, dst)
	}
	c.VZEROUPPER()
	c.RET()
}

// transposePairs12 emits the packing of a full panel of A of bfloat16, whose rows are contiguous: twelve of the sixteen
// lanes of a square, so that a row of it takes a whole cache line of each.
func transposePairs12(c *build.Context) {
	const lanes = 12
	c.Function("transposeBF16AVX512x12")
	c.Doc("transposeBF16AVX512x12 sets dst[12·p + i] = src[i·stride + p] for i < 12 and p < 32·blocks, blocks ≥ 1, " +
		"for a src of bfloat16.")
	c.Pragma("noescape")
	c.SignatureExpr("func(blocks int, src *uint16, stride int, dst *float32)")
	blocks, src, stride, dst, row := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("blocks"), blocks)
	c.Load(c.Param("src"), src)
	c.Load(c.Param("stride"), stride)
	c.Load(c.Param("dst"), dst)
	c.SHLQ(operand.Imm(1), stride)
	mask, word, some := avx512.oddMask(c), c.GP32(), c.K()
	c.MOVL(operand.U32(1<<lanes-1), word)
	c.KMOVW(word, some)
	c.Label("loop")
	c.MOVQ(src, row)
	rows := make([]reg.VecVirtual, 16)
	for i := range rows {
		rows[i] = c.ZMM()
		if i >= lanes {
			c.VPXORD(rows[i], rows[i], rows[i])
			continue
		}
		c.VMOVUPS(operand.Mem{Base: row}, rows[i])
		c.ADDQ(stride, row)
	}
	for p, pairs := range transposed(c, avx512, rows) {
		even, odd := avx512.widen(c, pairs, mask)
		c.VMOVUPS(even, some, operand.Mem{Base: dst, Disp: 4 * lanes * 2 * p})
		c.VMOVUPS(odd, some, operand.Mem{Base: dst, Disp: 4 * lanes * (2*p + 1)})
	}
	c.ADDQ(operand.Imm(64), src)
	c.ADDQ(operand.U32(4*lanes*32), dst)
	c.DECQ(blocks)
	c.JNE(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}
