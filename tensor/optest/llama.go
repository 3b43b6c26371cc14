// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

// llamaOps are the fused ops of LLaMA's blocks.
func llamaOps() []Op { return []Op{swigluRow(), ropeRow()} }

func swigluRow() Op {
	op := Op{Name: "SwiGLU", DTypes: floats, Slack: 2, Misuse: []Misuse{
		{Name: "shapes", Want: "float32[2 3], float32[3]): want operands of one shape", Call: func(c *tensor.Ctx) {
			tensor.SwiGLU(c, zeros(c, 2, 3), zeros(c, 3))
		}},
		{Name: "dtypes", Want: "one dtype", Call: func(c *tensor.Ctx) {
			tensor.SwiGLU(c, zeros(c, 2), tensor.Zeros(c, tensor.Float64, 2))
		}},
	}}
	want := pointwise(func(v ...float64) float64 { return v[0] / (1 + math.Exp(-v[0])) * v[1] })
	for _, shape := range [][]int{{4}, {3, 5}, {2, 1, 3}, {}, {1}, {0}, {2, 0}} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(shape),
			In: []Input{diff(normal, shape...), diff(normal, shape...)}, Apply: binary(tensor.SwiGLU), Want: want})
	}
	op.Samples = append(op.Samples, Sample{Name: "large", Large: true,
		In: []Input{diff(normal, 7, 5003), diff(normal, 7, 5003)}, Apply: binary(tensor.SwiGLU)})
	return op
}

func ropeRow() Op {
	op := Op{Name: "RoPE", DTypes: floats}
	call := func(x, cos, sin []int) func(c *tensor.Ctx) {
		return func(c *tensor.Ctx) { tensor.RoPE(c, zeros(c, x...), zeros(c, cos...), zeros(c, sin...)) }
	}
	op.Misuse = []Misuse{
		{Name: "dims", Want: "want x of 4 dims", Call: call([]int{2, 3, 4}, []int{3, 2}, []int{3, 2})},
		{Name: "length", Want: "want tables of shape [3 R] or [1 3 R] with 2R at most 4",
			Call: call([]int{1, 2, 3, 4}, []int{4, 2}, []int{4, 2})},
		{Name: "width", Want: "2R at most 4", Call: call([]int{1, 2, 3, 4}, []int{3, 3}, []int{3, 3})},
		{Name: "batch", Want: "[2 3 R]", Call: call([]int{2, 2, 3, 4}, []int{3, 3, 2}, []int{3, 3, 2})},
		{Name: "tables differ", Want: "want tables of shape", Call: call([]int{1, 2, 3, 4}, []int{3, 2}, []int{3, 1})},
		{Name: "dtype", Want: "want tables of float32", Call: func(c *tensor.Ctx) {
			tensor.RoPE(c, zeros(c, 1, 1, 1, 2), tensor.Zeros(c, tensor.Float64, 1, 1),
				tensor.Zeros(c, tensor.Float64, 1, 1))
		}},
	}
	want := func(_ tensor.DType, in []Array) []Array {
		x, cos, sin := in[0], in[1], in[2]
		r := cos.Shape[len(cos.Shape)-1]
		return []Array{generate(x.Shape, func(at []int) float64 {
			other := []int{at[0], at[1], at[2], at[3]}
			switch e := at[3]; {
			case e < r:
				other[3] += r
				return x.at(at...)*cos.at(at[0], at[2], e) - x.at(other...)*sin.at(at[0], at[2], e)
			case e < 2*r:
				other[3] -= r
				return x.at(at...)*cos.at(at[0], at[2], e-r) + x.at(other...)*sin.at(at[0], at[2], e-r)
			}
			return x.at(at...)
		})}
	}
	for _, s := range []struct {
		x, table []int
		large    bool
	}{
		{[]int{2, 3, 4, 6}, []int{4, 3}, false}, {[]int{2, 3, 4, 6}, []int{2, 4, 3}, false},
		{[]int{2, 1, 4, 6}, []int{1, 4, 2}, false}, {[]int{1, 1, 1, 1}, []int{1, 0}, false},
		{[]int{0, 3, 4, 6}, []int{4, 3}, false}, {[]int{2, 0, 4, 6}, []int{4, 3}, false},
		{[]int{2, 3, 0, 6}, []int{0, 3}, false}, {[]int{2, 3, 4, 0}, []int{4, 0}, false},
		{[]int{2, 4, 97, 64}, []int{97, 32}, true},
	} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(s.x, s.table), Large: s.large,
			Apply: ternary(tensor.RoPE), Want: want,
			In: []Input{diff(normal, s.x...), typed(normal, s.table...), typed(normal, s.table...)}})
	}
	return op
}
