// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// down is the immediate of VROUNDPS and VREDUCEPS that rounds to the integer below without raising flags.
const down = operand.U8(9)

var negInf = float32(math.Inf(-1))

const (
	power2Low  = -150 // 2^-150 rounds to 0
	power2High = 129  // 2^129 overflows
)

// power2Poly is 2^f for 0 ≤ f < 1, to 1.5e-7, with 1 at 0: the polynomial whose largest relative error is smallest.
var power2Poly = []float32{0.0018671300495043397, 0.009017030708491802, 0.05579991266131401, 0.24016444385051727,
	0.6931512951850891, 1}

// power2 is what 2^x needs beside x.
type power2 struct {
	*generator
	coefficients []reg.VecVirtual // nil: read from memory
	low, high    reg.VecVirtual
}

func (g *generator) power2() *power2 {
	p := &power2{generator: g}
	if !g.wide() {
		p.low, p.high = g.constant(power2Low), g.constant(power2High)
		return p
	}
	for _, c := range power2Poly {
		p.coefficients = append(p.coefficients, g.constant(c))
	}
	return p
}

// of emits 2^x = 2^(x-⌊x⌋)·2^⌊x⌋; x is overwritten. −∞ gives 0, and NaN stays NaN.
func (p *power2) of(x reg.VecVirtual) reg.VecVirtual {
	if !p.wide() {
		n := p.register()
		p.VMAXPS(x, p.low, x)
		p.VMINPS(x, p.high, x)
		p.VROUNDPS(down, x, n)
		p.VSUBPS(n, x, x)
		return p.scaled(p.polynomial(power2Poly, x), n)
	}
	f, y := p.register(), p.register()
	p.VREDUCEPS(down, x, f)
	p.VMOVAPS(p.coefficients[0], y)
	for _, c := range p.coefficients[1:] {
		p.VFMADD213PS(c, f, y)
	}
	p.VSCALEFPS(x, y, y) // by 2^⌊x⌋
	return y
}

// tile is a kernel over rows of a matrix, each a whole number of blocks.
type tile struct {
	*generator
	rows, n  reg.GPVirtual
	matrices []matrix
	left     reg.GPVirtual // elements of the row
	offset   reg.GPVirtual // of the next in bytes
}

// matrix is an operand of a kernel over rows.
type matrix struct {
	name        string
	row, stride reg.GPVirtual // the address of the row, and the distance to the next in bytes
}

// tile begins a function over rows × n elements of matrices, which have the same stride unless the function has strides
// of their own.
func (g *generator) tile(name, formula, signature string, matrices ...string) *tile {
	g.Function(name + g.suffix())
	g.Doc(fmt.Sprintf("%s%s: %s for i < rows and j < n, both positive, n a multiple of %d.", name, g.suffix(), formula,
		block))
	g.Pragma("noescape")
	g.SignatureExpr(signature)
	t := &tile{generator: g, rows: g.loaded("rows"), n: g.loaded("n"), left: g.GP64(), offset: g.GP64()}
	var common reg.GPVirtual
	for _, m := range matrices {
		own := m + "stride"
		if !strings.Contains(signature, own) {
			own = "stride"
		}
		if own != "stride" || common == nil {
			common = g.loaded(own)
			g.SHLQ(operand.Imm(2), common)
		}
		t.matrices = append(t.matrices, matrix{m, g.loaded(m), common})
	}
	return t
}

// loaded returns a register with a parameter.
func (g *generator) loaded(name string) reg.GPVirtual {
	r := g.GP64()
	g.Load(g.Param(name), r)
	return r
}

// repeated returns a register with what lies at m in each lane.
func (g *generator) repeated(m operand.Mem) reg.VecVirtual {
	v := g.register()
	g.VBROADCASTSS(m, v)
	return v
}

// argument returns a register with a float32 parameter in each lane.
func (g *generator) argument(name string) reg.VecVirtual {
	a, err := g.Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return g.repeated(a.Addr)
}

// at is vector v of the turn.
func (t *tile) at(name string, v int) operand.Mem {
	for _, m := range t.matrices {
		if m.name == name {
			return operand.Mem{Base: m.row, Index: t.offset, Scale: 1, Disp: 4 * t.lanes * v}
		}
	}
	panic("a kernel over rows has no matrix " + name)
}

// across emits a loop over the elements of a row: turns of as many vectors as the registers hold, which are taken in
// turns, then of a block. step gets the number of the vector in its turn.
func (t *tile) across(label string, step func(v int)) {
	vectors := t.lanes / 4
	t.XORQ(t.offset, t.offset)
	t.MOVQ(t.n, t.left)
	turn := func(label string, vectors int) {
		t.Label(label)
		for v := range vectors {
			t.Comment(partMark)
			step(v)
		}
		t.Comment(endMark)
		t.ADDQ(operand.U32(4*t.lanes*vectors), t.offset)
		t.SUBQ(operand.U32(t.lanes*vectors), t.left)
	}
	if vectors*t.lanes > block {
		t.SUBQ(operand.U32(t.lanes*vectors), t.left)
		t.JL(operand.LabelRef(label + "Rest"))
		turn(label+"Flight", vectors)
		t.JGE(operand.LabelRef(label + "Flight"))
		t.Label(label + "Rest")
		t.ADDQ(operand.U32(t.lanes*vectors), t.left)
		t.JE(operand.LabelRef(label + "End"))
	}
	turn(label+"Block", block/t.lanes)
	t.JG(operand.LabelRef(label + "Block"))
	t.Label(label + "End")
}

// end emits the step to the next row, and the end of the function. others are pointers to one element of so many bytes
// for each row.
func (t *tile) end(others map[int][]reg.GPVirtual) {
	for _, bytes := range []int{4, 8} {
		for _, p := range others[bytes] {
			t.ADDQ(operand.Imm(uint64(bytes)), p)
		}
	}
	for _, m := range t.matrices {
		t.ADDQ(m.stride, m.row)
	}
	t.DECQ(t.rows)
	t.JNE(operand.LabelRef("row"))
	t.VZEROUPPER()
	t.RET()
}

// folded emits the reduction of the lanes of 16, in one or two registers, to the first one: lane i with lane i+8, then
// i+4, i+2 and i+1. With both widths the same are combined.
func (g *generator) folded(x []reg.VecVirtual, combine func(from, to reg.VecVirtual)) reg.VecVirtual {
	y := x[0]
	if g.wide() {
		upper := g.YMM()
		g.VEXTRACTF64X4(operand.Imm(1), y, upper)
		y = g.YMM()
		g.VMOVUPS(x[0].AsY(), y)
		combine(upper, y)
	} else {
		combine(x[1], y)
	}
	quarter, z := g.XMM(), g.XMM()
	if g.wide() {
		g.VEXTRACTF32X4(operand.Imm(1), y, quarter)
	} else {
		g.VEXTRACTF128(operand.Imm(1), y, quarter)
	}
	g.VMOVUPS(y.AsX(), z)
	combine(quarter, z)
	for _, order := range []uint64{0b1110, 0b01} { // the upper two lanes, then the second
		other := g.XMM()
		g.VPERMILPS(operand.Imm(order), z, other)
		combine(other, z)
	}
	return z
}

// blockOf returns registers for a block, each as start leaves it.
func (g *generator) blockOf(start func(v reg.VecVirtual)) []reg.VecVirtual {
	var all []reg.VecVirtual
	for range block / g.lanes {
		v := g.register()
		start(v)
		all = append(all, v)
	}
	return all
}

// maxRows emits the first half of a softmax over some more columns.
func (g *generator) maxRows() {
	t := g.tile("maxRows", "most[i] = max(most[i], scale·s[i,j]), factor[i] = 2^(the old most[i] - the new)",
		"func(rows, n int, s *float32, stride int, most, factor *float32, scale float32)", "s")
	most, factor := g.loaded("most"), g.loaded("factor")
	scale, power := g.argument("scale"), g.power2()
	t.Label("row")
	largest := make([]reg.VecVirtual, t.lanes/4) // of each vector of a turn
	for v := range largest {
		largest[v] = g.constant(negInf)
	}
	t.across("max", func(v int) {
		x := t.register()
		t.VMOVUPS(t.at("s", v), x)
		t.VMAXPS(largest[v], x, largest[v]) // what was there where x is NaN
	})
	for v := len(largest) - 1; v >= block/g.lanes; v-- {
		g.VMAXPS(largest[v], largest[v/2], largest[v/2])
	}
	m := g.folded(largest[:block/g.lanes], func(from, to reg.VecVirtual) { g.VMAXPS(from, to, to) })
	before, now := g.repeated(operand.Mem{Base: most}), g.register()
	g.VBROADCASTSS(m.AsX(), now)
	g.VMULPS(scale, now, now)
	g.VMAXPS(now, before, now)
	g.VMOVSS(now.AsX(), operand.Mem{Base: most})
	g.VSUBPS(g.zeroIfNegInf(now), before, before)
	g.VMOVSS(power.of(before).AsX(), operand.Mem{Base: factor})
	t.end(map[int][]reg.GPVirtual{4: {most, factor}})
}

// expRows emits the second half.
func (g *generator) expRows() {
	t := g.tile("expRows", "s[i,j] = 2^(scale·s[i,j]-most[i]), sum[i] = sum[i]·factor[i] + Σ s[i,j], where a most[i] "+
		"of −∞ counts as 0,",
		"func(rows, n int, s *float32, stride int, most, factor *float32, sum *float64, scale float32)", "s")
	most, factor, sum := g.loaded("most"), g.loaded("factor"), g.loaded("sum")
	scale, power := g.argument("scale"), g.power2()
	t.Label("row")
	shift := g.zeroIfNegInf(g.repeated(operand.Mem{Base: most}))
	sums := g.blockOf(func(v reg.VecVirtual) { g.VXORPS(v, v, v) })
	t.across("exp", func(v int) {
		x := t.register()
		t.VMOVUPS(t.at("s", v), x)
		t.VFMSUB213PS(shift, scale, x) // scale·x - shift
		y := power.of(x)
		t.VMOVUPS(y, t.at("s", v))
		t.VADDPS(y, sums[v%len(sums)], sums[v%len(sums)])
	})
	total, f := g.folded(sums, func(from, to reg.VecVirtual) { g.VADDPS(from, to, to) }), g.XMM()
	g.VCVTSS2SD(total, total, total)
	g.VXORPS(f, f, f)
	g.VCVTSS2SD(operand.Mem{Base: factor}, f, f)
	g.VFMADD231SD(operand.Mem{Base: sum}, f, total)
	g.VMOVSD(total, operand.Mem{Base: sum})
	t.end(map[int][]reg.GPVirtual{4: {most, factor}, 8: {sum}})
}

// zeroIfNegInf emits the choice of 0 for −∞.
func (g *generator) zeroIfNegInf(x reg.VecVirtual) reg.VecVirtual {
	y := g.register()
	if g.wide() {
		mask := g.K()
		g.VCMPPS(operand.Imm(4), g.number(negInf), x, mask) // not equal
		g.VMOVAPS_Z(x, mask, y)
	} else {
		g.VCMPPS(operand.Imm(4), g.number(negInf), x, y)
		g.VANDPS(x, y, y)
	}
	return y
}

// scoreRows emits what the gradient of attention does to scores.
func (g *generator) scoreRows() {
	t := g.tile("scoreRows", "s[i,j] = 2^(base·s[i,j]-shift[i]), d[i,j] = s[i,j]·(scale·d[i,j]-scale·delta[i])",
		"func(rows, n int, s, d *float32, stride int, shift, delta *float32, base, scale float32)", "s", "d")
	shift, delta := g.loaded("shift"), g.loaded("delta")
	base, scale, power := g.argument("base"), g.argument("scale"), g.power2()
	t.Label("row")
	sh, de := g.repeated(operand.Mem{Base: shift}), g.repeated(operand.Mem{Base: delta})
	g.VMULPS(scale, de, de)
	t.across("exp", func(v int) {
		x, d := t.register(), t.register()
		t.VMOVUPS(t.at("s", v), x)
		t.VFMSUB213PS(sh, base, x)
		y := power.of(x)
		t.VMOVUPS(t.at("d", v), d)
		t.VFMSUB213PS(de, scale, d)
		t.VMULPS(y, d, d)
		t.VMOVUPS(y, t.at("s", v))
		t.VMOVUPS(d, t.at("d", v))
	})
	t.end(map[int][]reg.GPVirtual{4: {shift, delta}})
}

// scaleRows emits the scaling of rows.
func (g *generator) scaleRows() {
	t := g.tile("scaleRows", "s[i,j] = s[i,j]·factor[i]", "func(rows, n int, s *float32, stride int, factor *float32)",
		"s")
	factor := g.loaded("factor")
	t.Label("row")
	f := g.repeated(operand.Mem{Base: factor})
	t.across("scale", func(v int) {
		x := t.register()
		t.VMULPS(t.at("s", v), f, x)
		t.VMOVUPS(x, t.at("s", v))
	})
	t.end(map[int][]reg.GPVirtual{4: {factor}})
}

// dotRows emits the inner products of rows, in float64.
func (g *generator) dotRows() {
	t := g.tile("dotRows", "sum[i] = Σ x[i,j]·y[i,j]",
		"func(rows, n int, x *float32, xstride int, y *float32, ystride int, sum *float32)", "x", "y")
	sum := g.loaded("sum")
	t.Label("row")
	var sums []doubles
	for range block / g.lanes {
		d := doubles{g.register(), g.register()}
		for _, v := range d {
			g.VXORPS(v, v, v)
		}
		sums = append(sums, d)
	}
	t.across("dot", func(v int) {
		x, y := t.register(), t.register()
		t.VMOVUPS(t.at("x", v), x)
		t.VMOVUPS(t.at("y", v), y)
		dx, dy := t.widened(x), t.widened(y)
		for h, s := range sums[v%len(sums)] {
			t.VFMADD231PD(dx[h], dy[h], s) // a product of two converted float32 is exact
		}
	})
	total := g.foldedDoubles(sums)
	g.VCVTSD2SS(total, total, total)
	g.VMOVSS(total, operand.Mem{Base: sum})
	t.end(map[int][]reg.GPVirtual{4: {sum}})
}

// foldedDoubles emits the addition of 16 lanes of float64: lane i and lane i+8, then i+4, i+2 and i+1.
func (g *generator) foldedDoubles(x []doubles) reg.VecVirtual {
	low, high := x[0][0], x[0][1]
	y := low
	if g.wide() {
		g.VADDPD(high, low, low)
		upper := g.YMM()
		y = g.YMM()
		g.VEXTRACTF64X4(operand.Imm(1), low, upper)
		g.VADDPD(upper, low.AsY(), y)
	} else {
		g.VADDPD(x[1][0], low, low)
		g.VADDPD(x[1][1], high, high)
		g.VADDPD(high, low, low)
	}
	half, z, other := g.XMM(), g.XMM(), g.XMM()
	if g.wide() {
		g.VEXTRACTF64X2(operand.Imm(1), y, half)
	} else {
		g.VEXTRACTF128(operand.Imm(1), y, half)
	}
	g.VADDPD(half, y.AsX(), z)
	g.VPERMILPD(operand.Imm(1), z, other)
	g.VADDSD(other, z, z)
	return z
}

// hideRows emits the filling of the ends of rows.
func (g *generator) hideRows() {
	t := g.tile("hideRows", "s[i,j] = −∞ where j ≥ seen + i·grow",
		"func(rows, n int, s *float32, stride, seen, grow int)", "s")
	seen, grow := g.loaded("seen"), g.loaded("grow")
	inf, lane := g.constant(negInf), g.register()
	g.VMOVUPS(g.laneNumbers(), lane)
	t.Label("row")
	zero := g.GP64()
	g.XORQ(zero, zero)
	g.MOVQ(seen, t.offset)
	g.TESTQ(t.offset, t.offset)
	g.CMOVQLT(zero, t.offset)
	g.MOVQ(t.n, t.left)
	g.SUBQ(t.offset, t.left) // to be filled
	g.JLE(operand.LabelRef("next"))
	within := g.GP64()
	g.MOVQ(t.offset, within)
	g.ANDQ(operand.Imm(uint64(g.lanes-1)), within)
	g.ADDQ(within, t.left)
	g.SUBQ(within, t.offset)
	g.SHLQ(operand.Imm(2), t.offset)
	x, first, single := g.register(), g.register(), g.XMM()
	g.DECQ(within)
	g.VMOVD(within.As32(), single)
	g.VPBROADCASTD(single, first)
	g.VMOVUPS(t.at("s", 0), x)
	if g.wide() {
		mask := g.K()
		g.VPCMPGTD(first, lane, mask)
		g.VBLENDMPS(inf, x, mask, x)
	} else {
		g.VPCMPGTD(first, lane, first)
		g.VBLENDVPS(first, inf, x, x)
	}
	g.VMOVUPS(x, t.at("s", 0))
	g.JMP(operand.LabelRef("check"))
	g.Label("fill")
	g.VMOVUPS(inf, t.at("s", 0))
	g.Label("check")
	g.ADDQ(operand.Imm(uint64(4*g.lanes)), t.offset)
	g.SUBQ(operand.Imm(uint64(g.lanes)), t.left)
	g.JG(operand.LabelRef("fill"))
	g.Label("next")
	g.ADDQ(grow, seen)
	t.end(nil)
}

// laneNumbers returns the memory operand with each lane's number.
func (g *generator) laneNumbers() operand.Mem {
	m := g.StaticGlobal(fmt.Sprintf("lanes%d", g.lanes))
	g.DataAttributes(attr.RODATA | attr.NOPTR)
	for lane := range g.lanes {
		g.AppendDatum(operand.U32(lane))
	}
	return m
}

func (g *generator) attention() {
	g.maxRows()
	g.expRows()
	g.scoreRows()
	g.scaleRows()
	g.dotRows()
	g.hideRows()
}
