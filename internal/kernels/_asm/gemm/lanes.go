// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The types of B's elements, as a lanes kernel is told them.
const (
	lanesFloat32 = iota
	lanesBF16
	lanesF16
)

// lanes emits a dots kernel of AVX2 for up to 8 rows: each lane of a vector is one row. An element of B becomes a vector
// of its own, so that only the sums are transposed. Squares of B leave registers for 5 rows.
//
// Elements of a half type are widened first, 16 of each column to the stack.
func lanes(c *build.Context) {
	const columns, run, room = 8, 32, 64 // columns of a block, bytes of each that a turn reads, and widened ones
	const together = 2                   // products
	f := avx2
	c.Function("lanesAVX2")
	c.Doc("lanesAVX2 computes rows×8 elements of C = A·B, or C = D + A·B if d is not nil; 6 ≤ rows ≤ 8.",
		"It adds blocks ≥ 1 sums of k ≥ 16 products each, a multiple of 16, one after the other.",
		"B is of float32 if of is 0, then k is a multiple of 8, of bfloat16 if it is 1, of float16 if it is 2.",
		"A is packed: a[rows·p + i]. Column j of B is at b[j·bstride], row i of C at c[i·cstride], of D at "+
			"d[i·dstride].",
		"It prefetches as many bytes from ahead on as it reads of B.")
	c.Pragma("noescape")
	c.SignatureExpr("func(rows, k int, a *float32, b *uint16, bstride int, c *float32, cstride int, d *float32, " +
		"dstride, blocks int, ahead uintptr, of int)")
	rows := upTo{c.GP64(), 6, columns, true}
	step, stride, bytes, ahead := c.GP64(), c.GP64(), c.GP64(), c.GP64()
	of, k := parameter(c, "of"), parameter(c, "k")
	c.Load(c.Param("rows"), rows.n)
	c.Load(c.Param("bstride"), step)
	c.Load(c.Param("ahead"), ahead)
	c.MOVQ(rows.n, bytes) // of a column of A
	c.SHLQ(operand.Imm(2), bytes)
	c.SHLQ(operand.Imm(1), step)
	c.SHLQ(operand.Imm(1), k)
	c.MOVQ(operand.U64(room), stride)
	c.CMPQ(of, operand.Imm(lanesFloat32))
	c.JNE(operand.LabelRef("halves"))
	c.SHLQ(operand.Imm(1), step)
	c.SHLQ(operand.Imm(1), k)
	c.MOVQ(step, stride)
	c.Label("halves")
	multiples := newMultiples(c, stride)
	lane, lanes, count, there := c.GP64(), c.YMM(), c.YMM(), c.YMM() // there: which rows there are
	c.MOVQ(operand.U64(0x0706050403020100), lane)
	c.VMOVQ(lane, lanes.AsX())
	c.VPMOVZXBD(lanes.AsX(), lanes)
	c.VMOVD(rows.n.As32(), count.AsX())
	c.VPBROADCASTD(count.AsX(), count)
	c.VPCMPGTD(lanes, count, there)
	widened := c.AllocLocal(columns * room)

	left, a, b, turns, next := c.GP64(), c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("a"), a)
	c.Load(c.Param("b"), b)
	c.Label("block")
	c.MOVQ(k, left)
	sums := zeros(c, f, 1, columns)[0]
	from := &columnsOf8{multiples, c.GP64()}
	c.Label("loop")
	for line := 0; line < columns*run; line += cacheLine {
		c.PREFETCHT1(operand.Mem{Base: ahead, Disp: line})
	}
	c.ADDQ(operand.U32(columns*run), ahead)
	c.LEAQ(widened, from.base)
	c.MOVQ(b, next)
	c.MOVQ(operand.U32(columns), turns)
	c.CMPQ(of, operand.Imm(lanesBF16))
	widen := func(label string, part func(from operand.Mem, to reg.VecVirtual)) {
		c.Label(label)
		c.PREFETCHT0(operand.Mem{Base: next, Disp: dotsPrefetch})
		for i := range 2 {
			x := c.YMM()
			part(operand.Mem{Base: next, Disp: i * run / 2}, x)
			c.VMOVUPS(x, operand.Mem{Base: from.base, Disp: i * room / 2})
		}
		c.ADDQ(step, next)
		c.ADDQ(operand.Imm(room), from.base)
		c.DECQ(turns)
		c.JNE(operand.LabelRef(label))
	}
	c.JE(operand.LabelRef("bfloat16"))
	c.JG(operand.LabelRef("float16"))
	c.MOVQ(b, from.base)
	for j := range columns {
		c.PREFETCHT0(from.at(j, dotsPrefetch))
	}
	c.MOVQ(operand.U32(run/4/together), turns)
	c.JMP(operand.LabelRef("products"))
	c.Label("bfloat16")
	widen("widenBF16", func(from operand.Mem, to reg.VecVirtual) {
		c.VPMOVZXWD(from, to)
		c.VPSLLD(operand.Imm(16), to, to)
	})
	c.JMP(operand.LabelRef("widened"))
	c.Label("float16")
	widen("widenF16", func(from operand.Mem, to reg.VecVirtual) { c.VCVTPH2PS(from, to) })
	c.Label("widened")
	c.LEAQ(widened, from.base)
	c.MOVQ(operand.U32(run/2/together), turns)

	c.Label("products")
	for p := range together {
		x := c.YMM()
		c.VMASKMOVPS(operand.Mem{Base: a}, there, x)
		c.ADDQ(bytes, a)
		for j, sum := range sums {
			y := c.YMM()
			c.VBROADCASTSS(from.at(j, 4*p), y)
			c.VFMADD231PS(y, x, sum)
		}
	}
	c.ADDQ(operand.Imm(4*together), from.base)
	c.DECQ(turns)
	c.JNE(operand.LabelRef("products"))
	c.ADDQ(operand.Imm(run), b)
	c.SUBQ(operand.Imm(run), left)
	c.JNE(operand.LabelRef("loop"))
	var square [][]reg.VecVirtual
	for _, row := range transposed(c, f, sums) {
		square = append(square, []reg.VecVirtual{row})
	}
	endDots(c, f, rows, square)
}

// columnsOf8 are eight columns.
type columnsOf8 struct {
	*multiples
	base reg.GPVirtual
}

func (w *columnsOf8) at(j, disp int) operand.Mem {
	at := (&columns{multiples: w.multiples, base: []reg.GPVirtual{w.base}}).at(j)
	at.Disp = disp
	return at
}
