// SPDX-License-Identifier: Apache-2.0

package backendtest

import "github.com/lockstep-ml/lockstep/internal/backend"

func init() { makers[backend.OpLinear] = linearSamples }

// applied is the definition of an elementwise op of one input.
func applied(op backend.Op, x float64) float64 {
	for _, p := range pointwises {
		if p.op == op {
			return p.f([3]float64{x}, nil, 0)
		}
	}
	return x
}

func linearSamples(g *gen) {
	cases := []struct {
		m, k, n       int
		x, w, bias    layout
		biased, keeps bool
	}{
		{1, 1, 1, rowMajor, rowMajor, rowMajor, true, true},
		{3, 4, 5, rowMajor, reversed, rowMajor, true, true},
		{3, 4, 5, gapped, gapped, gapped, true, false},
		{3, 4, 5, rowMajor, rowMajor, rowMajor, false, true},
		{0, 4, 5, rowMajor, rowMajor, rowMajor, true, true},
		{3, 0, 5, rowMajor, rowMajor, rowMajor, true, true},
		{3, 4, 0, rowMajor, rowMajor, rowMajor, true, true},
		{1, 300, 170, rowMajor, reversed, rowMajor, true, true},
		{1, 300, 170, rowMajor, rowMajor, repeatAll, true, false},
		{130, 30, 1, rowMajor, rowMajor, rowMajor, true, true},
		{140, 300, 65, reversed, rowMajor, rowMajor, true, true},
		{130, 1, 150, rowMajor, rowMajor, rowMajor, false, true},
	}
	for _, dt := range g.some(floating) {
		for i, c := range cases {
			for _, op := range []backend.Op{backend.OpInvalid, backend.OpReLU, backend.OpGELU, backend.OpGELUTanh,
				backend.OpSiLU} {
				if op != backend.OpInvalid && i%2 != int(op)%2 {
					continue // each op with half of the cases
				}
				x, w := g.random(dt, c.x, -1, 1, c.m, c.k), g.random(dt, c.w, -0.5, 0.5, c.k, c.n)
				s := &sample{ins: []*operand{x, w}, loose: 16}
				before := make([]float64, c.m*c.n)
				if c.biased {
					bias := g.random(dt, c.bias, -1, 1, c.n)
					s.ins = append(s.ins, bias)
					for i := range before {
						before[i] = bias.at(i % c.n)
					}
				}
				xs, ws := x.values(), w.values()
				after := make([]float64, len(before))
				for i := range before {
					for p := range c.k {
						before[i] += xs[i/c.n*c.k+p] * ws[p*c.n+i%c.n]
					}
					after[i] = applied(op, before[i])
				}
				s.outs, s.want = []*operand{output(dt, rowMajor, c.m, c.n)}, [][]float64{after}
				if c.keeps && op != backend.OpInvalid {
					s.outs, s.want = append(s.outs, output(dt, rowMajor, c.m, c.n)), append(s.want, before)
				}
				s.ints[0] = int(op)
				g.add(s, "%s %d×%d×%d case %d %s", dt, c.m, c.k, c.n, i, op)
			}
		}
	}
}
