// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// arithmetic emits kernels that round as the generic ones do: nothing is fused but exact products.
func (g *generator) arithmetic() {
	binary := func(name, sign string, op func(ops ...operand.Op)) {
		operands := streams("dst", "x", "y")
		g.nonTemporalKernel(name, "dst[i] = x[i] "+sign+" y[i]", operands, func(l *loop) (step, end func()) {
			return func() {
				x := l.load("x")
				op(l.at("y", 0), x, x)
				l.store(x, "dst")
			}, nil
		})
	}
	binary("add", "+", g.VADDPS)
	binary("sub", "-", g.VSUBPS)
	binary("mul", "·", g.VMULPS)
	binary("div", "/", g.VDIVPS)
	g.nonTemporalKernel("axpby", "dst[i] = a·x[i] + b·y[i]", params(streams("dst", "x", "y"), scalars("a", "b")),
		func(l *loop) (step, end func()) {
			a, b := l.scalar("a"), l.scalar("b")
			return func() {
				x, y := l.times(a, "x"), l.times(b, "y")
				l.VADDPS(y, x, x)
				l.store(x, "dst")
			}, nil
		})
	g.nonTemporalKernel("affine", "dst[i] = a·x[i] + b", params(streams("dst", "x"), scalars("a", "b")),
		func(l *loop) (step, end func()) {
			a, b := l.scalar("a"), l.scalar("b")
			return func() {
				x := l.times(a, "x")
				l.VADDPS(b, x, x)
				l.store(x, "dst")
			}, nil
		})
	g.nonTemporalKernel("scale", "dst[i] = a·x[i]", params(streams("dst", "x"), scalars("a")),
		func(l *loop) (step, end func()) {
			a := l.scalar("a")
			return func() { l.store(l.times(a, "x"), "dst") }, nil
		})
	g.kernel("rotate", "a[i] = x[i]·cos[i] - y[i]·(sign·sin[i]), b[i] = y[i]·cos[i] + x[i]·(sign·sin[i])",
		params(streams("a", "b", "x", "y", "cos", "sin"), scalars("sign")), func(l *loop) (step, end func()) {
			sign := l.scalar("sign")
			return func() {
				x, y, cos, sin := l.load("x"), l.load("y"), l.load("cos"), l.times(sign, "sin")
				a, b := l.register(), l.register()
				l.VMULPS(cos, x, a)
				l.VMULPS(cos, y, b)
				l.VMULPS(sin, x, x)
				l.VMULPS(sin, y, y)
				l.VSUBPS(y, a, a)
				l.VADDPS(x, b, b)
				l.store(a, "a")
				l.store(b, "b")
			}, nil
		})
	g.nonTemporalKernel("relu", "dst[i] = max(x[i], 0)", streams("dst", "x"), func(l *loop) (step, end func()) {
		zero := l.constant(0)
		return func() {
			x := l.load("x")
			l.VMAXPS(x, zero, x)
			l.store(x, "dst")
		}, nil
	})
	g.nonTemporalKernel("reluGrad", "dst[i] = dy[i] where y[i] > 0, else 0", streams("dst", "y", "dy"),
		func(l *loop) (step, end func()) {
			zero := l.constant(0)
			return func() {
				y, dy := l.load("y"), l.load("dy")
				const greater = operand.U8(14)
				if l.wide() {
					mask := l.K()
					l.VCMPPS(greater, zero, y, mask)
					l.VMOVAPS_Z(dy, mask, dy)
				} else {
					l.VCMPPS(greater, zero, y, y)
					l.VANDPS(y, dy, dy)
				}
				l.store(dy, "dst")
			}, nil
		})
	g.nonTemporalKernel("softmaxGrad", "dst[i] = y[i]·(dy[i]-dot)", params(streams("dst", "y", "dy"), scalars("dot")),
		func(l *loop) (step, end func()) {
			dot := l.scalar("dot")
			return func() {
				x := l.load("dy")
				l.VSUBPS(dot, x, x)
				l.VMULPS(l.at("y", 0), x, x)
				l.store(x, "dst")
			}, nil
		})
	g.nonTemporalKernel("softmaxGradDot", "dst[i] = y[i]·(dy[i]-dot), sum[i%16] += nextY[i]·nextDY[i], four of them "+
		"added before",
		params(streams("dst", "y", "dy", "nextY", "nextDY"), sums("sum"), scalars("dot")),
		func(l *loop) (step, end func()) {
			dot, sum, prefetch := l.scalar("dot"), l.gather("sum"), l.prefetchFar(3072, "nextY", "nextDY")
			return func() {
				prefetch()
				x := l.load("dy")
				l.VSUBPS(dot, x, x)
				l.VMULPS(l.at("y", 0), x, x)
				l.store(x, "dst")
				p := l.load("nextY")
				l.VMULPS(l.at("nextDY", 0), p, p)
				sum.add(p)
			}, sum.store
		})
	g.nonTemporalKernel("subWide", "dst[i] = float32(float64(x[i]) - c)",
		params(streams("dst", "x"), typed(scalar, "float64", "c")), func(l *loop) (step, end func()) {
			c := l.scalar("c")
			return func() {
				x := l.loadWide("x")
				for h := range x {
					l.VSUBPD(c, x[h], x[h])
				}
				l.store(l.narrowed(x), "dst")
			}, nil
		})
}

// times emits a·name[i].
func (l *loop) times(a reg.VecVirtual, name string) reg.VecVirtual {
	x := l.register()
	l.VMULPS(l.at(name, 0), a, x)
	return x
}

// sums emits reductions in float64, and what adds rows to float64 rows.
func (g *generator) sums() {
	g.kernel("sum", "sum[i%16] += x[i]", params(streams("x"), sums("sum")), func(l *loop) (step, end func()) {
		sum, prefetch := l.accumulate("sum"), l.prefetchL1(4096, "x")
		return func() {
			prefetch()
			sum.add(l.loadWide("x"))
		}, sum.store
	})
	g.kernel("dot", "sum[i%16] += x[i]·y[i]", params(streams("x", "y"), sums("sum")), func(l *loop) (step, end func()) {
		sum, prefetch := l.accumulate("sum"), l.prefetchL1(4096, "x", "y")
		return func() {
			prefetch()
			sum.addProduct(l.loadWide("x"), l.loadWide("y"))
		}, sum.store
	})
	g.kernel("rowDot", "sum[i%16] += x[i]·y[i], four of them added before", params(streams("x", "y"), sums("sum")),
		func(l *loop) (step, end func()) {
			sum := l.gather("sum")
			l.short = true
			return func() {
				x := l.load("x")
				l.VMULPS(l.at("y", 0), x, x)
				sum.add(x)
			}, sum.store
		})
	g.kernel("rowSquares", "sum[i%16] += x[i]², four of them added before", params(streams("x"), sums("sum")),
		func(l *loop) (step, end func()) {
			sum, prefetch := l.gather("sum"), l.prefetchRow(10240, "x")
			l.short = true
			return func() {
				prefetch()
				sum.add(l.squareOf(l.load("x")))
			}, sum.store
		})
	g.kernel("rowMoments", "with d = x[i]-k: sum[i%16] += d, squares[i%16] += d², four of them added before",
		params(streams("x"), sums("sum", "squares"), scalars("k")),
		func(l *loop) (step, end func()) {
			sum, squares, k, prefetch := l.gather("sum"), l.gather("squares"), l.scalar("k"), l.prefetchRow(10240, "x")
			l.short = true
			return func() {
					prefetch()
					x := l.load("x")
					l.VSUBPS(k, x, x)
					sum.add(x)
					l.VMULPS(x, x, x)
					squares.add(x)
				}, func() {
					sum.store()
					squares.store()
				}
		})
	g.kernel("deviations", "sum[i%16] += (x[i]-m)²", params(streams("x"), sums("sum"), typed(scalar, "float64", "m")),
		func(l *loop) (step, end func()) {
			sum, m := l.accumulate("sum"), l.scalar("m")
			return func() {
				x := l.loadWide("x")
				for h := range x {
					l.VSUBPD(m, x[h], x[h])
					l.VMULPD(x[h], x[h], x[h])
				}
				sum.add(x)
			}, sum.store
		})
	g.kernel("max", "most[i%16] = max(most[i%16], x[i]), NaN not counting",
		params(streams("x"), typed(fixed, "float32", "most")), func(l *loop) (step, end func()) {
			l.blocks = several
			var most []reg.VecVirtual
			parts := block / l.lanes
			at := func(p int) operand.Mem {
				return operand.Mem{Base: l.pointers["most"], Disp: 4 * (p % parts) * l.lanes}
			}
			for p := range several * parts {
				most = append(most, l.register())
				l.VMOVUPS(at(p), most[p])
			}
			return func() {
					x := l.load("x")
					l.VMAXPS(most[l.part], x, most[l.part])
				}, func() {
					for p, v := range most[parts:] {
						l.VMAXPS(v, most[p%parts], most[p%parts])
					}
					for p, v := range most[:parts] {
						l.VMOVUPS(v, at(p))
					}
				}
		})
	g.kernel("addWide", "sums[i] += x[i]", params(typed(stream, "float64", "sums"), streams("x")),
		func(l *loop) (step, end func()) {
			return func() { l.addTo("sums", l.loadWide("x")) }, nil
		})
	rows := streams("x0", "x1", "x2", "x3")
	g.kernel("addWide4", "sums[i] = (((sums[i] + x0[i]) + x1[i]) + x2[i]) + x3[i]",
		params(typed(stream, "float64", "sums"), rows), func(l *loop) (step, end func()) {
			return func() {
				for h := range 2 {
					sum := l.register()
					l.VMOVUPD(l.at("sums", h*l.lanes/2), sum)
					for _, row := range rows {
						x := l.register()
						l.VCVTPS2PD(l.at(row.name, h*l.lanes/2), x)
						l.VADDPD(x, sum, sum)
					}
					l.VMOVUPD(sum, l.at("sums", h*l.lanes/2))
				}
			}, nil
		})
}

// addTo adds float64 numbers to the part's elements of a float64 stream.
func (l *loop) addTo(name string, d doubles) {
	for h := range d {
		l.VADDPD(l.at(name, h*l.lanes/2), d[h], d[h])
		l.VMOVUPD(d[h], l.at(name, h*l.lanes/2))
	}
}
