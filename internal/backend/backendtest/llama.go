// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"github.com/lockstep-ml/lockstep/internal/backend"
)

func init() {
	makers[backend.OpSwiGLUGrad] = swigluGradSamples
	makers[backend.OpRoPE] = ropeSamples
}

func swigluGradSamples(g *gen) {
	for _, dt := range g.some(floating) {
		for _, n := range []int{0, 1, 37, 40000} {
			gate, up, dy := g.random(dt, rowMajor, -8, 8, n), g.random(dt, rowMajor, -2, 2, n),
				g.random(dt, rowMajor, -1, 1, n)
			want := [][]float64{make([]float64, n), make([]float64, n)}
			for i := range n {
				x := gate.at(i)
				s := sigmoid(x)
				want[0][i], want[1][i] = dy.at(i)*up.at(i)*s*(1+x*(1-s)), dy.at(i)*x*s
			}
			g.add(&sample{ins: []*operand{gate, up, dy},
				outs: []*operand{output(dt, rowMajor, n), output(dt, rowMajor, n)}, want: want, loose: 4}, "%s %d", dt,
				n)
		}
	}
}

func ropeSamples(g *gen) {
	shared := repeated("shared", func(k, nd int) bool { return nd == 3 && k == 0 })
	for _, dt := range g.some(floating) {
		for _, c := range []struct {
			b, h, t, d, r int
			x, table, out layout
		}{
			{1, 1, 1, 2, 1, rowMajor, rowMajor, rowMajor},
			{2, 3, 5, 8, 4, tokenMajor, shared, tokenMajor},
			{2, 3, 5, 11, 3, rowMajor, rowMajor, tokenMajor},
			{1, 2, 3, 5, 0, rowMajor, shared, rowMajor},
			{2, 2, 7, 70, 35, tokenMajor, shared, rowMajor},
			{1, 4, 300, 32, 16, tokenMajor, rowMajor, tokenMajor},
			{0, 2, 3, 4, 2, rowMajor, rowMajor, rowMajor},
			{2, 0, 3, 4, 2, rowMajor, shared, rowMajor},
			{2, 2, 0, 4, 2, rowMajor, shared, rowMajor},
		} {
			for k := range 4 {
				back, tables := k%2, dt
				if k < 2 {
					tables = statistic(dt)
				} else if tables == statistic(dt) {
					continue
				}
				x := g.random(dt, c.x, -2, 2, c.b, c.h, c.t, c.d)
				cos, sin := g.random(tables, c.table, -1, 1, c.b, c.t, c.r),
					g.random(tables, c.table, -1, 1, c.b, c.t, c.r)
				want, sign := x.values(), float64(1-2*back)
				for row := range c.b * c.h * c.t {
					at, table := row*c.d, (row/(c.h*c.t)*c.t+row%c.t)*c.r
					for e := range c.r {
						u, v, cs, sn := x.at(at+e), x.at(at+c.r+e), cos.at(table+e), sign*sin.at(table+e)
						want[at+e], want[at+c.r+e] = u*cs-v*sn, v*cs+u*sn
					}
				}
				s := &sample{ins: []*operand{x, cos, sin}, outs: []*operand{output(dt, c.out, c.b, c.h, c.t, c.d)},
					want: [][]float64{want}, loose: 2}
				s.ints[0] = back
				g.add(s, "%s %v tables %s back %d", dt, []int{c.b, c.h, c.t, c.d, c.r}, tables, back)
			}
		}
	}
}
