// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"sync"

	"github.com/mmcloughlin/avo/reg"
)

// What GELU and its slope are in pieces, with t = |x|: x·Φ(x) = max(x, 0) - t·Φ(-t), and the slope is Φ(-t) - t·φ(t)
// where x < 0, 1 less that where it is not.
var (
	geluLoss = sync.OnceValue(func() *pieces {
		return fit(func(t float64) float64 { return t * normalTail(t) }, func(t float64) float64 {
			return t * normalTail(t)
		})
	})
	geluSlope = sync.OnceValue(func() *pieces {
		return fit(func(t float64) float64 { return normalTail(t) - t*density(t) }, func(t float64) float64 {
			return normalTail(t) + t*density(t)
		})
	})
)

func normalTail(t float64) float64 { return math.Erfc(t/math.Sqrt2) / 2 }
func density(t float64) float64    { return math.Exp(-t*t/2) / math.Sqrt(2*math.Pi) }

// gelu emits GELU and its gradient: with 512 bits in pieces, which only what is below -pieceLast does not stay within.
func (g *generator) gelu() {
	if g.wide() {
		defer func(before int) { g.flight = before }(g.flight)
		g.flight = 2 // beside the coefficients
	}
	g.nonTemporalKernel("gelu", "dst[i] = src[i]·Φ(src[i])", streams("dst", "src"), func(l *loop) (step, end func()) {
		write := func(y reg.VecVirtual) { l.store(y, "dst") }
		if !l.wide() {
			n := l.normal()
			return func() { write(l.whole(n)) }, nil
		}
		loss, zero, prefetch := l.table("geluLoss", geluLoss()), l.constant(0), l.prefetchFar(3072, "src")
		return l.either("src", func() reg.VecVirtual {
			prefetch()
			t, y := l.inPieces(loss, "src"), l.register()
			l.VMAXPS(l.at("src", 0), zero, y) // of two zeros x's; and a NaN
			l.VSUBPS(t, y, y)
			return y
		}, l.whole, write), nil
	})
	g.nonTemporalKernel("geluGrad", "dst[i] = dy[i](Φ(x[i]) + x[i]φ(x[i]))", streams("dst", "x", "dy"),
		func(l *loop) (step, end func()) {
			write := func(y reg.VecVirtual) {
				l.VMULPS(l.at("dy", 0), y, y)
				l.store(y, "dst")
			}
			if !l.wide() {
				n := l.normal()
				return func() { write(l.wholeSlope(n)) }, nil
			}
			slope, one, prefetch := l.table("geluSlope", geluSlope()), l.constant(1), l.prefetchFar(3072, "x", "dy")
			return l.either("x", func() reg.VecVirtual {
				prefetch()
				y, right := l.inPieces(slope, "x"), l.K()
				l.VPTESTNMD(l.bits(0x80000000), l.load("x"), right)
				l.VSUBPS(y, one, right, y)
				return y
			}, l.wholeSlope, write), nil
		})
}

// either makes the step that uses what near emits, and where an element of the stream is too far for that, far.
func (l *loop) either(name string, near func() reg.VecVirtual, far func(n normal) reg.VecVirtual,
	use func(y reg.VecVirtual)) (step func()) {
	l.rare = &rare{
		test: func(vectors int) { l.beyond(name, vectors) },
		step: func() {
			y, x, mask := near(), far(l.normal()), l.K()
			l.farLanes(l.load(name), mask)
			l.VBLENDMPS(x, y, mask, y)
			use(y)
		},
	}
	return func() { use(near()) }
}

// normal are the registers that the normal distribution takes.
type normal struct{ low, two reg.VecVirtual }

func (g *generator) normal() normal { return normal{g.constant(expLow), g.constant(2)} }

// whole emits src·Φ(src) by the exponential.
func (l *loop) whole(n normal) reg.VecVirtual {
	x := l.load("src")
	cdf := l.normalCDF(x, l.normalExponential(x, n), n)
	l.VMULPS(x, cdf, cdf)
	return cdf
}

// wholeSlope emits the derivative by the exponential.
func (l *loop) wholeSlope(n normal) reg.VecVirtual {
	x := l.load("x")
	e := l.normalExponential(x, n)
	cdf := l.normalCDF(x, e, n)
	l.VMULPS(l.number(density0), e, e)
	l.VFMADD231PS(x, e, cdf)
	return cdf
}

// normalExponential emits e^(-x²/2) as 2^w: the argument is never above 0, and what its logarithm to base 2 loses in a
// product is not lost in a fused one.
func (g *generator) normalExponential(x reg.VecVirtual, limits normal) reg.VecVirtual {
	y, n := g.register(), g.register()
	g.VMULPS(g.number(-0.5), x, y)
	g.VMULPS(x, y, y)
	g.VMAXPS(y, limits.low, y) // a NaN stays
	g.VMULPS(g.number(log2e), y, n)
	if g.wide() {
		g.VRNDSCALEPS(nearest, n, n)
	} else {
		g.VROUNDPS(nearest, n, n)
	}
	g.VFMSUB132PS(g.number(log2e), n, y) // y·log2e - n
	return g.scaled(g.polynomial(powerPoly, y), n)
}

// normalCDF emits Φ(x) from e = e^(-x²/2), by erfc's polynomial in 2t-1, t = 2/(2+|x|/√2).
func (g *generator) normalCDF(x, e reg.VecVirtual, n normal) reg.VecVirtual {
	t := g.and(0x7fffffff, x)
	g.VFMADD132PS(g.number(halfRoot2), n.two, t) // t·√½ + 2
	g.VDIVPS(t, n.two, t)
	s := g.constant(-1)
	g.VFMADD231PS(n.two, t, s)
	tail := g.polynomial(halved(erfcPoly), s)
	g.VMULPS(t, tail, tail)
	g.VMULPS(e, tail, tail)
	rest := g.constant(1)
	g.VSUBPS(tail, rest, rest)
	return g.bySign(x, tail, rest)
}

func halved(x []float32) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = v / 2
	}
	return y
}
