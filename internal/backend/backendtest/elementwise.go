// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"math"
	"testing"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

// pointwise is an elementwise op and its definition.
type pointwise struct {
	op     backend.Op
	ins    int
	lo, hi float64 // of the inputs
	dtypes []dtype.DType
	f      func(x [3]float64, c *sample, dt dtype.DType) float64
	floats []float64
	ints   []int
	bools  bool // the output is bool
}

var (
	// float32 comes last: its large samples are made
	signed     = append([]dtype.DType{dtype.Int32, dtype.Int64}, floating...)
	arithmetic = append([]dtype.DType{dtype.Uint8}, signed...)
	boolean    = []dtype.DType{dtype.Bool}
	everything = append([]dtype.DType{dtype.Bool}, arithmetic...)
)

func f1(f func(x float64) float64) func([3]float64, *sample, dtype.DType) float64 {
	return func(x [3]float64, _ *sample, _ dtype.DType) float64 { return f(x[0]) }
}

func f2(f func(x, y float64) float64) func([3]float64, *sample, dtype.DType) float64 {
	return func(x [3]float64, _ *sample, _ dtype.DType) float64 { return f(x[0], x[1]) }
}

// attributed is a function of one input and of the call's attributes, and slope the gradient of one whose derivative is
// f.
func attributed(f func(x float64, a []float64) float64) func([3]float64, *sample, dtype.DType) float64 {
	return func(x [3]float64, s *sample, _ dtype.DType) float64 { return f(x[0], s.floats[:]) }
}

func slope(f func(x float64, a []float64) float64) func([3]float64, *sample, dtype.DType) float64 {
	return func(x [3]float64, s *sample, _ dtype.DType) float64 { return x[1] * f(x[0], s.floats[:]) }
}

func softplus(x float64, a []float64) float64 {
	if a[0]*x > a[1] {
		return x
	}
	return math.Log1p(math.Exp(a[0]*x)) / a[0]
}

// bce is −p·y·ln σ(x) − (1−y)·ln(1−σ(x)).
func bce(x, y, p float64) float64 {
	return p*y*math.Log1p(math.Exp(-x)) + (1-y)*math.Log1p(math.Exp(x))
}

func test(f func(x, y float64) bool) func([3]float64, *sample, dtype.DType) float64 {
	return f2(func(x, y float64) float64 { return truth(f(x, y)) })
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
func cdf(x float64) float64     { return math.Erfc(-x/math.Sqrt2) / 2 }

var gelu = math.Sqrt(2 / math.Pi)

func geluTanh(x float64) float64 { return x / 2 * (1 + math.Tanh(geluInner(x))) }

func geluTanhGrad(x, dy float64) float64 {
	th := math.Tanh(geluInner(x))
	return dy * ((1+th)/2 + x/2*(1-th*th)*gelu*(1+3*0.044715*x*x))
}

func geluInner(x float64) float64 { return gelu * (x + 0.044715*x*x*x) }

var pointwises = []pointwise{
	{op: backend.OpNeg, ins: 1, lo: -9, hi: 9, dtypes: signed, f: f1(func(x float64) float64 { return -x })},
	{op: backend.OpAbs, ins: 1, lo: -9, hi: 9, dtypes: signed, f: f1(math.Abs)},
	{op: backend.OpExp, ins: 1, lo: -20, hi: 10, dtypes: floating, f: f1(math.Exp)},
	{op: backend.OpLog, ins: 1, lo: 0.01, hi: 20, dtypes: floating, f: f1(math.Log)},
	{op: backend.OpSqrt, ins: 1, lo: 0, hi: 20, dtypes: floating, f: f1(math.Sqrt)},
	{op: backend.OpRsqrt, ins: 1, lo: 0.1, hi: 20, dtypes: floating,
		f: f1(func(x float64) float64 { return 1 / math.Sqrt(x) })},
	{op: backend.OpSin, ins: 1, lo: -20, hi: 20, dtypes: floating, f: f1(math.Sin)},
	{op: backend.OpCos, ins: 1, lo: -20, hi: 20, dtypes: floating, f: f1(math.Cos)},
	{op: backend.OpTanh, ins: 1, lo: -4, hi: 4, dtypes: floating, f: f1(math.Tanh)},
	{op: backend.OpSigmoid, ins: 1, lo: -20, hi: 20, dtypes: floating, f: f1(sigmoid)},
	{op: backend.OpErf, ins: 1, lo: -4, hi: 4, dtypes: floating, f: f1(math.Erf)},
	{op: backend.OpReLU, ins: 1, lo: -4, hi: 4, dtypes: floating,
		f: f1(func(x float64) float64 { return math.Max(x, 0) })},
	{op: backend.OpGELU, ins: 1, lo: -8, hi: 8, dtypes: floating, f: f1(func(x float64) float64 { return x * cdf(x) })},
	{op: backend.OpGELUTanh, ins: 1, lo: -8, hi: 8, dtypes: floating, f: f1(geluTanh)},
	{op: backend.OpSiLU, ins: 1, lo: -20, hi: 20, dtypes: floating,
		f: f1(func(x float64) float64 { return x * sigmoid(x) })},
	{op: backend.OpLeakyReLU, ins: 1, lo: -4, hi: 4, dtypes: floating, floats: []float64{0.3},
		f: attributed(func(x float64, a []float64) float64 {
			return max(x, 0) + a[0]*min(x, 0)
		})},
	{op: backend.OpELU, ins: 1, lo: -8, hi: 8, dtypes: floating, floats: []float64{1.5},
		f: attributed(func(x float64, a []float64) float64 {
			return max(x, 0) + a[0]*math.Expm1(min(x, 0))
		})},
	{op: backend.OpSoftplus, ins: 1, lo: -30, hi: 30, dtypes: floating, floats: []float64{1, 20},
		f: attributed(softplus)},
	{op: backend.OpSoftplus, ins: 1, lo: -4, hi: 4, dtypes: floating, floats: []float64{2.5, 5},
		f: attributed(softplus)},
	{op: backend.OpNot, ins: 1, dtypes: boolean, f: f1(func(x float64) float64 { return 1 - x })},
	{op: backend.OpAffine, ins: 1, lo: -9, hi: 9, dtypes: signed, floats: []float64{-1.5, 0.25}, ints: []int{3, -4},
		f: func(x [3]float64, s *sample, dt dtype.DType) float64 {
			if dt.IsInt() {
				return x[0]*float64(s.ints[0]) + float64(s.ints[1])
			}
			return x[0]*s.floats[0] + s.floats[1]
		}},
	{op: backend.OpPowScalar, ins: 1, lo: 0, hi: 5, dtypes: floating, floats: []float64{1.7}, f: powScalar},
	{op: backend.OpPowScalar, ins: 1, lo: -5, hi: 5, dtypes: floating, floats: []float64{2}, f: powScalar},
	{op: backend.OpPowScalar, ins: 1, lo: -5, hi: 5, dtypes: floating, floats: []float64{3}, f: powScalar},

	{op: backend.OpTanhGrad, ins: 2, lo: -1, hi: 1, dtypes: floating,
		f: f2(func(y, dy float64) float64 { return dy * (1 - y*y) })},
	{op: backend.OpSigmoidGrad, ins: 2, lo: 0, hi: 1, dtypes: floating,
		f: f2(func(y, dy float64) float64 { return dy * y * (1 - y) })},
	{op: backend.OpReLUGrad, ins: 2, lo: -1, hi: 1, dtypes: floating,
		f: f2(func(y, dy float64) float64 { return dy * truth(y > 0) })},
	{op: backend.OpGELUGrad, ins: 2, lo: -4, hi: 4, dtypes: floating, f: f2(func(x, dy float64) float64 {
		return dy * (cdf(x) + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi))
	})},
	{op: backend.OpGELUTanhGrad, ins: 2, lo: -4, hi: 4, dtypes: floating, f: f2(geluTanhGrad)},
	{op: backend.OpSiLUGrad, ins: 2, lo: -4, hi: 4, dtypes: floating, f: f2(func(x, dy float64) float64 {
		s := sigmoid(x)
		return dy * (s + x*s*(1-s))
	})},

	{op: backend.OpLeakyReLUGrad, ins: 2, lo: -4, hi: 4, dtypes: floating, floats: []float64{0.3},
		f: slope(func(x float64, a []float64) float64 {
			if x > 0 {
				return 1
			}
			return a[0]
		})},
	{op: backend.OpELUGrad, ins: 2, lo: -8, hi: 8, dtypes: floating, floats: []float64{1.5},
		f: slope(func(x float64, a []float64) float64 {
			if x > 0 {
				return 1
			}
			return a[0] * math.Exp(x)
		})},
	{op: backend.OpSoftplusGrad, ins: 2, lo: -8, hi: 8, dtypes: floating, floats: []float64{2.5, 5},
		f: slope(func(x float64, a []float64) float64 {
			if a[0]*x > a[1] {
				return 1
			}
			return sigmoid(a[0] * x)
		})},
	{op: backend.OpBCEWithLogits, ins: 2, lo: -9, hi: 9, dtypes: floating,
		f: f2(func(x, y float64) float64 { return bce(x, y, 1) })},
	{op: backend.OpBCEWithLogits, ins: 3, lo: -9, hi: 9, dtypes: floating,
		f: func(x [3]float64, _ *sample, _ dtype.DType) float64 {
			return bce(x[0], x[1], x[2])
		}},
	{op: backend.OpBCEWithLogitsSlope, ins: 2, lo: -9, hi: 9, dtypes: floating,
		f: f2(func(x, y float64) float64 { return sigmoid(x) - y })},
	{op: backend.OpBCEWithLogitsSlope, ins: 3, lo: -9, hi: 9, dtypes: floating,
		f: func(x [3]float64, _ *sample, _ dtype.DType) float64 {
			return (1-x[1])*sigmoid(x[0]) - x[2]*x[1]*sigmoid(-x[0])
		}},

	{op: backend.OpSwiGLU, ins: 2, lo: -8, hi: 8, dtypes: floating,
		f: f2(func(x, y float64) float64 { return x * sigmoid(x) * y })},
	{op: backend.OpAdd, ins: 2, lo: -9, hi: 9, dtypes: arithmetic, f: f2(func(x, y float64) float64 { return x + y })},
	{op: backend.OpSub, ins: 2, lo: -9, hi: 9, dtypes: arithmetic,
		f: func(x [3]float64, _ *sample, dt dtype.DType) float64 {
			d := x[0] - x[1]
			if dt == dtype.Uint8 && d < 0 {
				d += 256
			}
			return d
		}},
	{op: backend.OpMul, ins: 2, lo: -9, hi: 9, dtypes: arithmetic, f: f2(func(x, y float64) float64 { return x * y })},
	{op: backend.OpDiv, ins: 2, lo: 0.5, hi: 9, dtypes: floating, f: f2(func(x, y float64) float64 { return x / y })},
	{op: backend.OpPow, ins: 2, lo: 0.1, hi: 3, dtypes: floating, f: f2(math.Pow)},
	{op: backend.OpMaximum, ins: 2, lo: -9, hi: 9, dtypes: arithmetic, f: f2(math.Max)},
	{op: backend.OpMinimum, ins: 2, lo: -9, hi: 9, dtypes: arithmetic, f: f2(math.Min)},
	{op: backend.OpAxpby, ins: 2, lo: -9, hi: 9, dtypes: floating, floats: []float64{0.75, -2},
		f: func(x [3]float64, s *sample, _ dtype.DType) float64 {
			return s.floats[0]*x[0] + s.floats[1]*x[1]
		}},
	{op: backend.OpEq, ins: 2, lo: 0, hi: 2, dtypes: everything, bools: true,
		f: test(func(x, y float64) bool { return x == y })},
	{op: backend.OpNe, ins: 2, lo: 0, hi: 2, dtypes: everything, bools: true,
		f: test(func(x, y float64) bool { return x != y })},
	{op: backend.OpLt, ins: 2, lo: 0, hi: 2, dtypes: everything, bools: true,
		f: test(func(x, y float64) bool { return x < y })},
	{op: backend.OpLe, ins: 2, lo: 0, hi: 2, dtypes: everything, bools: true,
		f: test(func(x, y float64) bool { return x <= y })},
	{op: backend.OpGt, ins: 2, lo: 0, hi: 2, dtypes: everything, bools: true,
		f: test(func(x, y float64) bool { return x > y })},
	{op: backend.OpGe, ins: 2, lo: 0, hi: 2, dtypes: everything, bools: true,
		f: test(func(x, y float64) bool { return x >= y })},
	{op: backend.OpAnd, ins: 2, dtypes: boolean, f: f2(func(x, y float64) float64 { return x * y })},
	{op: backend.OpOr, ins: 2, dtypes: boolean, f: f2(math.Max)},
	{op: backend.OpWhere, ins: 3, lo: -9, hi: 9, dtypes: everything,
		f: func(x [3]float64, _ *sample, _ dtype.DType) float64 {
			if x[0] != 0 {
				return x[1]
			}
			return x[2]
		}},
}

func powScalar(x [3]float64, s *sample, _ dtype.DType) float64 { return math.Pow(x[0], s.floats[0]) }

func init() {
	for _, p := range pointwises {
		earlier := makers[p.op]
		makers[p.op] = func(g *gen) {
			if earlier != nil {
				earlier(g)
			}
			p.samples(g)
		}
	}
	alone := makers[backend.OpGELUTanhGrad]
	makers[backend.OpGELUTanhGrad] = func(g *gen) {
		alone(g)
		geluTanhBothSamples(g)
	}
	sums := makers[backend.OpAdd]
	makers[backend.OpAdd] = func(g *gen) {
		sums(g)
		addWideSamples(g)
	}
	makers[backend.OpCopy] = copySamples
	makers[backend.OpFill] = fillSamples
	makers[backend.OpArange] = arangeSamples
}

// shapes are those of elementwise samples: no dim, size one, empty, more than one block, more than one chunk.
var shapes = [][]int{{}, {1}, {7}, {3, 5}, {2, 3, 4}, {1, 6, 1}, {4, 0, 3}, {2, 3, 2, 2, 3}, {2, 1100}, {33000}}

// large reports a shape that spans several chunks; such samples are dear, and so few.
func large(shape []int) bool { return numel(shape) > 2000 }

// skip reports layouts that add nothing: all except one for no dim, and in a short run every other one.
func skip(layout int, shape []int) bool {
	return layout > 0 && (len(shape) == 0 || testing.Short() && layout%2 == 1 && !large(shape))
}

// combos are the layouts of inputs, in rotation, and of the output.
var combos = []struct {
	ins [3]layout
	out layout
}{
	{[3]layout{rowMajor, rowMajor, rowMajor}, rowMajor},
	{[3]layout{reversed, rowMajor, gapped}, rowMajor},
	{[3]layout{gapped, repeatLast, rowMajor}, reversed},
	{[3]layout{rowMajor, repeatFirst, repeatAll}, rowGapped},
	{[3]layout{repeatLast, rowGapped, repeatFirst}, gapped},
	{[3]layout{repeatAll, reversed, repeatLast}, rowMajor},
}

func (p *pointwise) samples(g *gen) {
	for _, dt := range g.some(p.dtypes) {
		for _, shape := range shapes {
			for i, l := range combos {
				if skip(i, shape) || large(shape) && (i%3 != 0 || dt != p.dtypes[len(p.dtypes)-1]) {
					continue
				}
				p.sample(g, dt, shape, l.ins, output(p.outType(dt), l.out, shape...))
			}
			if !p.bools && p.op != backend.OpWhere && !large(shape) {
				p.sample(g, dt, shape, [3]layout{rowMajor, rowMajor, rowMajor}, &operand{alias: 1})
			}
		}
	}
}

func (p *pointwise) outType(dt dtype.DType) dtype.DType {
	if p.bools {
		return dtype.Bool
	}
	return dt
}

func (p *pointwise) sample(g *gen, dt dtype.DType, shape []int, ls [3]layout, out *operand) {
	s := &sample{}
	copy(s.floats[:], p.floats)
	copy(s.ints[:], p.ints)
	for i := range p.ins {
		in := dt
		if p.op == backend.OpWhere && i == 0 {
			in = dtype.Bool
		}
		s.ins = append(s.ins, g.random(in, ls[i], p.lo, p.hi, shape...))
	}
	if out.alias > 0 {
		own := *s.ins[out.alias-1]
		own.alias = out.alias
		out = &own
	}
	s.outs = []*operand{out}
	want := make([]float64, numel(shape))
	for i := range want {
		var x [3]float64
		for k, in := range s.ins {
			x[k] = in.at(i)
		}
		want[i] = p.f(x, s, dt)
	}
	s.want = [][]float64{want}
	g.add(s, "%s %v %s,%s,%s alias %d", dt, shape, ls[0].name, ls[1].name, ls[2].name, out.alias)
}

// addWideSamples are sums in float32 of numbers of which one, or both, are of a half type. One in float32 may be in the
// sum's memory.
func addWideSamples(g *gen) {
	for _, half := range g.some(halves) {
		for _, dts := range [][2]dtype.DType{{dtype.Float32, half}, {half, dtype.Float32}, {half, half}} {
			for _, shape := range shapes {
				for i, l := range combos {
					if skip(i, shape) || large(shape) && i > 0 {
						continue
					}
					x, y := g.random(dts[0], l.ins[0], -9, 9, shape...), g.random(dts[1], l.ins[1], -9, 9, shape...)
					want := make([]float64, numel(shape))
					for i := range want {
						want[i] = x.at(i) + y.at(i)
					}
					out := output(dtype.Float32, l.out, shape...)
					for k, in := range []*operand{x, y} {
						if in.dt == dtype.Float32 && l.ins[k].name == rowMajor.name {
							own := *in
							own.alias = k + 1
							out = &own
						}
					}
					g.add(&sample{ins: []*operand{x, y}, outs: []*operand{out}, want: [][]float64{want}},
						"%s and %s %v %s,%s alias %d", dts[0], dts[1], shape, l.ins[0].name, l.ins[1].name, out.alias)
				}
			}
		}
	}
}

// geluTanhBothSamples have the function itself as a second output; the gradient may take dy's memory.
func geluTanhBothSamples(g *gen) {
	for _, dt := range g.some(floating) {
		for _, n := range []int{0, 1, 37, 40000} {
			for alias := range 2 {
				x, dy := g.random(dt, rowMajor, -4, 4, n), g.random(dt, rowMajor, -4, 4, n)
				want := [][]float64{make([]float64, n), make([]float64, n)}
				for i := range n {
					want[0][i], want[1][i] = geluTanhGrad(x.at(i), dy.at(i)), geluTanh(x.at(i))
				}
				dx := output(dt, rowMajor, n)
				if alias == 1 {
					own := *dy
					own.alias = 2
					dx = &own
				}
				g.add(&sample{ins: []*operand{x, dy}, outs: []*operand{dx, output(dt, rowMajor, n)}, want: want},
					"%s %d both, alias %d", dt, n, alias)
			}
		}
	}
}

func copySamples(g *gen) {
	for _, from := range dtype.All() {
		for _, to := range dtype.All() {
			for _, shape := range shapes {
				for i, l := range combos {
					if skip(i, shape) || large(shape) && (i%3 != 0 || from != dtype.Float32 && to != dtype.Float32) {
						continue
					}
					lo := -7.0
					if to == dtype.Uint8 {
						lo = 0 // what a negative number becomes is not specified
					}
					in := g.random(from, l.ins[0], lo, 9, shape...)
					want := make([]float64, in.numel())
					for i := range want {
						want[i] = convert(in.at(i), to)
					}
					g.add(&sample{ins: []*operand{in}, outs: []*operand{output(to, l.out, shape...)},
						want: [][]float64{want}},
						"%s to %s %v %s to %s", from, to, shape, l.ins[0].name, l.out.name)
				}
			}
		}
	}
	for _, dt := range g.some(dtype.All()) {
		for _, c := range moves {
			in := g.random(dt, c.in, -7, 9, c.shape...)
			g.add(&sample{ins: []*operand{in}, outs: []*operand{output(dt, c.out, c.shape...)},
				want: [][]float64{in.values()}}, "%s %v %s to %s", dt, c.shape, c.in.name, c.out.name)
		}
	}
}

// columns has gaps between rows, which begin at multiples of 16 elements if their length is one.
var columns = layout{"columns", func(shape []int) ([]int, int, int) {
	stride, total := strides(shape, 1, 16)
	return stride, 16, total + 16
}}

// moves are copies from one dtype to itself: matrices that are turned, and columns that are cut out or set in.
var moves = []struct {
	shape   []int
	in, out layout
}{
	{[]int{40, 35}, reversed, rowMajor}, {[]int{20, 3, 33}, reversed, rowMajor}, {[]int{20, 33}, reversed, rowGapped},
	{[]int{5, 48}, columns, rowMajor}, {[]int{3, 2, 32}, rowMajor, columns}, {[]int{5, 48}, columns, rowGapped},
}

// convert is the conversion of a value before it is rounded.
func convert(x float64, to dtype.DType) float64 {
	switch {
	case to == dtype.Bool:
		return truth(x != 0)
	case to.IsInt():
		return math.Trunc(x)
	}
	return x
}

func fillSamples(g *gen) {
	for _, dt := range g.some(dtype.All()) {
		for _, shape := range shapes {
			for _, l := range []layout{rowMajor, reversed, gapped} {
				value := -2.5
				switch {
				case dt == dtype.Bool:
					value = 1
				case !dt.IsFloat():
					value = 77
				}
				want := make([]float64, numel(shape))
				for i := range want {
					want[i] = value
				}
				s := &sample{outs: []*operand{output(dt, l, shape...)}, want: [][]float64{want}}
				s.floats[0], s.ints[0] = -2.5, 77
				g.add(s, "%s %v %s", dt, shape, l.name)
			}
		}
	}
}

func arangeSamples(g *gen) {
	for _, dt := range g.some(dtype.All()) {
		if dt == dtype.Bool {
			continue
		}
		for _, n := range []int{0, 1, 40} {
			for _, l := range []layout{rowMajor, gapped} {
				want := make([]float64, n)
				for i := range want {
					if want[i] = 2 + float64(i)*0.5; !dt.IsFloat() {
						want[i] = 3 + float64(i)*2
					}
				}
				s := &sample{outs: []*operand{output(dt, l, n)}, want: [][]float64{want}}
				s.floats[0], s.floats[1], s.ints[0], s.ints[1] = 2, 0.5, 3, 2
				g.add(s, "%s %d %s", dt, n, l.name)
			}
		}
	}
}
