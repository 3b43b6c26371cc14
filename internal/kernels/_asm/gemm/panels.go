// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// panelRows are the numbers of rows of the kernels that read A where it lies.
func panelRows(f family) []int {
	if f.lanes == 16 {
		return []int{12, 8, 4}
	}
	return []int{6, 4, 2}
}

// panels emits the kernels of panels.go.
func panels(c *build.Context, f family) {
	for _, n := range panelRows(f) {
		part := f
		part.mr = n
		if n != f.mr {
			rows(c, part, false)
		}
		tall(c, part, false)
	}
	unfold(c, f)
}

// tall emits the kernel that reads mr columns of A, whose rows are contiguous, where they lie: it multiplies by Aᵀ.
// prefetch is as for rows.
func tall(c *build.Context, f family, prefetch bool) {
	name := fmt.Sprintf("tall%sx%d%s", f.name, f.mr, prefetchSuffix(prefetch))
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s computes %d×(%d·blocks) elements of C = Aᵀ·B, or C = D + Aᵀ·B if d is not nil, over k ≥ 1 "+
			"products, blocks ≥ 1.", name, f.mr, f.vectors*f.lanes),
		"Row p of A is at a[p·astride], row p of B at b[p·bstride], that of the next block after the last row of "+
			"this one; row i of C is at c[i·cstride], of D at d[i·dstride].")
	c.Pragma("noescape")
	c.SignatureExpr(f.signature(placedSignature(prefetch)))

	p := newPointers(c, f)
	astride := c.GP64()
	c.Load(c.Param("astride"), astride)
	f.scale(c, astride)

	c.Label("block")
	inner := pointers{k: c.GP64(), a: c.GP64(), b: p.b, bstride: p.bstride}
	c.MOVQ(p.k, inner.k)
	c.MOVQ(p.a, inner.a)
	var requests prefetcher
	if prefetch {
		requests = newPrefetcher(c, f, p)
	} else {
		prefetchTile(c, f, p, f.mr)
	}
	sums := zeros(c, f, f.mr, f.vectors)
	tallLoop(c, f, inner, astride, sums, requests)
	storeBlock(c, f, p, sums)
	nextBlock(c)
	c.VZEROUPPER()
	c.RET()
}

// tallLoop emits the loops over k, with requests if they are of any kernel.
func tallLoop(c *build.Context, f family, p pointers, astride reg.GPVirtual, sums [][]reg.VecVirtual,
	requests prefetcher) {
	step := func(n int) {
		for range n {
			tallProduct(c, f, p, astride, sums)
		}
	}
	if requests.list != nil {
		requests.loop(c, p.k, step)
	} else {
		c.CMPQ(p.k, operand.Imm(unroll))
		c.JL(operand.LabelRef("tail"))
		c.Label("loop")
		step(unroll)
		c.SUBQ(operand.Imm(unroll), p.k)
		c.CMPQ(p.k, operand.Imm(unroll))
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

// tallProduct emits the addition of one row of A times one row of B, and moves on to the next.
func tallProduct(c *build.Context, f family, p pointers, astride reg.GPVirtual, sums [][]reg.VecVirtual) {
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
	c.ADDQ(astride, p.a)
	c.ADDQ(p.bstride, p.b)
}
