// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// centred emits (x-m)·s.
func (l *loop) centred(name string, m, s reg.VecVirtual) reg.VecVirtual {
	x := l.load(name)
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
		g.nonTemporalKernel(affine.name, affine.formula,
			params(streams("dst", "x"), streams(affine.operands...), scalars("m", "s")),
			func(l *loop) (step, end func()) {
				m, s := l.scalar("m"), l.scalar("s")
				return func() {
					x := l.centred("x", m, s)
					for i, name := range affine.operands {
						[]func(ops ...operand.Op){l.VMULPS, l.VADDPS}[i](l.at(name, 0), x, x)
					}
					l.store(x, "dst")
				}, nil
			})
	}
	g.nonTemporalKernel("normalizeMoments", "normalizeAffine of dst, x, w, b with m, s, and rowMoments of next, sum, "+
		"squares with k",
		params(streams("dst", "x", "w", "b", "next"), sums("sum", "squares"), scalars("m", "s", "k")),
		func(l *loop) (step, end func()) {
			m, s, k, sum, squares, prefetch := l.needed("m"), l.needed("s"), l.needed("k"), l.gather("sum"),
				l.gather("squares"), l.prefetchFar(5120, "next")
			return func() {
					prefetch()
					x := l.centred("x", m(), s())
					l.VMULPS(l.at("w", 0), x, x)
					l.VADDPS(l.at("b", 0), x, x)
					l.store(x, "dst")
					x = l.load("next")
					l.VSUBPS(k(), x, x)
					sum.add(x)
					l.VMULPS(x, x, x)
					squares.add(x)
				}, func() {
					sum.store()
					squares.store()
				}
		})
	for _, gradients := range [][]string{nil, {"dw"}, {"dw", "db"}} {
		names := []string{"normSums", "normSumsScale", "normSumsAffine"}
		formula := "with d = dy[i]·w[i]: sum[i%16] += d, inner[i%16] += d·((x[i]-m)·s), four of them added before"
		for _, added := range []string{"; dw[i] += dy[i]·((x[i]-m)·s)", ", db[i] += dy[i]"}[:len(gradients)] {
			formula += added
		}
		g.kernel(names[len(gradients)], formula,
			params(streams(gradients...), streams("x", "dy", "w"), sums("sum", "inner"), scalars("m", "s")),
			func(l *loop) (step, end func()) {
				m, s, sum, inner := l.needed("m"), l.needed("s"), l.gather("sum"), l.gather("inner")
				prefetch, prefetchSecond := l.prefetchL1(4096, "x", "dy"), l.prefetchL2Instead(6144, "x")
				return func() {
						prefetch()
						prefetchSecond()
						dy, x := l.load("dy"), l.centred("x", m(), s())
						l.paramGrad(dy, x, gradients)
						l.VMULPS(l.at("w", 0), dy, dy)
						l.VMULPS(dy, x, x)
						sum.add(dy)
						inner.add(x)
					}, func() {
						sum.store()
						inner.store()
					}
			})
	}
	g.nonTemporalKernel("normGrad", "dst[i] = f·((dy[i]·w[i]-a) - (x[i]-m)·s·b)",
		params(streams("dst", "x", "dy", "w"), scalars("m", "s", "a", "b", "f")),
		func(l *loop) (step, end func()) {
			m, s, a, b, f := l.scalar("m"), l.scalar("s"), l.scalar("a"), l.scalar("b"), l.scalar("f")
			prefetch := l.prefetchL2Instead(6144, "dy")
			return func() {
				prefetch()
				d := l.load("dy")
				l.VMULPS(l.at("w", 0), d, d)
				l.VSUBPS(a, d, d)
				x := l.centred("x", m, s)
				l.VMULPS(b, x, x)
				l.VSUBPS(x, d, d)
				l.VMULPS(f, d, d)
				l.store(d, "dst")
			}, nil
		})
	g.nonTemporalKernel("normGradSums", "normGrad of dst, x, dy, w with m, s, a, b, f, and normSumsAffine of dw, db, "+
		"nextX, nextDY, w with nextM, nextS",
		params(streams("dst", "x", "dy", "w", "dw", "db", "nextX", "nextDY"), sums("sum", "inner"),
			scalars("m", "s", "a", "b", "f", "nextM", "nextS")),
		func(l *loop) (step, end func()) {
			m, s, a, b, f, nextM, nextS := l.needed("m"), l.needed("s"), l.needed("a"), l.needed("b"), l.needed("f"),
				l.needed("nextM"), l.needed("nextS")
			sum, inner, prefetch := l.gather("sum"), l.gather("inner"), l.prefetchFar(3072, "nextX", "nextDY")
			return func() {
					prefetch()
					d := l.load("dy")
					l.VMULPS(l.at("w", 0), d, d)
					l.VSUBPS(a(), d, d)
					x := l.centred("x", m(), s())
					l.VMULPS(b(), x, x)
					l.VSUBPS(x, d, d)
					l.VMULPS(f(), d, d)
					l.store(d, "dst")
					dy := l.load("nextDY")
					x = l.centred("nextX", nextM(), nextS())
					l.paramGrad(dy, x, []string{"dw", "db"})
					l.VMULPS(l.at("w", 0), dy, dy)
					l.VMULPS(dy, x, x)
					sum.add(dy)
					inner.add(x)
				}, func() {
					sum.store()
					inner.store()
				}
		})
	for _, gradients := range [][]string{{"dw"}, {"dw", "db"}} {
		name, formula := "normScaleGrad", "dw[i] += dy[i]·((x[i]-m)·s)"
		if len(gradients) > 1 {
			name, formula = "normAffineGrad", formula+", db[i] += dy[i]"
		}
		g.kernel(name, formula, params(streams(gradients...), streams("x", "dy"), scalars("m", "s")),
			func(l *loop) (step, end func()) {
				m, s, prefetch := l.scalar("m"), l.scalar("s"), l.prefetchL1(4096, "x", "dy")
				return func() {
					prefetch()
					l.paramGrad(l.load("dy"), l.centred("x", m, s), gradients)
				}, nil
			})
	}
}

// needed is a parameter in each lane whenever it is asked for. With 256 bits it is read each time: 16 registers do not
// hold it beside sums.
func (l *loop) needed(name string) func() reg.VecVirtual {
	return l.reread(func() reg.VecVirtual { return l.scalar(name) })
}

// neededConstant is a number in each lane whenever it is asked for, as needed is for a parameter.
func (l *loop) neededConstant(x float32) func() reg.VecVirtual {
	return l.reread(func() reg.VecVirtual { return l.constant(x) })
}

// reread reads each time with 256 bits, once with 512.
func (l *loop) reread(read func() reg.VecVirtual) func() reg.VecVirtual {
	if !l.wide() {
		return read
	}
	v := read()
	return func() reg.VecVirtual { return v }
}

// paramGrad adds dy·x to the first of the gradients and dy to the second.
func (l *loop) paramGrad(dy, x reg.VecVirtual, gradients []string) {
	for i, name := range gradients {
		sum := dy
		if i == 0 {
			sum = l.register()
			l.VMULPS(x, dy, sum)
		}
		y := l.load(name)
		l.VADDPS(sum, y, y)
		l.store(y, name)
	}
}
