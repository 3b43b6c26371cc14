// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/mmcloughlin/avo/reg"

// adamNumbers are the scalars of an Adam step as its kernels take them: a1 = 1-b1, a2 = 1-b2, r1 and r2 the reciprocals
// of the corrections.
var adamNumbers = scalars("b1", "a1", "b2", "a2", "r1", "r2", "eps")

// adamDirection emits the update of the moments and returns m·r1/(√(v·r2)+eps).
func (l *loop) adamDirection(grad reg.VecVirtual, c map[string]reg.VecVirtual) reg.VecVirtual {
	square := l.squareOf(grad)
	l.VMULPS(c["a2"], square, square)
	m, v := l.times(c["b1"], "m"), l.times(c["b2"], "v")
	l.VMULPS(c["a1"], grad, grad)
	l.VADDPS(grad, m, m)
	l.VADDPS(square, v, v)
	l.store(m, "m")
	l.store(v, "v")
	l.VMULPS(c["r1"], m, m)
	l.VMULPS(c["r2"], v, v)
	l.VSQRTPS(v, v)
	l.VADDPS(c["eps"], v, v)
	l.VDIVPS(v, m, m)
	return m
}

// numbers loads scalars by name.
func (l *loop) numbers(list []param) map[string]reg.VecVirtual {
	m := map[string]reg.VecVirtual{}
	for _, p := range list {
		m[p.name] = l.scalar(p.name)
	}
	return m
}

func (g *generator) optimizers() {
	g.kernel("adamMoments",
		"m[i] = b1·m[i] + a1·grad[i], v[i] = b2·v[i] + a2·grad[i]², u[i] = m[i]·r1/(√(v[i]·r2)+eps)",
		params(streams("m", "v", "u", "grad"), adamNumbers), func(l *loop) (step, end func()) {
			c := l.numbers(adamNumbers)
			return func() { l.store(l.adamDirection(l.load("grad"), c), "u") }, nil
		})
	more := scalars("clip", "keep", "rate")
	g.kernel("adamW", "as adamMoments with clip·grad[i], then p[i] = keep·p[i] + rate·u[i]",
		params(streams("p", "m", "v", "grad"), adamNumbers, more),
		func(l *loop) (step, end func()) {
			c := l.numbers(params(adamNumbers, more))
			zero, prefetch := l.constant(0), l.prefetchFar(2560, "p", "m", "v", "grad")
			return func() {
				prefetch()
				grad := l.times(c["clip"], "grad")
				l.VADDPS(zero, grad, grad)
				u := l.adamDirection(grad, c)
				l.VMULPS(c["rate"], u, u)
				p := l.times(c["keep"], "p")
				l.VADDPS(zero, p, p)
				l.VADDPS(u, p, p)
				l.store(p, "p")
			}, nil
		})
}
