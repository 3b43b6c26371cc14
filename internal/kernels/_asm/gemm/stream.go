// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A stream kernel prefetches so many rows ahead, and so many bytes: fewer where the rows fall into the same places of a
// first-level cache, which would lose again what is prefetched early.
const (
	streamPrefetch = 4
	streamBytes    = 2048
)

// streamVectors is the width, in vectors, of the stream kernel for so many rows: what the registers hold, and no more
// than eight, which hide the latency of their sums and leave more pieces to hand out.
func streamVectors(f family) []int {
	if f.lanes == 16 {
		return []int{0, 16, 12, 8, 6, 4, 4, 3, 3}
	}
	return []int{0, 8, 6, 4, 3}
}

// stream emits the kernel that reads B where it lies, each row once and as widely as the sums of so few rows of A fit
// into registers.
func stream(c *build.Context, f family, rows int) {
	vectors := streamVectors(f)[rows]
	width := vectors * f.lanes
	name := fmt.Sprintf("stream%sx%d", f.name, rows)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes %d×(%d·blocks) elements of C = A·B, or C = D + A·B if d is not nil, over k ≥ 1 "+
			"products, blocks ≥ 1.", name, rows, width),
		fmt.Sprintf("A is packed: a[%d·p + i]. Row p of B is at b[p·bstride], row i of C at c[i·cstride], of D at "+
			"d[i·dstride].", rows))
	c.Pragma("noescape")
	c.SignatureExpr("func(k int, a, b *float32, bstride int, c *float32, cstride int, d *float32, dstride, blocks int)")
	p := newPointers(c, f)
	blocks, distance := c.GP64(), c.GP64()
	c.Load(c.Param("blocks"), blocks)
	c.IMUL3Q(operand.Imm(uint64(max(streamPrefetch, streamBytes/(4*width)))), p.bstride, distance)
	c.TESTQ(operand.U32(4095), p.bstride)
	c.JNE(operand.LabelRef("block"))
	c.IMUL3Q(operand.Imm(streamPrefetch), p.bstride, distance)

	c.Label("block")
	inner := pointers{k: c.GP64(), a: c.GP64(), b: c.GP64(), bstride: p.bstride}
	c.MOVQ(p.k, inner.k)
	c.MOVQ(p.a, inner.a)
	c.MOVQ(p.b, inner.b)
	sums := zeros(c, f, rows, vectors)
	c.Label("loop")
	next := c.GP64()
	c.LEAQ(operand.Mem{Base: inner.b, Index: distance, Scale: 1}, next)
	for offset := 0; offset < 4*width; offset += 64 {
		c.PREFETCHT0(operand.Mem{Base: next, Disp: offset})
	}
	streamProduct(c, f, inner, sums)
	c.DECQ(inner.k)
	c.JNE(operand.LabelRef("loop"))

	storeBlock(c, f, p, sums)
	c.ADDQ(operand.U32(4*width), p.b)
	c.DECQ(blocks)
	c.JNE(operand.LabelRef("block"))
	c.VZEROUPPER()
	c.RET()
}

// storeBlock emits the two ways of writing the sums to C, and moves on to its next block of columns.
func storeBlock(c *build.Context, f family, p pointers, sums [][]reg.VecVirtual) {
	c.Label("store")
	row, d := c.GP64(), c.GP64()
	c.MOVQ(p.cc, row)
	c.Load(c.Param("d"), d)
	c.TESTQ(d, d)
	c.JE(operand.LabelRef("overwrite"))
	start := c.GP64()
	c.Load(c.Param("c"), start)
	c.SUBQ(start, d)
	c.ADDQ(row, d) // as far into D as row is into C
	addRows(c, f, row, p.cstride, d, sums)
	c.JMP(operand.LabelRef("next"))
	c.Label("overwrite")
	writeRows(c, f, row, p.cstride, sums)
	c.Label("next")
	c.ADDQ(operand.U32(len(sums[0])*f.bytes()), p.cc)
}

// streamProduct emits the addition of one column of A times one row of B. The operand that has fewer registers stays in
// them.
func streamProduct(c *build.Context, f family, p pointers, sums [][]reg.VecVirtual) {
	rows, vectors := len(sums), len(sums[0])
	broadcast := func(i int) reg.VecVirtual {
		x := f.register(c)
		c.VBROADCASTSS(operand.Mem{Base: p.a, Disp: 4 * i}, x)
		return x
	}
	at := func(v int) operand.Mem { return operand.Mem{Base: p.b, Disp: v * f.bytes()} }
	switch {
	case rows == 1:
		x := broadcast(0)
		for v := range vectors {
			c.VFMADD231PS(at(v), x, sums[0][v])
		}
	case rows <= vectors:
		var xs []reg.VecVirtual
		for i := range rows {
			xs = append(xs, broadcast(i))
		}
		for v := range vectors {
			b := f.register(c)
			c.VMOVUPS(at(v), b)
			for i, x := range xs {
				c.VFMADD231PS(b, x, sums[i][v])
			}
		}
	default:
		var bs []reg.VecVirtual
		for v := range vectors {
			b := f.register(c)
			c.VMOVUPS(at(v), b)
			bs = append(bs, b)
		}
		for i := range rows {
			x := broadcast(i)
			for v, b := range bs {
				c.VFMADD231PS(b, x, sums[i][v])
			}
		}
	}
	c.ADDQ(operand.Imm(uint64(4*rows)), p.a)
	c.ADDQ(p.bstride, p.b)
}
