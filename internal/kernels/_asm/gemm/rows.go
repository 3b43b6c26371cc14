// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// rowsUnroll is the number of products per turn of the main loop of a kernel that reads A where it lies.
const rowsUnroll = 4

// rowsOf holds the addresses of rows of A: every third has a pointer, and those between are reached by the stride.
type rowsOf struct {
	third  []reg.GPVirtual
	stride reg.GPVirtual // in bytes
	size   int           // of an element
}

// at is element p, from the pointers on, of row i.
func (r rowsOf) at(i, p int) operand.Mem {
	m := operand.Mem{Base: r.third[i/3], Disp: r.size * p}
	if i%3 > 0 {
		m.Index, m.Scale = r.stride, uint8(i%3)
	}
	return m
}

// start emits the setting of the pointers to the first of so many rows, which it moves, and to every third after it.
func (r *rowsOf) start(c *build.Context, first reg.GPVirtual, rows int) {
	for i := 0; i < rows; i += 3 {
		at := c.GP64()
		c.MOVQ(first, at)
		r.third = append(r.third, at)
		if i+3 < rows {
			c.LEAQ(operand.Mem{Base: first, Index: r.stride, Scale: 2}, first)
			c.ADDQ(r.stride, first)
		}
	}
}

// rows emits the kernel that reads mr rows of A where they lie, and with prefetch prefetches what comes later while it
// computes.
func rows(c *build.Context, f family, prefetch bool) {
	name := fmt.Sprintf("rows%sx%d%s", f.name, f.mr, prefetchSuffix(prefetch))
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes %d×(%d·blocks) elements of C = A·B, or C = D + A·B if d is not nil, over k ≥ 1 "+
			"products, blocks ≥ 1.", name, f.mr, f.vectors*f.lanes),
		"Row i of A is at a[i·astride], row p of B at b[p·bstride], that of the next block after the last row of "+
			"this one; row i of C is at c[i·cstride], of D at d[i·dstride].")
	c.Pragma("noescape")
	c.SignatureExpr(f.signature(placedSignature(prefetch)))

	p := newPointers(c, f)
	a := rowsOf{stride: c.GP64(), size: f.size()}
	c.Load(c.Param("astride"), a.stride)
	f.scale(c, a.stride)

	c.Label("block")
	var requests prefetcher
	if prefetch {
		requests = newPrefetcher(c, f, p)
	} else {
		prefetchTile(c, f, p, f.mr)
	}
	k, row := c.GP64(), c.GP64() // read again for each block: the rows need the registers
	c.Load(c.Param("k"), k)
	c.Load(c.Param("a"), row)
	a.third = nil
	a.start(c, row, f.mr)
	sums := zeros(c, f, f.mr, f.vectors)
	rowsLoop(c, f, pointers{k: k, b: p.b, bstride: p.bstride}, a, sums, requests)
	storeBlock(c, f, p, sums)
	nextBlock(c)
	c.VZEROUPPER()
	c.RET()
}

// nextBlock emits the end of the loop over blocks, whose number is counted where it was passed: kernels for large tiles
// need the registers.
func nextBlock(c *build.Context) {
	blocks, err := c.Param("blocks").Resolve()
	if err != nil {
		panic(err)
	}
	c.DECQ(blocks.Addr)
	c.JNE(operand.LabelRef("block"))
}

// rowsLoop emits the loops over k, with requests if they are of any kernel.
func rowsLoop(c *build.Context, f family, p pointers, a rowsOf, sums [][]reg.VecVirtual, requests prefetcher) {
	step := func(n int) {
		for at := range n {
			rowsProduct(c, f, p, a, at, sums, nil)
		}
		for _, r := range a.third {
			c.ADDQ(operand.Imm(uint64(a.size*n)), r)
		}
	}
	if requests.list != nil {
		requests.loop(c, p.k, step)
	} else {
		c.CMPQ(p.k, operand.Imm(rowsUnroll))
		c.JL(operand.LabelRef("tail"))
		c.Label("loop")
		step(rowsUnroll)
		c.SUBQ(operand.Imm(rowsUnroll), p.k)
		c.CMPQ(p.k, operand.Imm(rowsUnroll))
		c.JGE(operand.LabelRef("loop"))
	}
	c.Label("tail")
	c.TESTQ(p.k, p.k)
	c.JE(operand.LabelRef("store"))
	c.Label("single")
	step(1)
	c.DECQ(p.k)
	c.JNE(operand.LabelRef("single"))
}

// rowsProduct emits the addition of a column of A, at places from the pointers on, times one row of B, and moves on to
// B's next. Half of that row's vectors lie second bytes behind the others, unless that is nil.
func rowsProduct(c *build.Context, f family, p pointers, a rowsOf, at int, sums [][]reg.VecVirtual,
	second reg.GPVirtual) {
	b := make([]reg.VecVirtual, f.vectors)
	for v := range b {
		m := operand.Mem{Base: p.b, Disp: v * f.bytes()}
		if second != nil && v >= len(b)/2 {
			m = operand.Mem{Base: p.b, Index: second, Scale: 1, Disp: (v - len(b)/2) * f.bytes()}
		}
		b[v] = f.register(c)
		c.VMOVUPS(m, b[v])
	}
	addColumn(c, f, a, at, b, sums)
	c.ADDQ(p.bstride, p.b)
}

// addColumn emits the addition of a column of A times vectors of B.
func addColumn(c *build.Context, f family, a rowsOf, at int, b []reg.VecVirtual, sums [][]reg.VecVirtual) {
	for i := range sums {
		x := f.register(c)
		f.broadcast(c, a.at(i, at), x)
		for v := range b {
			f.fma(c, b[v], x, sums[i][v])
		}
	}
}
