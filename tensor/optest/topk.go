// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

func topKOps() []Op { return []Op{topKRow(), cumSumRow()} }

func topKRow() Op {
	op := Op{Name: "TopK", DTypes: signed, Misuse: []Misuse{
		{Name: "k", Want: "float32[2 3]): k = 4 of dim 1: want at least one dim, and 0 ≤ k ≤ its size",
			Call: func(c *tensor.Ctx) { tensor.TopK(c, zeros(c, 2, 3), 4, -1, false) }},
		{Name: "negative", Want: "k = -1", Call: func(c *tensor.Ctx) { tensor.TopK(c, zeros(c, 2), -1, 0, false) }},
		{Name: "0-D", Want: "at least one dim", Call: func(c *tensor.Ctx) { tensor.TopK(c, zeros(c), 0, 0, false) }},
		{Name: "dim", Want: "dim 2: want one in [-2, 2)",
			Call: func(c *tensor.Ctx) { tensor.TopK(c, zeros(c, 2, 3), 1, 2, false) }},
	}}
	sample := func(name string, x Input, k, d int, smallest, large bool) {
		op.Samples = append(op.Samples, Sample{Name: name, In: []Input{x}, Large: large,
			Want: topKOracle(k, d, smallest),
			Apply: func(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
				values, indices := tensor.TopK(c, in[0], k, d, smallest)
				return []*tensor.Tensor{values, indices}
			}})
	}
	for _, s := range []struct {
		shape []int
		k, d  int
	}{{[]int{7}, 3, 0}, {[]int{3, 5}, 2, -1}, {[]int{3, 5}, 3, 0}, {[]int{2, 4, 3}, 4, 1}, {[]int{1}, 1, 0},
		{[]int{3, 5}, 0, 1}, {[]int{0, 3}, 2, 1}} {
		for _, smallest := range []bool{false, true} {
			sample(fmt.Sprint(s, smallest), diff(distinct, s.shape...), s.k, s.d, smallest, false)
		}
	}
	sample("equal", Input{Shape: []int{6}, Fill: given(1, 2, 2, 1, 2, 1)}, 4, 0, false, false)
	sample("large", diff(normal, 131, 503), 17, 1, false, true)
	return op
}

// topKOracle sorts each row.
func topKOracle(k, d int, smallest bool) Oracle {
	return func(dt tensor.DType, in []Array) []Array {
		dim := (d + len(in[0].Shape)) % len(in[0].Shape)
		order := func(row []float64) []int {
			at := make([]int, len(row))
			for i := range at {
				at[i] = i
			}
			slices.SortStableFunc(at, func(a, b int) int {
				if smallest {
					a, b = b, a
				}
				return cmp.Compare(row[b], row[a])
			})
			return at
		}
		values := rowwise(d, func(row []float64) []float64 {
			out := make([]float64, len(row))
			for i, at := range order(row) {
				out[i] = row[at]
			}
			return out
		})(dt, in)[0]
		indices := rowwise(d, func(row []float64) []float64 {
			out := make([]float64, len(row))
			for i, at := range order(row) {
				out[i] = float64(at)
			}
			return out
		})(dt, in)[0]
		shape := slices.Clone(in[0].Shape)
		shape[dim] = k
		first := func(a Array) Array { return generate(shape, func(at []int) float64 { return a.at(at...) }) }
		return []Array{first(values), first(indices)}
	}
}

func cumSumRow() Op {
	op := Op{Name: "CumSum", DTypes: signed, Slack: 4, Misuse: []Misuse{
		{Name: "dim", Want: "float32[2 3]): dim 2: want one in [-2, 2)",
			Call: func(c *tensor.Ctx) { tensor.CumSum(c, zeros(c, 2, 3), 2) }},
	}}
	want := func(row []float64) []float64 {
		out, sum := make([]float64, len(row)), 0.0
		for i, x := range row {
			sum += x
			out[i] = sum
		}
		return out
	}
	for _, s := range []struct {
		shape []int
		d     int
	}{{[]int{7}, 0}, {[]int{3, 5}, -1}, {[]int{3, 5}, 0}, {[]int{2, 3, 4}, 1}, {[]int{2, 1}, 1}, {[]int{}, 0},
		{[]int{0, 3}, 1}, {[]int{3, 0}, 1}, {[]int{131, 503}, 0}} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(s), In: []Input{diff(normal, s.shape...)},
			Want: rowwise(s.d, want), Large: len(s.shape) == 2 && s.shape[0] == 131,
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.CumSum(c, x, s.d) })})
	}
	return op
}
