// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/bits"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// prefetchSuffix ends the names of kernels that prefetch.
func prefetchSuffix(prefetch bool) string {
	if prefetch {
		return "Prefetch"
	}
	return ""
}

// placedSignature is that of a kernel that reads A where it lies.
func placedSignature(prefetch bool) string {
	const placed = "func(k int, a *T, astride int, b *T, bstride int, c *T, cstride int, d *T, dstride, blocks int"
	if prefetch {
		return placed + ", next *uintptr)"
	}
	return placed + ")"
}

// prefetcher is a loop over k that prefetches while it runs, one row in each turn: all at once would take up the misses
// that a core can have under way, and the panels would wait. What to prefetch is in a list of requests that ends with
// one whose stride is 0. A request for which there are too few turns is prefetched at once.
type prefetcher struct {
	f                          family
	list, at, stride, n, turns reg.GPVirtual
}

// Offsets in a request.
const (
	requestAt = 8 * iota
	requestStride
	requestCount
	requestStep
	requestSize
)

// newPrefetcher emits the beginning: the first request is the tile of C.
func newPrefetcher(c *build.Context, f family, p pointers) prefetcher {
	r := prefetcher{f, c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()}
	c.Load(c.Param("next"), r.list)
	c.MOVQ(p.cc, operand.Mem{Base: r.list, Disp: requestAt})
	c.MOVQ(p.cstride, operand.Mem{Base: r.list, Disp: requestStride})
	return r
}

// loop emits the loop over the products that fill turns of rowsUnroll, which step emits; k is left as the rest.
func (r prefetcher) loop(c *build.Context, k reg.GPVirtual, step func(n int)) {
	c.MOVQ(k, r.turns)
	c.SHRQ(operand.U8(bits.TrailingZeros(rowsUnroll)), r.turns)
	c.ANDQ(operand.Imm(rowsUnroll-1), k)
	c.Label("request")
	c.MOVQ(operand.Mem{Base: r.list, Disp: requestAt}, r.at)
	c.MOVQ(operand.Mem{Base: r.list, Disp: requestStep}, r.stride)
	c.ADDQ(r.at, r.stride)
	c.MOVQ(r.stride, operand.Mem{Base: r.list, Disp: requestAt})
	c.MOVQ(operand.Mem{Base: r.list, Disp: requestCount}, r.n)
	c.MOVQ(operand.Mem{Base: r.list, Disp: requestStride}, r.stride)
	c.ADDQ(operand.Imm(requestSize), r.list)
	c.TESTQ(r.stride, r.stride)
	c.JE(operand.LabelRef("end"))
	c.TESTQ(r.n, r.n)
	c.JE(operand.LabelRef("request"))
	c.CMPQ(r.n, r.turns)
	c.JG(operand.LabelRef("burst"))
	c.SUBQ(r.n, r.turns)
	c.Label("loop")
	r.prefetch(c)
	step(rowsUnroll)
	c.ADDQ(r.stride, r.at)
	c.DECQ(r.n)
	c.JNE(operand.LabelRef("loop"))
	c.TESTQ(r.stride, r.stride)
	c.JNE(operand.LabelRef("request"))
	c.JMP(operand.LabelRef("tail"))
	c.Label("burst")
	r.prefetch(c)
	c.ADDQ(r.stride, r.at)
	c.DECQ(r.n)
	c.JNE(operand.LabelRef("burst"))
	c.JMP(operand.LabelRef("request"))
	c.Label("end")
	c.MOVQ(r.turns, r.n)
	c.TESTQ(r.n, r.n)
	c.JNE(operand.LabelRef("loop"))
}

// prefetch emits the prefetching of a row as wide as a tile.
func (r prefetcher) prefetch(c *build.Context) {
	c.PREFETCHT1(operand.Mem{Base: r.at})
	c.PREFETCHT1(operand.Mem{Base: r.at, Disp: r.f.vectors*r.f.bytes() - 4})
}
