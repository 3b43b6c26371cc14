package main

import (
	"fmt"
	"math"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// nearest is the immediate of VROUNDPS and VRNDSCALEPS that rounds to the nearest integer without raising flags.
const nearest = operand.U8(8)

// generator emits the kernels for one vector width: 8 lanes are AVX2, 16 are AVX-512.
type generator struct {
	*build.Context
	*constants
	lanes int
}

func (g *generator) wide() bool { return g.lanes == 16 }

// register returns a fresh vector register.
func (g *generator) register() reg.VecVirtual {
	if g.wide() {
		return g.ZMM()
	}
	return g.YMM()
}

// number returns the memory operand with x in each lane.
func (g *generator) number(x float32) operand.Mem { return g.bits(math.Float32bits(x)) }

// load returns a register with x in each lane.
func (g *generator) load(x float32) reg.VecVirtual {
	v := g.register()
	g.VMOVUPS(g.number(x), v)
	return v
}

// begin emits a function's head and the loading of blocks, dst and src.
func (g *generator) begin(name, formula, extra string) (blocks, dst, src reg.GPVirtual) {
	name += map[bool]string{false: "AVX2", true: "AVX512"}[g.wide()]
	g.Function(name)
	g.Doc(fmt.Sprintf("%s sets dst[i] = %s for i < %d·blocks, blocks ≥ 1.", name, formula, g.lanes))
	g.Pragma("noescape")
	g.SignatureExpr("func(blocks int, dst, src *float32" + extra + ")")
	blocks, dst, src = g.GP64(), g.GP64(), g.GP64()
	g.Load(g.Param("blocks"), blocks)
	g.Load(g.Param("dst"), dst)
	g.Load(g.Param("src"), src)
	return blocks, dst, src
}

// end emits the store of one vector, the loop's end and the return.
func (g *generator) end(y reg.VecVirtual, blocks, dst, src reg.GPVirtual) {
	g.VMOVUPS(y, operand.Mem{Base: dst})
	g.ADDQ(operand.Imm(uint64(4*g.lanes)), src)
	g.ADDQ(operand.Imm(uint64(4*g.lanes)), dst)
	g.DECQ(blocks)
	g.JNE(operand.LabelRef("loop"))
	g.VZEROUPPER()
	g.RET()
}

// exp emits e^(src-shift).
func (g *generator) exp() {
	blocks, dst, src := g.begin("exp", "e^(src[i]-shift)", ", shift float32")
	shift := g.register()
	argument, err := g.Param("shift").Resolve()
	if err != nil {
		panic(err)
	}
	g.VBROADCASTSS(argument.Addr, shift)
	high, low := g.load(expHigh), g.load(expLow)
	g.Label("loop")
	x := g.register()
	g.VMOVUPS(operand.Mem{Base: src}, x)
	g.VSUBPS(shift, x, x)
	g.end(g.exponential(x, high, low), blocks, dst, src)
}

// exponential emits e^x; x is overwritten. A NaN survives the limits, since VMINPS and VMAXPS return their first operand in Go's order if any is NaN.
func (g *generator) exponential(x, high, low reg.VecVirtual) reg.VecVirtual {
	g.VMINPS(x, high, x)
	g.VMAXPS(x, low, x)
	n := g.register()
	g.VMULPS(g.number(log2e), x, n)
	if g.wide() {
		g.VRNDSCALEPS(nearest, n, n)
	} else {
		g.VROUNDPS(nearest, n, n)
	}
	g.VFNMADD231PS(g.number(ln2High), n, x)
	g.VFNMADD231PS(g.number(ln2Low), n, x)
	y := g.polynomial(expPoly, x)
	square := g.register()
	g.VMULPS(x, x, square)
	g.VFMADD213PS(x, square, y)
	g.VADDPS(g.number(1), y, y)
	g.VCVTPS2DQ(n, n)
	half := g.register()
	g.VPSRAD(operand.Imm(1), n, half)
	g.VPSUBD(half, n, n)
	for _, exponent := range []reg.VecVirtual{half, n} { // 2ⁿ in two steps: it may exceed the range of float32 at both ends
		g.VPADDD(g.bits(127), exponent, exponent)
		g.VPSLLD(operand.Imm(23), exponent, exponent)
		g.VMULPS(exponent, y, y)
	}
	return y
}

// polynomial emits Horner's rule, the coefficient of the highest power first.
func (g *generator) polynomial(coefficients []float32, x reg.VecVirtual) reg.VecVirtual {
	y := g.load(coefficients[0])
	for _, c := range coefficients[1:] {
		g.VFMADD213PS(g.number(c), x, y)
	}
	return y
}

// and emits a bitwise and with a pattern.
func (g *generator) and(pattern uint32, x reg.VecVirtual) reg.VecVirtual {
	y := g.register()
	if g.wide() {
		g.VPANDD(g.bits(pattern), x, y)
	} else {
		g.VPAND(g.bits(pattern), x, y)
	}
	return y
}

// tanh emits the hyperbolic tangent: a polynomial near zero, else 1 - 2/(e^2|x|+1) with the sign of x.
func (g *generator) tanh() {
	blocks, dst, src := g.begin("tanh", "tanh(src[i])", "")
	high, low := g.load(expHigh), g.load(expLow)
	g.Label("loop")
	x := g.register()
	g.VMOVUPS(operand.Mem{Base: src}, x)

	size := g.and(0x7fffffff, x)
	twice := g.register()
	g.VADDPS(size, size, twice)
	e := g.exponential(twice, high, low)
	g.VADDPS(g.number(1), e, e)
	quotient, large := g.load(2), g.load(1)
	g.VDIVPS(e, quotient, quotient)
	g.VSUBPS(quotient, large, large)

	square := g.register()
	g.VMULPS(x, x, square)
	small := g.polynomial(tanhPoly, square)
	g.VMULPS(square, small, small)
	g.VFMADD213PS(x, x, small) // small·x + x

	limit := g.load(tanhSmall)
	if g.wide() {
		mask := g.K()
		g.VCMPPS(operand.Imm(1), limit, size, mask) // size < limit
		g.VBLENDMPS(small, large, mask, large)
	} else {
		mask := g.YMM()
		g.VCMPPS(operand.Imm(1), limit, size, mask)
		g.VBLENDVPS(mask, small, large, large)
	}
	sign := g.and(0x80000000, x)
	if g.wide() {
		g.VPORD(sign, large, large)
	} else {
		g.VPOR(sign, large, large)
	}
	g.end(large, blocks, dst, src)
}
