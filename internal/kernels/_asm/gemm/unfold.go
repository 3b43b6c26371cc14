// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// unfold emits the copying of what windows see.
func unfold(c *build.Context, f family) {
	name := fmt.Sprintf("unfold%s", f.name)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s sets dst[j·pitch + (p·rows + a)·run + e] = src[j·step + p·planeStride + a·rowStride + e] for "+
			"e < %d·vectors, run ≤ %d·vectors, in ascending order of j < places,", name, f.lanes, f.lanes),
		"p < planes, a < rows and e: what a run writes beyond its end the next one overwrites. All counts are ≥ 1.")
	c.Pragma("noescape")
	c.SignatureExpr("func(places int, dst *float32, pitch int, src *float32, step, planes, planeStride, rows, " +
		"rowStride, run, vectors int)")
	load := func(param string) reg.GPVirtual {
		v := c.GP64()
		c.Load(c.Param(param), v)
		return v
	}
	places, dst, src, rowStride, run := load("places"), load("dst"), load("src"), load("rowStride"), load("run")
	c.SHLQ(operand.Imm(2), rowStride)
	c.SHLQ(operand.Imm(2), run)
	to, plane, row := c.GP64(), c.GP64(), c.GP64()
	planes, rows, n := c.GP64(), c.GP64(), c.GP64()
	from, at, stride := c.GP64(), c.GP64(), c.GP64()
	c.Label("place")
	c.MOVQ(dst, to)
	c.MOVQ(src, plane)
	c.Load(c.Param("planes"), planes)
	c.Label("plane")
	c.MOVQ(plane, row)
	c.Load(c.Param("rows"), rows)
	c.Load(c.Param("vectors"), n)
	c.CMPQ(n, operand.Imm(1))
	c.JNE(operand.LabelRef("row"))
	c.Label("short") // runs of one vector
	w := f.register(c)
	c.VMOVUPS(operand.Mem{Base: row}, w)
	c.VMOVUPS(w, operand.Mem{Base: to})
	c.ADDQ(run, to)
	c.ADDQ(rowStride, row)
	c.DECQ(rows)
	c.JNE(operand.LabelRef("short"))
	c.JMP(operand.LabelRef("next"))
	c.Label("row")
	c.MOVQ(row, from)
	c.MOVQ(to, at)
	c.Load(c.Param("vectors"), n)
	c.Label("vector")
	v := f.register(c)
	c.VMOVUPS(operand.Mem{Base: from}, v)
	c.VMOVUPS(v, operand.Mem{Base: at})
	c.ADDQ(operand.Imm(uint64(f.bytes())), from)
	c.ADDQ(operand.Imm(uint64(f.bytes())), at)
	c.DECQ(n)
	c.JNE(operand.LabelRef("vector"))
	c.ADDQ(run, to)
	c.ADDQ(rowStride, row)
	c.DECQ(rows)
	c.JNE(operand.LabelRef("row"))
	c.Label("next")
	c.Load(c.Param("planeStride"), stride)
	c.LEAQ(operand.Mem{Base: plane, Index: stride, Scale: 4}, plane)
	c.DECQ(planes)
	c.JNE(operand.LabelRef("plane"))
	c.Load(c.Param("pitch"), stride)
	c.SHLQ(operand.Imm(2), stride)
	c.ADDQ(stride, dst)
	c.Load(c.Param("step"), stride)
	c.SHLQ(operand.Imm(2), stride)
	c.ADDQ(stride, src)
	c.DECQ(places)
	c.JNE(operand.LabelRef("place"))
	c.VZEROUPPER()
	c.RET()
}
