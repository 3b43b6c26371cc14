// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// family is a vector width.
type family struct {
	name  string
	lanes int // float32 per vector
}

func (f family) register(c *build.Context) reg.VecVirtual {
	if f.lanes == 16 {
		return c.ZMM()
	}
	return c.YMM()
}

// transform is T·d·Tᵀ for the matrix T; package winograd has the same matrices.
type transform struct {
	name   string
	matrix [][]float64
}

var transforms = []transform{
	{"input", [][]float64{{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, -1, 0, 1}}},
	{"output", [][]float64{{1, 1, 1, 0}, {0, 1, -1, 1}}},
	{"outputGrad", [][]float64{{1, 0}, {1, 1}, {1, -1}, {0, 1}}},
	{"kernel", [][]float64{{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}}},
	{"kernelGrad", [][]float64{{1, 0.5, 0.5, 0}, {0, 0.5, -0.5, 0}, {0, 0.5, 0.5, 1}}},
}

// oneHalf emits the constant ½.
func oneHalf(c *build.Context) operand.Mem {
	m := c.StaticGlobal("half")
	c.DataAttributes(attr.RODATA | attr.NOPTR)
	c.AppendDatum(operand.U32(math.Float32bits(0.5)))
	return m
}

// steps reaches element (i,j) of a square of vectors: each row has a pointer, columns are reached by the stride.
type steps struct {
	rows       []reg.GPVirtual
	col, three reg.GPVirtual
}

func (s steps) at(i, j int) operand.Mem {
	m := operand.Mem{Base: s.rows[i]}
	switch j {
	case 1, 2:
		m.Index, m.Scale = s.col, uint8(j)
	case 3:
		m.Index, m.Scale = s.three, 1
	}
	return m
}

// newSteps emits the reading of a base and its strides for so many rows.
func newSteps(c *build.Context, base, rowStride, colStride string, n int) steps {
	s := steps{col: c.GP64(), three: c.GP64()}
	c.Load(c.Param(colStride), s.col)
	c.SHLQ(operand.Imm(2), s.col)
	c.LEAQ(operand.Mem{Base: s.col, Index: s.col, Scale: 2}, s.three)
	stride := c.GP64()
	c.Load(c.Param(rowStride), stride)
	c.SHLQ(operand.Imm(2), stride)
	for i := range n {
		r := c.GP64()
		if i == 0 {
			c.Load(c.Param(base), r)
		} else {
			c.MOVQ(s.rows[i-1], r)
			c.ADDQ(stride, r)
		}
		s.rows = append(s.rows, r)
	}
	return s
}

// emit emits one transform.
func emit(c *build.Context, f family, t transform, constant operand.Mem) {
	name := t.name + f.name
	in, out := len(t.matrix[0]), len(t.matrix)
	c.Function(name)
	c.Doc(
		fmt.Sprintf("%s transforms %d×%d vectors of %d·blocks elements to %d×%d, blocks ≥ 1: (i,j) is at src[i·srow "+
			"+ j·scol] and dst[i·drow + j·dcol].", name, in, in, f.lanes, out, out))
	c.Pragma("noescape")
	c.SignatureExpr("func(blocks int, dst *float32, drow, dcol int, src *float32, srow, scol int)")
	blocks := c.GP64()
	c.Load(c.Param("blocks"), blocks)
	src, dst := newSteps(c, "src", "srow", "scol", in), newSteps(c, "dst", "drow", "dcol", out)
	half := f.register(c)
	c.VBROADCASTSS(constant, half)
	c.Label("loop")
	for i, row := range t.matrix {
		sums := make([]reg.VecVirtual, in)
		for j := range sums {
			sums[j] = combine(c, f, half, row, func(k int) operand.Op { return src.at(k, j) })
		}
		for j, row := range t.matrix {
			c.VMOVUPS(combine(c, f, half, row, func(k int) operand.Op { return sums[k] }), dst.at(i, j))
		}
	}
	for _, r := range append(src.rows, dst.rows...) {
		c.ADDQ(operand.Imm(uint64(4*f.lanes)), r)
	}
	c.DECQ(blocks)
	c.JNE(operand.LabelRef("loop"))
	c.VZEROUPPER()
	c.RET()
}

// combine emits the sum of the terms that the row names, the first positive one first, the others in order.
func combine(c *build.Context, f family, half reg.VecVirtual, row []float64,
	term func(k int) operand.Op) reg.VecVirtual {
	first := 0
	for row[first] <= 0 {
		first++
	}
	sum := f.register(c)
	if row[first] == 1 {
		c.VMOVUPS(term(first), sum)
	} else {
		c.VMULPS(term(first), half, sum)
	}
	for k, v := range row {
		if k == first || v == 0 {
			continue
		}
		x := term(k)
		if math.Abs(v) != 1 {
			scaled := f.register(c)
			c.VMULPS(x, half, scaled)
			x = scaled
		}
		if v > 0 {
			c.VADDPS(x, sum, sum)
		} else {
			c.VSUBPS(x, sum, sum)
		}
	}
	return sum
}
