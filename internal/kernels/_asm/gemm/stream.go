// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

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

// streamSize is the size of a stream kernel: it computes least to most rows of blocks that are so many vectors wide.
type streamSize struct{ vectors, least, most int }

// streamSizes are those of the stream kernels: what the registers hold.
func streamSizes(f family) []streamSize {
	if f.lanes == 16 {
		return []streamSize{{16, 1, 1}, {12, 2, 2}, {8, 3, 3}, {6, 4, 4}, {4, 5, 6}, {3, 7, 8}}
	}
	return []streamSize{{8, 1, 1}, {6, 2, 2}, {4, 3, 3}, {3, 4, 4}}
}

// stream emits the kernels that read B where it lies, each row once and as widely as the sums of so few rows of A fit
// into registers.
func stream(c *build.Context, f family) {
	for _, size := range streamSizes(f) {
		streamOf(c, f, "", size, func() streamed {
			return streamed{product: func(p pointers, sums [][]reg.VecVirtual) { streamProduct(c, f, p, sums) },
				row: func(p pointers) (bs []reg.VecVirtual) {
					for v := range size.vectors {
						bs = append(bs, f.register(c))
						c.VMOVUPS(operand.Mem{Base: p.b, Disp: v * f.bytes()}, bs[v])
					}
					return bs
				}}
		})
	}
}

// streamed is what emits the parts of a stream kernel.
type streamed struct {
	product func(pointers, [][]reg.VecVirtual)   // adds a product, in a kernel for one number of rows
	row     func(pointers) (bs []reg.VecVirtual) // reads a row of B, in other kernels
	end     func([][]reg.VecVirtual)             // ends the sums; nil: nothing is left to do
}

// streamOf emits a stream kernel for a B of float32, "", or a half type, whose begin emits what comes before the loops.
func streamOf(c *build.Context, f family, of string, size streamSize, begin func() streamed) {
	width := size.vectors * f.lanes
	name := fmt.Sprintf("stream%s%sx%d", of, f.name, size.most)
	signature, elements, bytes := strings.ReplaceAll(directHalf, "uint16", "float32"), "", 4*width
	if of != "" {
		signature, elements, bytes = directHalf, ", for a B of "+halfNames[of], 2*width
	}
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes rows×(%d·blocks) elements of C = A·B, or C = D + A·B if d is not nil, over k ≥ 1 "+
			"products, %d ≤ rows ≤ %d, blocks ≥ 1%s.", name, width, size.least, size.most, elements),
		"A is packed: a[rows·p + i]. Row p of B is at b[p·bstride], row i of C at c[i·cstride], of D at d[i·dstride].")
	c.Pragma("noescape")
	c.SignatureExpr(strings.Replace(signature, "func(k", "func(rows, k", 1))
	rows := upTo{least: size.least, most: size.most}
	var column reg.GPVirtual // of A, in bytes
	if rows.least < rows.most {
		rows.n, column = c.GP64(), c.GP64()
		c.Load(c.Param("rows"), rows.n)
		c.MOVQ(rows.n, column)
		c.SHLQ(operand.Imm(2), column)
	}
	first, stride, distance := c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("b"), first)
	c.Load(c.Param("bstride"), stride)
	c.SHLQ(operand.Imm(uint64(bytes/width/2)), stride)
	c.IMUL3Q(operand.Imm(uint64(max(streamPrefetch, streamBytes/bytes))), stride, distance)
	c.TESTQ(operand.U32(4095), stride)
	c.JNE(operand.LabelRef("begin"))
	c.IMUL3Q(operand.Imm(streamPrefetch), stride, distance)
	c.Label("begin")
	kernel := begin()

	c.Label("block")
	inner := pointers{k: c.GP64(), a: c.GP64(), b: c.GP64(), bstride: stride}
	c.Load(c.Param("k"), inner.k)
	c.Load(c.Param("a"), inner.a)
	c.MOVQ(first, inner.b)
	sums := zeros(c, f, size.most, size.vectors)
	c.Label("loop")
	next := c.GP64()
	c.LEAQ(operand.Mem{Base: inner.b, Index: distance, Scale: 1}, next)
	for offset := 0; offset < bytes; offset += 64 {
		c.PREFETCHT0(operand.Mem{Base: next, Disp: offset})
	}
	if rows.n == nil {
		kernel.product(inner, sums)
	} else {
		bs := kernel.row(inner)
		rows.each(c, "added", func(i int) {
			x := f.register(c)
			c.VBROADCASTSS(operand.Mem{Base: inner.a, Disp: 4 * i}, x)
			for v, b := range bs {
				c.VFMADD231PS(b, x, sums[i][v])
			}
		})
		c.ADDQ(column, inner.a)
		c.ADDQ(stride, inner.b)
	}
	c.DECQ(inner.k)
	c.JNE(operand.LabelRef("loop"))

	if kernel.end != nil {
		kernel.end(sums)
	}
	rows.store(c, f, sums)
	c.ADDQ(operand.U32(bytes), first)
	nextBlock(c)
	c.VZEROUPPER()
	c.RET()
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
