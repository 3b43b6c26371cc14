// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// unroll is the number of products per turn of the main loop.
const unroll = 2

// family is the set of kernels for one vector width. The largest tile is mr rows by vectors vector registers.
type family struct {
	name    string
	lanes   int // elements per vector
	mr      int
	vectors int
	double  bool // elements are float64, not float32
}

var (
	// 24 accumulators, 2 vectors of B and a broadcast element of A: 27 of 32 registers.
	avx512 = family{name: "AVX512", lanes: 16, mr: 12, vectors: 2}
	// 12 accumulators, 2 vectors of B and 2 broadcast elements of A: all 16 registers.
	avx2 = family{name: "AVX2", lanes: 8, mr: 6, vectors: 2}
)

// size is that of an element, in bytes.
func (f family) size() int {
	if f.double {
		return 8
	}
	return 4
}

// bytes is the size of a vector.
func (f family) bytes() int { return f.size() * f.lanes }

// register returns a fresh vector register of the family's width.
func (f family) register(c *build.Context) reg.VecVirtual {
	if f.bytes() == 64 {
		return c.ZMM()
	}
	return c.YMM()
}

// zero clears a vector register.
func (f family) zero(c *build.Context, v reg.VecVirtual) {
	if f.bytes() == 64 {
		c.VPXORD(v, v, v)
		return
	}
	c.VXORPS(v, v, v)
}

// pointers walk through the operands of one kernel; strides are in bytes.
type pointers struct {
	k, a, b, bstride, cc, cstride reg.GPVirtual
}

// newPointers emits the reading of a kernel's parameters.
func newPointers(c *build.Context, f family) pointers {
	p := pointers{k: c.GP64(), a: c.GP64(), b: c.GP64(), bstride: c.GP64(), cc: c.GP64(), cstride: c.GP64()}
	c.Load(c.Param("k"), p.k)
	c.Load(c.Param("a"), p.a)
	c.Load(c.Param("b"), p.b)
	c.Load(c.Param("bstride"), p.bstride)
	c.Load(c.Param("c"), p.cc)
	c.Load(c.Param("cstride"), p.cstride)
	f.scale(c, p.bstride)
	f.scale(c, p.cstride)
	return p
}

// zeros emits the clearing of a register for each vector of a tile.
func zeros(c *build.Context, f family, rows, vectors int) [][]reg.VecVirtual {
	sums := make([][]reg.VecVirtual, rows)
	for i := range sums {
		sums[i] = make([]reg.VecVirtual, vectors)
		for v := range sums[i] {
			sums[i][v] = f.register(c)
			f.zero(c, sums[i][v])
		}
	}
	return sums
}

// micro emits the kernel for a tile of rows rows: engine.micro without its first parameter.
func micro(c *build.Context, f family, rows int) {
	name := fmt.Sprintf("micro%sx%d", f.name, rows)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes %d×(%d·blocks) elements of C = A·B, or C = D + A·B if d is not nil, over k ≥ 1 "+
			"products, blocks ≥ 1.", name, rows, f.vectors*f.lanes),
		fmt.Sprintf("A is packed: a[%d·p + i]. Row p of B is at b[p·bstride], that of the next block after the last "+
			"row of this one; row i of C is at c[i·cstride], of D at d[i·dstride].", rows))
	c.Pragma("noescape")
	c.SignatureExpr(f.signature("func(k int, a, b *T, bstride int, c *T, cstride int, d *T, dstride, blocks int)"))

	p := newPointers(c, f)
	blocks := c.GP64()
	c.Load(c.Param("blocks"), blocks)

	c.Label("block")
	inner := pointers{k: c.GP64(), a: c.GP64(), b: p.b, bstride: p.bstride}
	c.MOVQ(p.k, inner.k)
	c.MOVQ(p.a, inner.a)
	prefetchTile(c, f, p, rows)
	sums := zeros(c, f, rows, f.vectors)
	products(c, f, inner, sums)
	storeBlock(c, f, p, sums)
	c.DECQ(blocks)
	c.JNE(operand.LabelRef("block"))
	c.VZEROUPPER()
	c.RET()
}

// prefetchTile emits the prefetching of a tile of C.
func prefetchTile(c *build.Context, f family, p pointers, rows int) {
	row := c.GP64()
	c.MOVQ(p.cc, row)
	for i := range rows {
		c.PREFETCHT0(operand.Mem{Base: row})
		c.PREFETCHT0(operand.Mem{Base: row, Disp: f.vectors*f.bytes() - 4})
		if i+1 < rows {
			c.ADDQ(p.cstride, row)
		}
	}
}

// products emits the loops over k.
func products(c *build.Context, f family, p pointers, sums [][]reg.VecVirtual) {
	c.CMPQ(p.k, operand.Imm(unroll))
	c.JL(operand.LabelRef("tail"))
	c.Label("loop")
	for range unroll {
		product(c, f, p, sums)
	}
	c.SUBQ(operand.Imm(unroll), p.k)
	c.CMPQ(p.k, operand.Imm(unroll))
	c.JGE(operand.LabelRef("loop"))
	c.Label("tail")
	c.TESTQ(p.k, p.k)
	c.JE(operand.LabelRef("store"))
	c.Label("single")
	product(c, f, p, sums)
	c.DECQ(p.k)
	c.JNE(operand.LabelRef("single"))
}

// product emits the addition of one column of A times one row of B, and moves on to the next.
func product(c *build.Context, f family, p pointers, sums [][]reg.VecVirtual) {
	b := make([]reg.VecVirtual, f.vectors)
	for v := range b {
		b[v] = f.register(c)
		c.VMOVUPS(operand.Mem{Base: p.b, Disp: v * f.bytes()}, b[v])
	}
	for i := range sums {
		x := f.register(c)
		f.broadcast(c, operand.Mem{Base: p.a, Disp: f.size() * i}, x)
		for v := range b {
			f.fma(c, b[v], x, sums[i][v])
		}
	}
	c.ADDQ(operand.Imm(uint64(f.size()*len(sums))), p.a)
	c.ADDQ(p.bstride, p.b)
}

// storeBlock emits the writing of the sums to C, with D added if there is one, and moves on to C's next block of columns.
// All of D is read before anything is written: a read that waits for an earlier write to the same place of another page
// would wait here in each row of a C whose rows are a multiple of 4 KiB apart.
func storeBlock(c *build.Context, f family, p pointers, sums [][]reg.VecVirtual) {
	c.Label("store")
	row, d := c.GP64(), c.GP64()
	c.MOVQ(p.cc, row)
	c.Load(c.Param("d"), d)
	c.TESTQ(d, d)
	c.JE(operand.LabelRef("write"))
	start := c.GP64()
	c.Load(c.Param("c"), start)
	c.SUBQ(start, d)
	c.ADDQ(row, d) // as far into D as row is into C
	addRows(c, f, d, sums)
	c.Label("write")
	writeRows(c, f, row, p.cstride, sums)
	c.ADDQ(operand.U32(len(sums[0])*f.bytes()), p.cc)
}

// addRows emits the addition of rows of D, from d on, to the sums; it moves d.
func addRows(c *build.Context, f family, d reg.GPVirtual, sums [][]reg.VecVirtual) {
	dstride := c.GP64()
	c.Load(c.Param("dstride"), dstride)
	f.scale(c, dstride)
	for _, sum := range sums {
		for v, x := range sum {
			f.add(c, operand.Mem{Base: d, Disp: v * f.bytes()}, x, x)
		}
		c.ADDQ(dstride, d)
	}
}

// writeRows emits the writing of the sums to rows of C from row on, which it moves.
func writeRows(c *build.Context, f family, row, stride reg.GPVirtual, sums [][]reg.VecVirtual) {
	for _, sum := range sums {
		for v, x := range sum {
			c.VMOVUPS(x, operand.Mem{Base: row, Disp: v * f.bytes()})
		}
		c.ADDQ(stride, row)
	}
}
