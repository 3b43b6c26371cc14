// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// reduction is a call of Sum or Mean; nil dims stand for all, as there.
type reduction struct {
	shape, dims []int
	keep        bool
}

var reductionCalls = []reduction{
	{[]int{3, 5}, nil, false}, {[]int{3, 5}, nil, true}, {[]int{3, 5}, []int{0}, false}, {[]int{3, 5}, []int{-1}, true},
	{[]int{2, 3, 4}, []int{0, 2}, false}, {[]int{2, 3, 4}, []int{2, 0}, true}, {[]int{2, 3, 4}, []int{1}, false},
	{[]int{2, 1, 3}, []int{1}, false},
	{[]int{2, 3}, []int{}, false}, {[]int{}, nil, false}, {[]int{}, []int{0}, true}, {[]int{1}, nil, false},
	{[]int{7}, []int{0}, false},
	{[]int{2, 0, 3}, []int{0}, false},
}

// normalised resolves nil and negative dims.
func (r reduction) normalised() []int {
	dims := []int{}
	for d := range r.shape {
		if r.dims == nil || slices.Contains(r.dims, d) || slices.Contains(r.dims, d-len(r.shape)) {
			dims = append(dims, d)
		}
	}
	return dims
}

func total(v []float64) float64 {
	s := 0.0
	for _, x := range v {
		s += x
	}
	return s
}

type reduceFunc func(c *tensor.Ctx, x *tensor.Tensor, dims []int, keep bool) *tensor.Tensor

func reductionRow(name string, dtypes []tensor.DType, f reduceFunc, calls []reduction,
	want func(v []float64) float64) Op {
	op := Op{Name: name, DTypes: dtypes}
	for _, r := range calls {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(r), In: []Input{diff(normal, r.shape...)},
			Want:  reduced(r.normalised(), r.keep, want),
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return f(c, x, r.dims, r.keep) })})
	}
	for _, dims := range [][]int{nil, {0}, {2}, {0, 2}} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint("large ", dims), Large: true,
			In:    []Input{diff(normal, 23, 7, 503)},
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return f(c, x, dims, false) })})
	}
	return op
}

type extremeFunc func(c *tensor.Ctx, x *tensor.Tensor, d int, keep bool) *tensor.Tensor

func extremeRow(name string, differentiable bool, f extremeFunc, want func(v []float64) float64) Op {
	op := Op{Name: name, DTypes: signed, Misuse: []Misuse{
		{Name: "empty", Want: "is empty", Call: func(c *tensor.Ctx) { f(c, zeros(c, 2, 0), 1, false) }},
		{Name: "dim", Want: "float32[2 3]): dim 2: want one in [-2, 2)", Call: func(c *tensor.Ctx) {
			f(c, zeros(c, 2, 3), 2, false)
		}},
	}}
	for _, r := range []reduction{
		{[]int{7}, []int{0}, false}, {[]int{3, 5}, []int{0}, false}, {[]int{3, 5}, []int{-1}, true},
		{[]int{2, 3, 4}, []int{1}, false},
		{[]int{}, []int{0}, false}, {[]int{1}, []int{0}, false}, {[]int{0, 3}, []int{1}, false},
	} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(r),
			In:    []Input{{Shape: r.shape, Fill: distinct, Diff: differentiable}},
			Want:  reduced(r.normalised(), r.keep, want),
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return f(c, x, r.dims[0], r.keep) })})
	}
	for d := range 3 {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint("large ", d), Large: true,
			In:    []Input{{Shape: []int{23, 7, 503}, Fill: normal, Diff: differentiable}},
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return f(c, x, d, false) })})
	}
	return op
}

func reductions() []Op {
	sum := reductionRow("Sum", signed, tensor.Sum,
		append(reductionCalls, reduction{[]int{2, 0}, nil, false}, reduction{[]int{2, 0}, []int{1}, true}), total)
	sum.Misuse = []Misuse{
		{Name: "dim", Want: "float32[2 3]): dim -3", Call: func(c *tensor.Ctx) {
			tensor.Sum(c, zeros(c, 2, 3), []int{-3}, false)
		}},
		{Name: "twice", Want: "named twice", Call: func(c *tensor.Ctx) {
			tensor.Sum(c, zeros(c, 2, 3), []int{1, -1}, false)
		}},
	}
	mean := reductionRow("Mean", floats, tensor.Mean, reductionCalls, func(v []float64) float64 {
		return total(v) / float64(len(v))
	})
	mean.Misuse = []Misuse{{Name: "dim", Want: "float32[2 3]): dim 2", Call: func(c *tensor.Ctx) {
		tensor.Mean(c, zeros(c, 2, 3), []int{2}, false)
	}}}
	return []Op{
		sum,
		mean,
		extremeRow("Max", true, tensor.Max, slices.Max[[]float64]),
		extremeRow("Min", true, tensor.Min, slices.Min[[]float64]),
		extremeRow("ArgMax", false, tensor.ArgMax, func(v []float64) float64 {
			return float64(slices.Index(v, slices.Max(v)))
		}),
		extremeRow("ArgMin", false, tensor.ArgMin, func(v []float64) float64 {
			return float64(slices.Index(v, slices.Min(v)))
		}),
		logSumExpRow(),
		varRow(),
		stdRow(),
		sumSquares(), sumSquaresAll(),
	}
}

func sumSquares() Op {
	op := Op{Name: "SumSquares", DTypes: floats}
	for _, shape := range [][]int{{}, {5}, {3, 4}, {0}, {2, 0}, {4096}, {4097}, {3, 4096}} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(shape), In: []Input{typed(normal, shape...)},
			Apply: unary(tensor.SumSquares),
			Want: func(_ tensor.DType, in []Array) []Array {
				var out []float64
				for block := range slices.Chunk(in[0].V, 4096) {
					s := 0.0
					for _, x := range block {
						s += x * x
					}
					out = append(out, s)
				}
				return []Array{{[]int{len(out)}, out}}
			}})
	}
	op.Samples = append(op.Samples, Sample{Name: "large", Large: true, In: []Input{typed(normal, 17, 5003)},
		Apply: unary(tensor.SumSquares)})
	return op
}

// sumSquaresAll is sumSquares of two operands, one after the other.
func sumSquaresAll() Op {
	op := Op{Name: "SumSquaresAll", DTypes: floats}
	for _, shape := range [][]int{{}, {5}, {3, 4}, {0}, {4096}, {4097}, {3, 4096}} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(shape),
			In: []Input{typed(normal, shape...), typed(normal, shape...)},
			Apply: func(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
				return []*tensor.Tensor{tensor.SumSquaresAll(c, in)}
			},
			Want: func(dt tensor.DType, in []Array) []Array {
				one := sumSquares().Samples[0].Want
				v := append(one(dt, in[:1])[0].V, one(dt, in[1:])[0].V...)
				return []Array{{[]int{len(v)}, v}}
			}})
	}
	return op
}

func logSumExpRow() Op {
	want := func(v []float64) float64 {
		if len(v) == 0 {
			return math.Inf(-1)
		}
		return logSumExp(v)
	}
	op := reductionRow("LogSumExp", floats, tensor.LogSumExp,
		append(reductionCalls, reduction{[]int{2, 0}, []int{1}, false}, reduction{[]int{2, 0}, nil, true}), want)
	inf := math.Inf(1)
	op.Samples = append(op.Samples, Sample{Name: "far apart", Rough: true,
		In: []Input{diff(given(900, -900, 3, -inf, -1000, 1e4, -inf, -inf, -inf, 0, inf, 1), 4, 3)},
		Want: func(dt tensor.DType, in []Array) []Array {
			big := in[0].V[5] // as the dtype has it
			return []Array{{Shape: []int{4}, V: []float64{900, big, -inf, inf}}}
		},
		Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
			return tensor.LogSumExp(c, x, []int{1}, false)
		})})
	op.Misuse = []Misuse{{Name: "dim", Want: "float32[2 3]): dim 2",
		Call: func(c *tensor.Ctx) { tensor.LogSumExp(c, zeros(c, 2, 3), []int{2}, false) }}}
	return op
}

// variance is Var's definition.
func variance(v []float64, correction int) float64 {
	mean, sum := total(v)/float64(len(v)), 0.0
	for _, x := range v {
		sum += (x - mean) * (x - mean)
	}
	return sum / float64(max(len(v)-correction, 0))
}

func varRow() Op {
	op := reductionRow("Var", floats, func(c *tensor.Ctx, x *tensor.Tensor, dims []int, keep bool) *tensor.Tensor {
		return tensor.Var(c, x, dims, 0, keep)
	}, reductionCalls, func(v []float64) float64 { return variance(v, 0) })
	op.Samples = append(op.Samples, Sample{Name: "unbiased", In: []Input{diff(normal, 3, 5)},
		Want: reduced([]int{1}, false, func(v []float64) float64 { return variance(v, 1) }),
		Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
			return tensor.Var(c, x, []int{1}, 1, false)
		})})
	op.Misuse = []Misuse{{Name: "dim", Want: "float32[2 3]): dim 2",
		Call: func(c *tensor.Ctx) { tensor.Var(c, zeros(c, 2, 3), []int{2}, 1, false) }}}
	return op
}

func stdRow() Op {
	calls := slices.DeleteFunc(slices.Clone(reductionCalls), func(r reduction) bool { // without a divisor there is none
		n := 1
		for _, d := range r.normalised() {
			n *= r.shape[d]
		}
		return n < 2
	})
	op := reductionRow("Std", floats, func(c *tensor.Ctx, x *tensor.Tensor, dims []int, keep bool) *tensor.Tensor {
		return tensor.Std(c, x, dims, 1, keep)
	}, calls, func(v []float64) float64 { return math.Sqrt(variance(v, 1)) })
	op.Samples = append(op.Samples,
		Sample{Name: "equal", Rough: true, In: []Input{diff(given(0.1, 0.1, 0.1, -7.3, -7.3, -7.3), 2, 3)},
			Want: reduced([]int{1}, false, func([]float64) float64 { return 0 }),
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
				return tensor.Std(c, x, []int{1}, 1, false)
			})},
		Sample{Name: "one element", In: []Input{diff(normal, 1)},
			Want: reduced([]int{0}, false, func([]float64) float64 { return 0 }),
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
				return tensor.Std(c, x, nil, 0, false)
			})})
	op.Misuse = []Misuse{{Name: "dim", Want: "float32[2 3]): dim 2",
		Call: func(c *tensor.Ctx) { tensor.Std(c, zeros(c, 2, 3), []int{2}, 1, false) }}}
	return op
}

// logSumExp is stable for any size of values.
func logSumExp(v []float64) float64 {
	top, s := slices.Max(v), 0.0
	for _, x := range v {
		s += math.Exp(x - top)
	}
	return top + math.Log(s)
}
