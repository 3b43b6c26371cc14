package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// centred emits (x-m)·s.
func (l *loop) centred(m, s reg.VecVirtual) reg.VecVirtual {
	x := l.load("x")
	l.VSUBPS(m, x, x)
	l.VMULPS(s, x, x)
	return x
}

// norms emits the kernels of layer norm; those of RMS norm are the same with m = 0.
func (g *generator) norms() {
	for _, affine := range []struct {
		name, formula string
		operands      []string
	}{
		{"normalize", "dst[i] = (x[i]-m)·s", nil},
		{"normalizeScale", "dst[i] = (x[i]-m)·s·w[i]", []string{"w"}},
		{"normalizeAffine", "dst[i] = (x[i]-m)·s·w[i] + b[i]", []string{"w", "b"}},
	} {
		g.pastKernel(affine.name, affine.formula, params(streams("dst", "x"), streams(affine.operands...), scalars("m", "s")), func(l *loop) (step, end func()) {
			m, s := l.scalar("m"), l.scalar("s")
			return func() {
				x := l.centred(m, s)
				for i, name := range affine.operands {
					[]func(ops ...operand.Op){l.VMULPS, l.VADDPS}[i](l.at(name, 0), x, x)
				}
				l.store(x, "dst")
			}, nil
		})
	}
	g.kernel("normSums", "with d = dy[i]·w[i]: sum[i%16] += d, inner[i%16] += d·((x[i]-m)·s)",
		params(streams("x", "dy", "w"), sums("sum", "inner"), scalars("m", "s")), func(l *loop) (step, end func()) {
			m, s, sum, inner := l.scalar("m"), l.scalar("s"), l.accumulate("sum"), l.accumulate("inner")
			return func() {
					l.ahead("x", "dy")
					d := l.load("dy")
					l.VMULPS(l.at("w", 0), d, d)
					wide := l.widened(d)
					sum.add(wide)
					inner.addProduct(wide, l.widened(l.centred(m, s)))
				}, func() {
					sum.store()
					inner.store()
				}
		})
	g.pastKernel("normGrad", "dst[i] = f·((dy[i]·w[i]-a) - (x[i]-m)·s·b)", params(streams("dst", "x", "dy", "w"), scalars("m", "s", "a", "b", "f")),
		func(l *loop) (step, end func()) {
			m, s, a, b, f := l.scalar("m"), l.scalar("s"), l.scalar("a"), l.scalar("b"), l.scalar("f")
			return func() {
				d := l.load("dy")
				l.VMULPS(l.at("w", 0), d, d)
				l.VSUBPS(a, d, d)
				x := l.centred(m, s)
				l.VMULPS(b, x, x)
				l.VSUBPS(x, d, d)
				l.VMULPS(f, d, d)
				l.store(d, "dst")
			}, nil
		})
	g.kernel("normScaleGrad", "dw[i] += dy[i]·(x[i]-m)·s", params(typed(stream, "float64", "dw"), streams("x", "dy"), scalars("m", "s")),
		func(l *loop) (step, end func()) {
			m, s := l.scalar("m"), l.scalar("s")
			return func() { l.addTo("dw", l.widened(l.scaleGrad(l.load("dy"), m, s))) }, nil
		})
	g.kernel("normAffineGrad", "dw[i] += dy[i]·(x[i]-m)·s, db[i] += dy[i]",
		params(typed(stream, "float64", "dw", "db"), streams("x", "dy"), scalars("m", "s")), func(l *loop) (step, end func()) {
			m, s := l.scalar("m"), l.scalar("s")
			return func() {
				dy := l.load("dy")
				l.addTo("dw", l.widened(l.scaleGrad(dy, m, s)))
				l.addTo("db", l.widened(dy))
			}, nil
		})
	four := func(name string) (names []string) {
		for r := range 4 {
			names = append(names, fmt.Sprint(name, r))
		}
		return names
	}
	for _, sums := range [][]string{{"dw"}, {"dw", "db"}} {
		name, formula := "normScaleGrad4", "normScaleGrad of four rows, in order"
		if len(sums) > 1 {
			name, formula = "normAffineGrad4", "normAffineGrad of four rows, in order"
		}
		g.kernel(name, formula, params(typed(stream, "float64", sums...), streams(four("x")...), streams(four("dy")...), scalars(four("m")...), scalars(four("s")...)),
			func(l *loop) (step, end func()) {
				m, s := l.numbers(scalars(four("m")...)), l.numbers(scalars(four("s")...))
				return func() {
					l.addRows("dw", func(r string) doubles {
						x := l.load("x" + r)
						l.VSUBPS(m["m"+r], x, x)
						l.VMULPS(l.at("dy"+r, 0), x, x)
						l.VMULPS(s["s"+r], x, x)
						return l.widened(x)
					})
					if len(sums) > 1 {
						l.addRows("db", func(r string) doubles { return l.loadWide("dy" + r) })
					}
				}, nil
			})
	}
}

// addRows adds what four rows contribute to the part's elements of a float64 stream.
func (l *loop) addRows(name string, row func(r string) doubles) {
	sum := doubles{l.register(), l.register()}
	for h := range sum {
		l.VMOVUPD(l.at(name, h*l.lanes/2), sum[h])
	}
	for r := range 4 {
		for h, x := range row(fmt.Sprint(r)) {
			l.VADDPD(x, sum[h], sum[h])
		}
	}
	for h := range sum {
		l.VMOVUPD(sum[h], l.at(name, h*l.lanes/2))
	}
}

// scaleGrad emits dy·(x-m)·s.
func (l *loop) scaleGrad(dy, m, s reg.VecVirtual) reg.VecVirtual {
	x := l.load("x")
	l.VSUBPS(m, x, x)
	l.VMULPS(dy, x, x)
	l.VMULPS(s, x, x)
	return x
}
