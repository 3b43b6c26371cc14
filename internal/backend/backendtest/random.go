// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
	"github.com/lockstep-ml/lockstep/internal/rng"
)

func init() {
	makers[backend.OpDropout] = dropoutSamples
	makers[backend.OpUniform] = func(g *gen) {
		drawSamples(g, [2]float64{-1, 3}, rng.Float32At, rng.Float64At, func(u float64) float64 { return -1 + u*4 })
	}
	makers[backend.OpNormal] = func(g *gen) {
		drawSamples(g, [2]float64{0.5, 2}, rng.Normal32At, rng.Normal64At, func(z float64) float64 { return 0.5 + z*2 })
	}
	makers[backend.OpStochasticRound] = stochasticRoundSamples
	makers[backend.OpAdamMoments] = adamSamples
	makers[backend.OpAdamW] = adamWSamples
}

const position = 5_000_000_000 // beyond 32 bits

func dropoutSamples(g *gen) {
	for _, dt := range g.some(floating) {
		for _, shape := range [][]int{{}, {1}, {0, 3}, {5}, {7, 13}, {3, 2, 5}, {2, 20001}} {
			for _, p := range []float64{0, 0.3, 1} {
				x := g.random(dt, rowMajor, -2, 2, shape...)
				want := make([]float64, x.numel())
				per := x.numel()
				if len(shape) > 0 {
					per = numel(shape[1:])
				}
				for i := range want {
					if float64(rng.Float32At(3, uint64(position+i/per), uint64(i%per))) >= p {
						want[i] = x.at(i) / (1 - p)
					}
				}
				s := &sample{ins: []*operand{x}, outs: []*operand{output(dt, rowMajor, shape...)},
					want: [][]float64{want}, key: 3}
				s.floats[0], s.ints[0] = p, position
				g.add(s, "%s %v p %v", dt, shape, p)
			}
		}
	}
}

func drawSamples(g *gen, floats [2]float64, at32 func(key, position, element uint64) float32,
	at64 func(key, position, element uint64) float64,
	f func(float64) float64) {
	for _, dt := range g.some(floating) {
		for _, shape := range [][]int{{}, {1}, {0}, {5}, {3, 11}, {2, 20001}} {
			want := make([]float64, numel(shape))
			for i := range want {
				if dt == dtype.Float64 {
					want[i] = f(at64(3, position, uint64(i)))
				} else {
					want[i] = f(float64(at32(3, position, uint64(i))))
				}
			}
			s := &sample{outs: []*operand{output(dt, rowMajor, shape...)}, want: [][]float64{want}, key: 3}
			s.floats[0], s.floats[1], s.ints[0] = floats[0], floats[1], position
			g.add(s, "%s %v", dt, shape)
		}
	}
}

// stochasticRoundSamples lie between two numbers that the half types hold, or are one.
func stochasticRoundSamples(g *gen) {
	for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
		for _, shape := range [][]int{{}, {1}, {0, 3}, {37}, {2, 20001}} {
			x := g.random(dtype.Float32, rowMajor, -2, 2, shape...)
			want := make([]float64, x.numel())
			for i := range want {
				want[i] = stochasticallyRounded(dt, x.at(i), rng.Uint32At(3, position, 77+uint64(i)))
			}
			s := &sample{ins: []*operand{x}, outs: []*operand{output(dt, rowMajor, shape...)}, want: [][]float64{want},
				key: 3}
			s.ints[0], s.ints[1] = position, 77
			g.add(s, "%s %v", dt, shape)
		}
	}
}

// stochasticallyRounded is what OpStochasticRound makes of x, by the definition.
func stochasticallyRounded(dt dtype.DType, x float64, bits uint32) float64 {
	mantissa, least := 7, -126
	if dt == dtype.Float16 {
		mantissa, least = 10, -14
	}
	_, exponent := math.Frexp(x)
	step := math.Ldexp(1, max(exponent-1, least)-mantissa)
	below := math.Trunc(x/step) * step
	dropped := 23 - mantissa // bits of float32
	if far := math.Abs(x-below) / step; exponent-1 >= least {
		if far*math.Ldexp(1, dropped)+float64(bits>>(32-dropped)) >= math.Ldexp(1, dropped) {
			below += math.Copysign(step, x)
		}
	} else if far*math.Ldexp(1, 32) > float64(bits) {
		below += math.Copysign(step, x)
	}
	return below
}

func adamSamples(g *gen) {
	const b1, b2, eps, c1, c2 = 0.9, 0.99, 1e-3, 0.271, 0.0297
	for _, dt := range g.some(floating) {
		for _, n := range []int{0, 1, 37, 40000} {
			grad := g.random(dt, rowMajor, -1, 1, n)
			m, v := g.random(dt, rowMajor, -1, 1, n), g.random(dt, rowMajor, 0, 1, n)
			want := [][]float64{make([]float64, n), make([]float64, n), make([]float64, n)}
			for i := range n {
				x := grad.at(i)
				want[0][i] = b1*m.at(i) + (1-b1)*x
				want[1][i] = b2*v.at(i) + (1-b2)*x*x
				want[2][i] = want[0][i] / c1 / (math.Sqrt(want[1][i]/c2) + eps)
			}
			s := &sample{ins: []*operand{grad}, outs: []*operand{m, v, output(dt, rowMajor, n)}, want: want, loose: 4}
			copy(s.floats[:], []float64{b1, b2, eps, c1, c2})
			g.add(s, "%s %d", dt, n)
		}
	}
}

func adamWSamples(g *gen) {
	const b1, b2, eps, c1, c2, lr, decay, scale = 0.9, 0.99, 1e-3, 0.271, 0.0297, 0.05, 0.4, 0.7
	for _, dt := range g.some(floating) {
		for _, n := range []int{0, 1, 37, 40000} {
			grad, p := g.random(dt, rowMajor, -1, 1, n), g.random(dt, rowMajor, -1, 1, n)
			m, v := g.random(dt, rowMajor, -1, 1, n), g.random(dt, rowMajor, 0, 1, n)
			want := [][]float64{make([]float64, n), make([]float64, n), make([]float64, n)}
			for i := range n {
				x := scale * grad.at(i)
				want[1][i] = b1*m.at(i) + (1-b1)*x
				want[2][i] = b2*v.at(i) + (1-b2)*x*x
				want[0][i] = (1-lr*decay)*p.at(i) - lr*want[1][i]/c1/(math.Sqrt(want[2][i]/c2)+eps)
			}
			s := &sample{ins: []*operand{grad}, outs: []*operand{p, m, v}, want: want, loose: 4}
			copy(s.floats[:], []float64{b1, b2, eps, c1, c2, lr, decay, scale})
			g.add(s, "%s %d", dt, n)

			told := *s // by numbers in memory
			told.ins = append(told.ins, numbers(dtype.Float64, []int{1}, []float64{scale}),
				newOperand(dtype.Float64, shifted, []int{4}, func(i int) float64 {
					return []float64{c1, c2, lr, decay}[i]
				}))
			copy(told.floats[3:], []float64{9, 9, 9, 9, 9})
			told.numbers = true
			g.add(&told, "%s %d, numbers in memory", dt, n)
		}
	}
}
