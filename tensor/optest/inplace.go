// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"math"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// inPlace is a sample of an op that writes to its first operand. The suite sees it as a
// function: it works on a copy, and returns that.
func inPlace(f func(c *tensor.Ctx, dst *tensor.Tensor, in []*tensor.Tensor)) func(*tensor.Ctx, tensor.DType,
	[]*tensor.Tensor) []*tensor.Tensor {
	return func(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
		c = c.NoGrad()
		dst := tensor.Clone(c, in[0])
		f(c, dst, in[1:])
		return []*tensor.Tensor{dst}
	}
}

func inPlaceOps() []Op {
	row := func(name string, dtypes []tensor.DType, operands int,
		f func(c *tensor.Ctx, dst *tensor.Tensor, in []*tensor.Tensor), want func(x ...float64) float64) Op {
		op := Op{Name: name, DTypes: dtypes}
		for _, shape := range [][]int{{}, {1}, {3, 5}, {2, 0}, {7, 5003}} {
			s := Sample{Name: fmt.Sprint(shape), Apply: inPlace(f), Want: pointwise(want), Large: numel(shape) > 1000}
			for range operands {
				s.In = append(s.In, typed(normal, shape...))
			}
			op.Samples = append(op.Samples, s)
		}
		op.Misuse = []Misuse{
			{Name: "broadcast target", Want: "float32[2 3]): cannot write in place to a broadcast tensor",
				Call: func(c *tensor.Ctx) {
					f(c, tensor.Expand(c, zeros(c, 3), 2, 3),
						[]*tensor.Tensor{zeros(c, 2, 3), zeros(c, 2, 3)}[:operands-1])
				}},
			{Name: "leaf", Want: "takes part in autograd", Call: func(c *tensor.Ctx) {
				f(c, zeros(c, 2).SetRequiresGrad(true), []*tensor.Tensor{zeros(c, 2), zeros(c, 2)}[:operands-1])
			}},
		}
		if operands > 1 {
			op.Misuse = append(op.Misuse, Misuse{Name: "shapes", Want: "float32[3], float32[2]",
				Call: func(c *tensor.Ctx) {
					f(c, zeros(c, 3), []*tensor.Tensor{zeros(c, 2), zeros(c, 2)}[:operands-1])
				}})
		}
		return op
	}
	return []Op{
		row("CopyInto", all, 2, func(c *tensor.Ctx, dst *tensor.Tensor, in []*tensor.Tensor) {
			tensor.CopyInto(c, dst, in[0])
		},
			func(x ...float64) float64 { return x[1] }),
		row("FillInto", all, 1, func(c *tensor.Ctx, dst *tensor.Tensor, _ []*tensor.Tensor) {
			tensor.FillInto(c, dst, 1)
		},
			func(...float64) float64 { return 1 }),
		row("AxpbyInto", floats, 3, func(c *tensor.Ctx, dst *tensor.Tensor, in []*tensor.Tensor) {
			tensor.AxpbyInto(c, dst, 0.25, in[0], -3, in[1])
		},
			func(x ...float64) float64 { return 0.25*x[1] - 3*x[2] }),
		row("AddInto", numbers, 2, func(c *tensor.Ctx, dst *tensor.Tensor, in []*tensor.Tensor) {
			tensor.AddInto(c, dst, in[0])
		},
			func(x ...float64) float64 { return x[0] + x[1] }),
		row("ScaleInto", floats, 1, func(c *tensor.Ctx, dst *tensor.Tensor, _ []*tensor.Tensor) {
			tensor.ScaleInto(c, dst, -0.75)
		},
			func(x ...float64) float64 { return -0.75 * x[0] }),
		row("ScaleByInto", floats, 1, func(c *tensor.Ctx, dst *tensor.Tensor, _ []*tensor.Tensor) {
			tensor.ScaleByInto(c, dst, tensor.FromSlice(c, []float64{-0.75}, 1))
		},
			func(x ...float64) float64 { return -0.75 * x[0] }),
		addRowsRow("AddRowsInto", tensor.AddRowsInto, 0),
		addRowsRow("AddOwnRowsInto", tensor.AddOwnRowsInto, 1),
		stochasticRoundRow(),
		adamRow(),
		adamWRow(),
	}
}

// addRowsRow is the row of an op that leaves out `behind` rows behind the table.
func addRowsRow(name string, add func(c *tensor.Ctx, dst, rows, values *tensor.Tensor), behind int) Op {
	op := Op{Name: name, DTypes: floats, Slack: 4, Misuse: []Misuse{
		{Name: "shapes", Want: "want a table [V C], rows [n] and values [n C]", Call: func(c *tensor.Ctx) {
			add(c, zeros(c, 3, 2), tensor.Zeros(c, tensor.Int64, 4), zeros(c, 3, 2))
		}},
		{Name: "rows dtype", Want: "int32 or int64", Call: func(c *tensor.Ctx) {
			add(c, zeros(c, 3, 2), zeros(c, 4), zeros(c, 4, 2))
		}},
		{Name: "row", Fault: true, Want: fmt.Sprint("index ", 3+behind), Call: func(c *tensor.Ctx) {
			add(c, zeros(c, 3, 2), tensor.FromSlice(c, []int64{0, int64(3 + behind)}, 2), zeros(c, 2, 2))
		}},
		{Name: "leaf", Want: "takes part in autograd", Call: func(c *tensor.Ctx) {
			rows := tensor.Zeros(c, tensor.Int64, 1)
			add(c, zeros(c, 3, 2).SetRequiresGrad(true), rows, zeros(c, 1, 2))
		}},
	}}
	apply := inPlace(func(c *tensor.Ctx, dst *tensor.Tensor, in []*tensor.Tensor) {
		add(c, dst, in[0], in[1])
	})
	want := func(_ tensor.DType, in []Array) []Array {
		out := Array{in[0].Shape, slices.Clone(in[0].V)}
		generate(in[2].Shape, func(at []int) float64 {
			if row := int(in[1].at(at[0])); row < in[0].Shape[0] {
				out.V[row*in[0].Shape[1]+at[1]] += in[2].at(at...)
			}
			return 0
		})
		return []Array{out}
	}
	for _, s := range []struct{ rows, columns, n int }{{5, 3, 7}, {1, 1, 3}, {4, 2, 0}, {4, 0, 3}, {53, 67, 1301}} {
		for i, index := range []func(Fill, ...int) Input{index64, index32} {
			op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(s, 64>>i), Large: s.n > 1000,
				In: []Input{typed(normal, s.rows, s.columns), index(below(s.rows+behind), s.n),
					typed(normal, s.n, s.columns)}, Apply: apply, Want: want})
		}
	}
	return op
}

// stochasticRoundRow rounds numbers that the dtype holds: they stay.
func stochasticRoundRow() Op {
	half := func(c *tensor.Ctx, n int) *tensor.Tensor { return tensor.Zeros(c, tensor.BFloat16, n) }
	op := Op{Name: "StochasticRoundInto", DTypes: []tensor.DType{tensor.BFloat16, tensor.Float16}, Misuse: []Misuse{
		{Name: "shapes", Want: "bfloat16[2], float32[3]", Call: func(c *tensor.Ctx) {
			tensor.StochasticRoundInto(c, half(c, 2), zeros(c, 3), 0)
		}},
		{Name: "dtypes", Want: "want a target of bfloat16 or float16", Call: func(c *tensor.Ctx) {
			tensor.StochasticRoundInto(c, half(c, 2), half(c, 2), 0)
		}},
		{Name: "layout", Want: "contiguous", Call: func(c *tensor.Ctx) {
			tensor.StochasticRoundInto(c, tensor.Zeros(c, tensor.BFloat16, 2, 3),
				tensor.Transpose(c, zeros(c, 3, 2), 0, 1), 0)
		}},
		{Name: "first", Want: "element -1: want at least 0", Call: func(c *tensor.Ctx) {
			tensor.StochasticRoundInto(c, half(c, 2), zeros(c, 2), -1)
		}},
	}}
	apply := func(c *tensor.Ctx, dt tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
		c = c.NoGrad()
		x := tensor.Contiguous(c, tensor.Cast(c, in[0], tensor.Float32))
		dst := tensor.Zeros(c, dt, x.Shape()...)
		tensor.StochasticRoundInto(c, dst, x, 5)
		return []*tensor.Tensor{dst}
	}
	for _, shape := range [][]int{{}, {1}, {3, 5}, {2, 0}, {7, 5003}} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(shape), Apply: apply, Large: numel(shape) > 1000,
			Want: pointwise(func(x ...float64) float64 { return x[0] }), In: []Input{typed(normal, shape...)}})
	}
	return op
}

func adamRow() Op {
	const beta1, beta2, eps, step = 0.9, 0.99, 1e-6, 3
	c1, c2 := 1-math.Pow(beta1, step), 1-math.Pow(beta2, step)
	op := Op{Name: "AdamMoments", DTypes: floats, Misuse: []Misuse{
		{Name: "shapes", Want: "float32[2], float32[3]", Call: func(c *tensor.Ctx) {
			tensor.AdamMoments(c, zeros(c, 2), zeros(c, 2), zeros(c, 2), zeros(c, 3), beta1, beta2, eps, c1, c2)
		}},
		{Name: "layout", Want: "contiguous", Call: func(c *tensor.Ctx) {
			m := zeros(c, 2, 3)
			tensor.AdamMoments(c, m, m, m, tensor.Transpose(c, zeros(c, 3, 2), 0, 1), beta1, beta2, eps, c1, c2)
		}},
	}}
	apply := func(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
		c = c.NoGrad()
		m, v, u := tensor.Clone(c, in[0]), tensor.Clone(c, in[1]), tensor.ZerosLike(c, in[0])
		tensor.AdamMoments(c, m, v, u, tensor.Contiguous(c, in[2]), beta1, beta2, eps, c1, c2)
		return []*tensor.Tensor{m, v, u}
	}
	want := func(_ tensor.DType, in []Array) []Array {
		out := []Array{{Shape: in[0].Shape}, {Shape: in[0].Shape}, {Shape: in[0].Shape}}
		for i, g := range in[2].V {
			m, v := beta1*in[0].V[i]+(1-beta1)*g, beta2*in[1].V[i]+(1-beta2)*g*g
			for k, x := range []float64{m, v, (m / c1) / (math.Sqrt(v/c2) + eps)} {
				out[k].V = append(out[k].V, x)
			}
		}
		return out
	}
	for _, shape := range [][]int{{}, {1}, {3, 5}, {2, 0}, {7, 5003}} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(shape), Large: numel(shape) > 1000, Apply: apply,
			Want: want,
			In:   []Input{typed(normal, shape...), typed(positive, shape...), typed(normal, shape...)}})
	}
	return op
}

func adamWRow() Op {
	step := tensor.AdamWStep{Beta1: 0.9, Beta2: 0.99, Eps: 1e-6, Correction1: 1 - math.Pow(0.9, 3),
		Correction2: 1 - math.Pow(0.99, 3),
		LR:          0.01, WeightDecay: 0.3, GradScale: 0.6}
	op := Op{Name: "AdamW", DTypes: floats, Misuse: []Misuse{
		{Name: "shapes", Want: "float32[2], float32[3]", Call: func(c *tensor.Ctx) {
			tensor.AdamW(c, zeros(c, 2), zeros(c, 2), zeros(c, 2), zeros(c, 3), step)
		}},
		{Name: "layout", Want: "contiguous", Call: func(c *tensor.Ctx) {
			m := zeros(c, 2, 3)
			tensor.AdamW(c, m, m, m, tensor.Transpose(c, zeros(c, 3, 2), 0, 1), step)
		}},
		{Name: "leaf", Want: "takes part in autograd", Call: func(c *tensor.Ctx) {
			tensor.AdamW(c, zeros(c, 2).SetRequiresGrad(true), zeros(c, 2), zeros(c, 2), zeros(c, 2), step)
		}},
	}}
	apply := func(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
		c = c.NoGrad()
		p, m, v := tensor.Clone(c, in[0]), tensor.Clone(c, in[1]), tensor.Clone(c, in[2])
		tensor.AdamW(c, p, m, v, tensor.Contiguous(c, in[3]), step)
		return []*tensor.Tensor{p, m, v}
	}
	want := func(_ tensor.DType, in []Array) []Array {
		out := []Array{{Shape: in[0].Shape}, {Shape: in[0].Shape}, {Shape: in[0].Shape}}
		for i, g := range in[3].V {
			g *= step.GradScale
			m, v := step.Beta1*in[1].V[i]+(1-step.Beta1)*g, step.Beta2*in[2].V[i]+(1-step.Beta2)*g*g
			u := m / step.Correction1 / (math.Sqrt(v/step.Correction2) + step.Eps)
			for k, x := range []float64{(1-step.LR*step.WeightDecay)*in[0].V[i] - step.LR*u, m, v} {
				out[k].V = append(out[k].V, x)
			}
		}
		return out
	}
	for _, shape := range [][]int{{}, {1}, {3, 5}, {2, 0}, {13, 5003}} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(shape), Large: numel(shape) > 1000, Apply: apply,
			Want: want,
			In: []Input{typed(normal, shape...), typed(normal, shape...), typed(positive, shape...),
				typed(normal, shape...)}})
	}
	return op
}
