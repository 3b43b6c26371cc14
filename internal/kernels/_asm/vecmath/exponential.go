// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// nearest is the immediate of VROUNDPS and VRNDSCALEPS that rounds to the nearest integer without raising flags.
const nearest = operand.U8(8)

// limits are the registers with the range of exponential.
type limits struct {
	high, low reg.VecVirtual
	powers    operand.Op // 2^(j/8), j = 0 … 7, with 512 bits twice
}

func (g *generator) limits() limits {
	l := limits{high: g.constant(expHigh), low: g.constant(expLow), powers: g.eighths()}
	if g.wide() {
		powers := g.register()
		g.VBROADCASTF32X8(g.eighths(), powers)
		l.powers = powers
	}
	return l
}

// clamp emits low ≤ x ≤ high in place. A NaN survives, since VMINPS and VMAXPS return their first operand in Go's order
// if any is NaN.
func (g *generator) clamp(x reg.VecVirtual, l limits) {
	g.VMINPS(x, l.high, x)
	g.VMAXPS(x, l.low, x)
}

// exponential emits e^x = 2ᵏ·2^(j/8)·e^r, where (8k+j)/8 is x·log2(e) rounded to eighths, j = 0 … 7 its number in a
// table; x is overwritten.
func (g *generator) exponential(x reg.VecVirtual, l limits) reg.VecVirtual {
	g.clamp(x, l)
	n, power := g.constant(expMagic), g.register()
	g.VFMADD231PS(g.number(log2e), x, n)
	g.VPERMPS(l.powers, n, power)
	g.VSUBPS(g.number(expMagic), n, n)
	g.VFNMADD231PS(g.number(ln2High), n, x)
	g.VFNMADD231PS(g.number(ln2Low), n, x)
	y := g.polynomial([]float32{expCubic, expSquare, 1}, x)
	g.VMULPS(x, y, y)
	g.VFMADD213PS(power, power, y)
	if !g.wide() {
		g.VROUNDPS(down, n, n)
	}
	return g.scaled(y, n)
}

// scaled emits y·2ⁿ, n a whole number, which is overwritten; with 512 bits what lies below n counts.
func (g *generator) scaled(y, n reg.VecVirtual) reg.VecVirtual {
	if g.wide() {
		g.VSCALEFPS(n, y, y) // rounds once, as below
		return y
	}
	g.VCVTPS2DQ(n, n)
	half := g.register()
	g.VPSRAD(operand.Imm(1), n, half)
	g.VPSUBD(half, n, n)
	// 2ⁿ in two steps: it may exceed the range of float32 at both ends
	for _, exponent := range []reg.VecVirtual{half, n} {
		g.VPADDD(g.bits(127), exponent, exponent)
		g.VPSLLD(operand.Imm(23), exponent, exponent)
		g.VMULPS(exponent, y, y)
	}
	return y
}

// polynomial emits Horner's rule, the coefficient of the highest power first.
func (g *generator) polynomial(coefficients []float32, x reg.VecVirtual) reg.VecVirtual {
	y := g.constant(coefficients[0])
	for _, c := range coefficients[1:] {
		g.VFMADD213PS(g.number(c), x, y)
	}
	return y
}

// shifted emits src-shift.
func (l *loop) shifted(shift reg.VecVirtual) reg.VecVirtual {
	x := l.load("src")
	l.VSUBPS(shift, x, x)
	return x
}

func (g *generator) exponentials() {
	g.nonTemporalKernel("exp", "dst[i] = factor·e^(src[i]-shift)",
		params(streams("dst", "src"), scalars("shift", "factor")),
		func(l *loop) (step, end func()) {
			shift, factor, lim := l.scalar("shift"), l.scalar("factor"), l.limits()
			prefetch := l.prefetchFar(4096, "src")
			return func() {
				prefetch()
				y := l.exponential(l.shifted(shift), lim)
				l.VMULPS(factor, y, y)
				l.store(y, "dst")
			}, nil
		})
	g.kernel("expSum", "dst[i] = e^(src[i]-shift), sum[i%16] += dst[i], four of them added before",
		params(streams("dst", "src"), sums("sum"), scalars("shift")),
		func(l *loop) (step, end func()) {
			shift, lim, sum, prefetch := l.needed("shift"), l.limits(), l.gather("sum"), l.prefetchL2(10240, "src")
			return func() {
				prefetch()
				y := l.exponential(l.shifted(shift()), lim)
				l.store(y, "dst")
				sum.add(y)
			}, sum.store
		})
	g.scaleExpSum()
	g.kernel("sumExp", "sum[i%16] += e^(src[i]-shift), four of them added before",
		params(streams("src"), sums("sum"), scalars("shift")),
		func(l *loop) (step, end func()) {
			shift, lim, sum, prefetch := l.needed("shift"), l.limits(), l.gather("sum"), l.prefetchL2(10240, "src")
			return func() {
				prefetch()
				sum.add(l.exponential(l.shifted(shift()), lim))
			}, sum.store
		})
	g.nonTemporalKernel("logSoftmaxGrad", "dst[i] = dy[i] - sum·e^y[i]",
		params(streams("dst", "y", "dy"), scalars("sum")),
		func(l *loop) (step, end func()) {
			sum, lim := l.scalar("sum"), l.limits()
			return func() {
				e := l.exponential(l.load("y"), lim)
				dy := l.load("dy")
				l.VFNMADD231PS(sum, e, dy)
				l.store(dy, "dst")
			}, nil
		})
	g.tanh()
}

// scaleExpSum emits what softmax does to three rows at a time: it writes one, computes the exponentials of the next one
// and reads the one after that.
func (g *generator) scaleExpSum() {
	if !g.wide() {
		defer func(before int) { g.flight = before }(g.flight)
		g.flight = 1 // registers hold no more
	}
	formula := "dst[i] = factor·near[i], then near[i] = e^(src[i]-shift), sum[i%16] += near[i], four of them added " +
		"before, most[i%16] = max(most[i%16], next[i]), NaN not counting"
	operands := params(streams("dst", "near", "src", "next"), sums("sum"), typed(fixed, "float32", "most"),
		scalars("factor", "shift"))
	g.nonTemporalKernel("scaleExpSum", formula, operands, func(l *loop) (step, end func()) {
		factor, shift, lim, sum, prefetch := l.scalar("factor"), l.scalar("shift"), l.limits(), l.gather("sum"),
			l.prefetchL2(10240, "next")
		var most []reg.VecVirtual
		at := func(p int) operand.Mem { return operand.Mem{Base: l.pointers["most"], Disp: 4 * l.lanes * p} }
		for p := range block / l.lanes {
			most = append(most, l.register())
			l.VMOVUPS(at(p), most[p])
		}
		return func() {
				prefetch()
				m := most[l.part%len(most)]
				l.VMAXPS(m, l.load("next"), m)
				l.store(l.times(factor, "near"), "dst")
				y := l.exponential(l.shifted(shift), lim)
				l.store(y, "near")
				sum.add(y)
			}, func() {
				sum.store()
				for p, m := range most {
					l.VMOVUPS(m, at(p))
				}
			}
	})
}

// tanh emits the hyperbolic tangent: a polynomial near zero, else 1 - 2/(e^2|x|+1) with the sign of x.
func (g *generator) tanh() {
	g.nonTemporalKernel("tanh", "dst[i] = tanh(src[i])", streams("dst", "src"), func(l *loop) (step, end func()) {
		lim, limit := l.limits(), l.constant(tanhSmall)
		return func() {
			x := l.load("src")
			size := l.and(0x7fffffff, x)
			twice := l.register()
			l.VADDPS(size, size, twice)
			e := l.exponential(twice, lim)
			l.VADDPS(l.number(1), e, e)
			quotient, large := l.constant(2), l.constant(1)
			l.VDIVPS(e, quotient, quotient)
			l.VSUBPS(quotient, large, large)

			square := l.register()
			l.VMULPS(x, x, square)
			small := l.polynomial(tanhPoly, square)
			l.VMULPS(square, small, small)
			l.VFMADD213PS(x, x, small) // small·x + x

			if l.wide() {
				mask := l.K()
				l.VCMPPS(operand.Imm(1), limit, size, mask) // size < limit
				l.VBLENDMPS(small, large, mask, large)
			} else {
				mask := l.YMM()
				l.VCMPPS(operand.Imm(1), limit, size, mask)
				l.VBLENDVPS(mask, small, large, large)
			}
			sign := l.and(0x80000000, x)
			if l.wide() {
				l.VPORD(sign, large, large)
			} else {
				l.VPOR(sign, large, large)
			}
			l.store(large, "dst")
		}, nil
	})
}

// quotient emits y/(1+e).
func (g *generator) quotient(y, e reg.VecVirtual) reg.VecVirtual {
	q := g.register()
	g.VADDPS(g.number(1), e, q)
	g.VDIVPS(q, y, q)
	return q
}

// negative emits -x.
func (g *generator) negative(x reg.VecVirtual) reg.VecVirtual {
	y := g.register()
	if g.wide() {
		g.VPXORD(g.bits(0x80000000), x, y)
	} else {
		g.VPXOR(g.bits(0x80000000), x, y)
	}
	return y
}

func (g *generator) activations() {
	g.nonTemporalKernel("sigmoid", "dst[i] = 1/(1+e^-src[i])", streams("dst", "src"), func(l *loop) (step, end func()) {
		lim, one := l.limits(), l.constant(1)
		return func() {
			l.store(l.quotient(one, l.exponential(l.negative(l.load("src")), lim)), "dst")
		}, nil
	})
	g.nonTemporalKernel("silu", "dst[i] = src[i]/(1+e^-src[i])", streams("dst", "src"),
		func(l *loop) (step, end func()) {
			lim := l.limits()
			return func() {
				x := l.load("src")
				l.store(l.quotient(x, l.exponential(l.negative(x), lim)), "dst")
			}, nil
		})
	g.nonTemporalKernel("siluGrad", "dst[i] = dy[i]·s(1+x[i](1-s)), s = 1/(1+e^-x[i])", streams("dst", "x", "dy"),
		func(l *loop) (step, end func()) {
			lim, one := l.limits(), l.constant(1)
			return func() {
				x := l.load("x")
				s := l.quotient(one, l.exponential(l.negative(x), lim))
				slope := l.register()
				l.VSUBPS(s, one, slope)
				l.VFMADD213PS(one, x, slope) // slope·x + 1
				l.VMULPS(s, slope, slope)
				l.VMULPS(l.at("dy", 0), slope, slope)
				l.store(slope, "dst")
			}, nil
		})
	g.nonTemporalKernel("swiglu", "dst[i] = gate[i]/(1+e^-gate[i])·up[i]", streams("dst", "gate", "up"),
		func(l *loop) (step, end func()) {
			lim := l.limits()
			return func() {
				x := l.load("gate")
				y := l.quotient(x, l.exponential(l.negative(x), lim))
				l.VMULPS(l.at("up", 0), y, y)
				l.store(y, "dst")
			}, nil
		})
	g.kernel("swigluGrad", "s = 1/(1+e^-gate[i]): dgate[i] = dy[i]·up[i]·s(1+gate[i](1-s)), dup[i] = dy[i]·gate[i]·s",
		streams("dgate", "dup", "gate", "up", "dy"), func(l *loop) (step, end func()) {
			lim, one := l.limits(), l.constant(1)
			return func() {
				x, dy, slope := l.load("gate"), l.load("dy"), l.register()
				s := l.quotient(one, l.exponential(l.negative(x), lim))
				l.VSUBPS(s, one, slope)
				l.VFMADD213PS(one, x, slope) // slope·x + 1
				l.VMULPS(s, slope, slope)
				l.VMULPS(x, s, s)
				l.VMULPS(dy, s, s)
				l.VMULPS(l.at("up", 0), dy, dy)
				l.VMULPS(dy, slope, slope)
				l.store(slope, "dgate")
				l.store(s, "dup")
			}, nil
		})
	g.nonTemporalKernel("geluTanh", "dst[i] = src[i]/(1+e^-u), u = src[i](a+b·src[i]²)", streams("dst", "src"),
		func(l *loop) (step, end func()) {
			lim, prefetch := l.limits(), l.prefetchFar(3072, "src")
			return func() {
				prefetch()
				x := l.load("src")
				u := l.geluArgument(x, l.squareOf(x))
				l.store(l.quotient(x, l.exponential(u, lim)), "dst")
			}, nil
		})
	g.nonTemporalKernel("geluTanhGrad",
		"dst[i] = dy[i](s + x[i]s(1-s)(a+3b·x[i]²)), s = 1/(1+e^-u), u = x[i](a+b·x[i]²)",
		streams("dst", "x", "dy"),
		func(l *loop) (step, end func()) {
			lim, flat := l.limits(), limits{high: l.constant(geluFlat), low: l.constant(-geluFlat)}
			one, prefetch := l.neededConstant(1), l.prefetchFar(3072, "x", "dy")
			return func() {
				prefetch()
				x := l.load("x")
				l.clamp(x, flat)
				square := l.squareOf(x)
				e := l.exponential(l.geluArgument(x, square), lim)
				s := l.quotient(one(), e)
				slope := l.constant(3 * geluB)
				l.VFMADD213PS(l.number(geluA), square, slope)
				l.VMULPS(s, e, e) // 1-s
				l.VMULPS(s, e, e)
				l.VMULPS(x, e, e)
				l.VFMADD213PS(s, e, slope) // slope·e + s
				l.VMULPS(l.at("dy", 0), slope, slope)
				l.store(slope, "dst")
			}, nil
		})
	const finite = 1e36 // more than e^-u where |x| ≤ geluFlat
	g.kernel("geluTanhBoth", "y[i] = x[i]·s, dst[i] = dy[i](s + x[i]s(1-s)(a+3b·x[i]²)), s = 1/(1+e^-u), u = "+
		"x[i](a+b·x[i]²)", streams("y", "dst", "x", "dy"),
		func(l *loop) (step, end func()) {
			lim, flat, one, most := l.limits(), limits{high: l.constant(geluFlat), low: l.constant(-geluFlat)}, l.constant(1),
				l.constant(finite)
			return func() {
				x := l.load("x")
				e := l.exponential(l.geluArgument(x, l.squareOf(x)), lim)
				l.store(l.quotient(x, e), "y")
				l.clamp(x, flat)
				l.VMINPS(e, most, e)
				s := l.quotient(one, e)
				slope := l.constant(3 * geluB)
				l.VFMADD213PS(l.number(geluA), l.squareOf(x), slope)
				l.VMULPS(s, e, e) // 1-s
				l.VMULPS(s, e, e)
				l.VMULPS(x, e, e)
				l.VFMADD213PS(s, e, slope) // slope·e + s
				l.VMULPS(l.at("dy", 0), slope, slope)
				l.store(slope, "dst")
			}, nil
		})
	g.gelu()
}

func (g *generator) squareOf(x reg.VecVirtual) reg.VecVirtual {
	y := g.register()
	g.VMULPS(x, x, y)
	return y
}

// geluArgument emits -x(a+b·square).
func (g *generator) geluArgument(x, square reg.VecVirtual) reg.VecVirtual {
	u := g.constant(-geluB)
	g.VFMADD213PS(g.number(-geluA), square, u)
	g.VMULPS(x, u, u)
	return u
}
