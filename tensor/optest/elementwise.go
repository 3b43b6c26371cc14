// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/lockstep-ml/lockstep/tensor"
)

type unaryFunc func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor

// unaryRow is the row of an elementwise op on one operand.
func unaryRow(name string, dtypes []tensor.DType, fill Fill, f unaryFunc, want func(x float64) float64) Op {
	oracle := pointwise(func(x ...float64) float64 { return want(x[0]) })
	op := Op{Name: name, DTypes: dtypes}
	for _, shape := range [][]int{{}, {1}, {7}, {3, 5}, {2, 1, 3, 2}, {0}, {3, 0, 2}} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(shape), In: []Input{diff(fill, shape...)},
			Apply: unary(f), Want: oracle})
	}
	op.Samples = append(op.Samples, Sample{Name: "large", Large: true, In: []Input{diff(fill, 7, 5003)},
		Apply: unary(f)})
	return op
}

func gelu(x float64) float64 { return 0.5 * x * (1 + math.Erf(x/math.Sqrt2)) }

func geluTanh(x float64) float64 {
	return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

func leakyReLURow() Op {
	return unaryRow("LeakyReLU", floats, nonzero, func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.LeakyReLU(c, x, 0.2)
	}, func(x float64) float64 { return max(x, 0) + 0.2*min(x, 0) })
}

func eluRow() Op {
	return unaryRow("ELU", floats, nonzero, func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.ELU(c, x, 1.5)
	}, func(x float64) float64 { return max(x, 0) + 1.5*math.Expm1(min(x, 0)) })
}

func softplusRow() Op {
	op := unaryRow("Softplus", floats, normal, func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.Softplus(c, x, 1, 20)
	}, func(x float64) float64 { return math.Log1p(math.Exp(x)) })
	op.Samples = append(op.Samples,
		Sample{Name: "sharp", In: []Input{diff(given(-3, -0.5, 0, 0.5, 1.9, 2.1, 3), 7)},
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Softplus(c, x, 2.5, 5) }),
			Want: pointwise(func(v ...float64) float64 {
				if v[0] > 2 {
					return v[0]
				}
				return math.Log1p(math.Exp(2.5*v[0])) / 2.5
			})},
		Sample{Name: "far", Rough: true, In: []Input{diff(given(-1000, -30, 30, 1000), 4)},
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
				return tensor.Softplus(c, x, 1, math.Inf(1))
			}),
			Want: pointwise(func(v ...float64) float64 {
				return max(v[0], 0) + math.Log1p(math.Exp(-math.Abs(v[0])))
			})})
	op.Misuse = []Misuse{{Name: "beta", Want: "float32[2]): beta 0: want a positive number",
		Call: func(c *tensor.Ctx) { tensor.Softplus(c, zeros(c, 2), 0, 20) }}}
	return op
}

func clampRow() Op {
	// The draws stay away from 1 and 2, where there are kinks.
	around := each(func(r *rand.Rand) float64 { return 0.6 + 0.5*float64(r.IntN(4)) + 0.3*r.Float64() })
	op := unaryRow("Clamp", numbers, around, func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.Clamp(c, x, 1, 2)
	}, func(x float64) float64 { return min(max(x, 1), 2) })
	inf := math.Inf(1)
	for _, b := range [][2]float64{{-inf, inf}, {1, inf}, {-inf, 1}, {2, 1}} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(b), In: []Input{diff(around, 3, 5)},
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
				return tensor.Clamp(c, x, b[0], b[1])
			}),
			Want: pointwise(func(v ...float64) float64 { return min(max(v[0], b[0]), b[1]) })})
	}
	op.Samples = append(op.Samples, Sample{Name: "fractions", FloatsOnly: true, In: []Input{diff(normal, 4, 5)},
		Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Clamp(c, x, -0.5, 0.25) }),
		Want:  pointwise(func(v ...float64) float64 { return min(max(v[0], -0.5), 0.25) })})
	const want = "want numbers of the dtype, or infinities"
	op.Misuse = []Misuse{
		{Name: "NaN", Want: "float32[2]): bounds NaN and 1: " + want,
			Call: func(c *tensor.Ctx) { tensor.Clamp(c, zeros(c, 2), math.NaN(), 1) }},
		{Name: "fraction", Want: want, Call: func(c *tensor.Ctx) {
			tensor.Clamp(c, tensor.Zeros(c, tensor.Int64, 2), 0.5, 1)
		}},
		{Name: "range", Want: want, Call: func(c *tensor.Ctx) {
			tensor.Clamp(c, tensor.Zeros(c, tensor.Uint8, 2), -1, 1)
		}},
		{Name: "bool", Want: "want numbers",
			Call: func(c *tensor.Ctx) { tensor.Clamp(c, tensor.Zeros(c, tensor.Bool, 2), 0, 1) }},
	}
	return op
}

func unaryOps() []Op {
	affine := unaryRow("Affine", signed, normal,
		func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Affine(c, x, -3, 2) },
		func(x float64) float64 { return -3*x + 2 })
	affine.Samples = append(affine.Samples, Sample{Name: "fractions", FloatsOnly: true, In: []Input{diff(normal, 4)},
		Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Affine(c, x, 0.25, -0.5) }),
		Want:  pointwise(func(x ...float64) float64 { return 0.25*x[0] - 0.5 })})
	power := unaryRow("PowScalar", floats, positive,
		func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.PowScalar(c, x, 2.5) },
		func(x float64) float64 { return math.Pow(x, 2.5) })
	for _, p := range []float64{0, 1, 2, 3, -1} {
		power.Samples = append(power.Samples, Sample{Name: fmt.Sprintf("to %g", p), In: []Input{diff(nonzero, 5)},
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.PowScalar(c, x, p) }),
			Want:  pointwise(func(x ...float64) float64 { return math.Pow(x[0], p) })})
	}
	return []Op{
		leakyReLURow(),
		eluRow(),
		softplusRow(),
		clampRow(),
		unaryRow("Tanh", floats, normal, tensor.Tanh, math.Tanh),
		softCapRow(),
		unaryRow("Sigmoid", floats, normal, tensor.Sigmoid, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }),
		unaryRow("ReLU", floats, nonzero, tensor.ReLU, func(x float64) float64 { return max(x, 0) }),
		unaryRow("GELU", floats, normal, tensor.GELU, gelu),
		unaryRow("GELUTanh", floats, normal, tensor.GELUTanh, geluTanh),
		unaryRow("SiLU", floats, normal, tensor.SiLU, func(x float64) float64 { return x / (1 + math.Exp(-x)) }),
		unaryRow("Exp", floats, normal, tensor.Exp, math.Exp),
		unaryRow("Log", floats, positive, tensor.Log, math.Log),
		unaryRow("Sqrt", floats, positive, tensor.Sqrt, math.Sqrt),
		unaryRow("Rsqrt", floats, positive, tensor.Rsqrt, func(x float64) float64 { return 1 / math.Sqrt(x) }),
		unaryRow("Sin", floats, normal, tensor.Sin, math.Sin),
		unaryRow("Cos", floats, normal, tensor.Cos, math.Cos),
		unaryRow("Erf", floats, normal, tensor.Erf, math.Erf),
		unaryRow("Neg", signed, normal, tensor.Neg, func(x float64) float64 { return -x }),
		unaryRow("Abs", signed, nonzero, tensor.Abs, math.Abs),
		affine,
		power,
		unaryRow("Not", bools, coin, tensor.Not, func(x float64) float64 { return 1 - x }),
	}
}

func softCapRow() Op {
	op := unaryRow("SoftCap", floats, normal, func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.SoftCap(c, x, 1.5)
	}, func(x float64) float64 { return 1.5 * math.Tanh(x/1.5) })
	op.Slack = 2
	op.Misuse = []Misuse{{Name: "none", Want: "soft cap 0: want a positive number", Call: func(c *tensor.Ctx) {
		tensor.SoftCap(c, zeros(c, 2), 0)
	}}}
	return op
}

type binaryFunc func(c *tensor.Ctx, x, y *tensor.Tensor) *tensor.Tensor

// pairs are shapes that broadcast: to each other, in the middle, from the left, with
// size 0 and with no dims.
var pairs = [][2][]int{
	{{4}, {4}}, {{3, 5}, {3, 5}}, {{2, 3}, {3}}, {{3}, {2, 3}}, {{2, 1, 3}, {1, 4, 1}}, {{2, 3}, {}}, {{}, {}},
	{{1, 1}, {5}},
	{{0}, {1}}, {{2, 0, 3}, {3}}, {{2, 0}, {2, 0}}, {{2, 1}, {2, 0}},
}

// binaryRow is the row of an elementwise op on two operands.
func binaryRow(name string, dtypes []tensor.DType, fillX, fillY Fill, f binaryFunc,
	want func(x, y float64) float64) Op {
	oracle := pointwise(func(v ...float64) float64 { return want(v[0], v[1]) })
	op := Op{Name: name, DTypes: dtypes}
	for _, p := range pairs {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(p),
			In: []Input{diff(fillX, p[0]...), diff(fillY, p[1]...)}, Apply: binary(f), Want: oracle})
	}
	op.Samples = append(op.Samples, Sample{Name: "large", Large: true,
		In: []Input{diff(fillX, 7, 5003), diff(fillY, 5003)}, Apply: binary(f)})
	op.Misuse = []Misuse{
		{Name: "shapes", Want: "[2 3], ", Call: func(c *tensor.Ctx) {
			f(c, tensor.Zeros(c, dtypes[0], 2, 3), tensor.Zeros(c, dtypes[0], 2))
		}},
		{Name: "dtypes", Call: func(c *tensor.Ctx) {
			f(c, tensor.Zeros(c, dtypes[0], 2), tensor.Zeros(c, other(dtypes[0]), 2))
		}},
	}
	return op
}

// other is a dtype that is not dt.
func other(dt tensor.DType) tensor.DType {
	if dt == tensor.Float32 {
		return tensor.Float64
	}
	return tensor.Float32
}

// addOnto is AddOnto with an x that was made for it.
func addOnto(c *tensor.Ctx, x, y *tensor.Tensor) *tensor.Tensor {
	return tensor.AddOnto(c, tensor.Add(c, x, tensor.Zeros(c, x.DType())), y)
}

func binaryOps() []Op {
	return []Op{
		binaryRow("Add", numbers, normal, normal, tensor.Add, func(x, y float64) float64 { return x + y }),
		binaryRow("AddOnto", numbers, normal, normal, addOnto, func(x, y float64) float64 { return x + y }),
		binaryRow("Sub", numbers, normal, normal, tensor.Sub, func(x, y float64) float64 { return x - y }),
		binaryRow("Mul", numbers, normal, normal, tensor.Mul, func(x, y float64) float64 { return x * y }),
		binaryRow("Div", floats, normal, nonzero, tensor.Div, func(x, y float64) float64 { return x / y }),
		binaryRow("Pow", floats, positive, normal, tensor.Pow, math.Pow),
		binaryRow("Maximum", numbers, normal, normal, tensor.Maximum, math.Max),
		binaryRow("Minimum", numbers, normal, normal, tensor.Minimum, math.Min),
	}
}

// comparison is the row of an op whose result is bool: nothing is differentiable.
func comparison(name string, dtypes []tensor.DType, f binaryFunc, want func(x, y float64) bool) Op {
	op := binaryRow(name, dtypes, small, small, f, func(x, y float64) float64 { return truth(want(x, y)) })
	for i := range op.Samples {
		for j := range op.Samples[i].In {
			op.Samples[i].In[j].Diff = false
		}
	}
	return op
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func logicOps() []Op {
	where := Op{Name: "Where", DTypes: all, Misuse: []Misuse{
		{Name: "condition", Want: "must be bool", Call: func(c *tensor.Ctx) {
			tensor.Where(c, zeros(c, 2), zeros(c, 2), zeros(c, 2))
		}},
		{Name: "shapes", Want: "[3]", Call: func(c *tensor.Ctx) {
			tensor.Where(c, tensor.Zeros(c, tensor.Bool, 2), zeros(c, 3), zeros(c))
		}},
	}}
	masked := Op{Name: "MaskedFill", DTypes: all, Misuse: []Misuse{
		{Name: "shapes", Want: "[3]", Call: func(c *tensor.Ctx) {
			tensor.MaskedFill(c, zeros(c, 3), tensor.Zeros(c, tensor.Bool, 2), 1)
		}},
	}}
	pick := pointwise(func(v ...float64) float64 {
		if v[0] != 0 {
			return v[1]
		}
		return v[2]
	})
	fill := func(c *tensor.Ctx, x, m *tensor.Tensor) *tensor.Tensor { return tensor.MaskedFill(c, x, m, 1) }
	for _, s := range [][3][]int{{{3, 5}, {3, 5}, {3, 5}}, {{4, 1}, {3}, {2, 1, 1}}, {{}, {2}, {}}, {{2, 3}, {}, {}},
		{{0}, {}, {1}}} {
		where.Samples = append(where.Samples,
			Sample{Name: fmt.Sprint(s), In: []Input{flags(s[0]...), diff(normal, s[1]...), diff(normal, s[2]...)},
				Apply: ternary(tensor.Where), Want: pick})
		masked.Samples = append(masked.Samples,
			Sample{Name: fmt.Sprint(s), In: []Input{diff(normal, s[1]...), flags(s[0]...)},
				Apply: binary(fill), Want: pointwise(func(v ...float64) float64 {
					if v[1] != 0 {
						return 1
					}
					return v[0]
				})})
	}
	where.Samples = append(where.Samples, Sample{Name: "large", Large: true,
		In: []Input{flags(5003), diff(normal, 7, 1), diff(normal, 7, 5003)}, Apply: ternary(tensor.Where)})
	masked.Samples = append(masked.Samples, Sample{Name: "large", Large: true,
		In: []Input{diff(normal, 7, 5003), flags(7, 1)}, Apply: binary(fill)})
	return []Op{
		comparison("Eq", all, tensor.Eq, func(x, y float64) bool { return x == y }),
		comparison("Ne", all, tensor.Ne, func(x, y float64) bool { return x != y }),
		comparison("Lt", all, tensor.Lt, func(x, y float64) bool { return x < y }),
		comparison("Le", all, tensor.Le, func(x, y float64) bool { return x <= y }),
		comparison("Gt", all, tensor.Gt, func(x, y float64) bool { return x > y }),
		comparison("Ge", all, tensor.Ge, func(x, y float64) bool { return x >= y }),
		comparison("And", bools, tensor.And, func(x, y float64) bool { return x != 0 && y != 0 }),
		comparison("Or", bools, tensor.Or, func(x, y float64) bool { return x != 0 || y != 0 }),
		where,
		masked,
	}
}
