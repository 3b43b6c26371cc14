// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func init() {
	summed := []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16, dtype.Float16, dtype.Int32, dtype.Int64}
	makers[backend.OpSum] = func(g *gen) {
		reduceSamples(g, summed, reductions, func(x []float64) float64 {
			var s float64
			for _, v := range x {
				s += v
			}
			return s
		})
	}
	makers[backend.OpMax] = func(g *gen) { reduceSamples(g, summed, nonEmpty, extreme(math.Max)) }
	makers[backend.OpMin] = func(g *gen) { reduceSamples(g, summed, nonEmpty, extreme(math.Min)) }
	makers[backend.OpArgMax] = func(g *gen) { argSamples(g, func(v, best float64) bool { return v > best }) }
	makers[backend.OpArgMin] = func(g *gen) { argSamples(g, func(v, best float64) bool { return v < best }) }
	makers[backend.OpSumSq] = sumSqSamples
}

// reductionCase is a shape and which of its dims go.
type reductionCase struct {
	shape []int
	gone  []bool
}

var (
	nonEmpty = []reductionCase{
		{[]int{}, []bool{}},
		{[]int{1}, []bool{true}},
		{[]int{9}, []bool{true}},
		{[]int{4, 5}, []bool{true, false}},
		{[]int{4, 5}, []bool{false, true}},
		{[]int{4, 5}, []bool{false, false}},
		{[]int{3, 4, 5}, []bool{false, true, false}},
		{[]int{3, 4, 5}, []bool{true, false, true}},
		{[]int{3, 1, 5}, []bool{true, true, false}},
		{[]int{2, 3, 2, 3, 2}, []bool{false, true, true, false, true}},
		{[]int{2, 300, 3}, []bool{false, true, false}},
		{[]int{2500, 5}, []bool{true, false}}, // more than one part
		{[]int{40000}, []bool{true}},
		{[]int{0, 3}, []bool{false, true}},
	}
	reductions = append([]reductionCase{
		{[]int{0, 3}, []bool{true, false}},
		{[]int{3, 0}, []bool{false, true}},
	}, nonEmpty...)
)

func extreme(f func(x, y float64) float64) func([]float64) float64 {
	return func(x []float64) float64 {
		best := x[0]
		for _, v := range x {
			best = f(best, v)
		}
		return best
	}
}

// reduced collects, per output element, the inputs that belong to it, in order.
func reduced(in *operand, gone []bool) (shape []int, groups [][]float64) {
	shape = make([]int, len(in.shape))
	for k, s := range in.shape {
		if shape[k] = s; gone[k] {
			shape[k] = 1
		}
	}
	groups = make([][]float64, numel(shape))
	for i := range in.numel() {
		at := unravel(i, in.shape)
		for k := range at {
			if gone[k] {
				at[k] = 0
			}
		}
		o := ravel(at, shape)
		groups[o] = append(groups[o], in.at(i))
	}
	return shape, groups
}

func reduceSamples(g *gen, dtypes []dtype.DType, cases []reductionCase, f func([]float64) float64) {
	for _, dt := range g.some(dtypes) {
		for _, c := range cases {
			for i, l := range combos {
				if skip(i, c.shape) || large(c.shape) && (i%3 != 0 || dt != dtype.Float32 && dt != dtype.Int32) {
					continue
				}
				lo, hi := -1.0, 1.0
				if dt.IsInt() {
					lo, hi = -100, 100
				}
				in := g.random(dt, l.ins[0], lo, hi, c.shape...)
				if dt.IsFloat() && g.op != backend.OpSum && l.ins[0].name == gapped.name && in.numel() > 2 {
					in.set(in.numel()/2, math.NaN())
				}
				shape, groups := reduced(in, c.gone)
				want := make([]float64, len(groups))
				for i, x := range groups {
					want[i] = f(x)
				}
				g.add(&sample{ins: []*operand{in}, outs: []*operand{output(dt, l.out, shape...)},
					want: [][]float64{want}, loose: 8},
					"%s %v to %v %s", dt, c.shape, shape, l.ins[0].name)
			}
		}
	}
}

// argSamples are those of an index of the element that wins over all others.
func argSamples(g *gen, wins func(v, best float64) bool) {
	dtypes := []dtype.DType{dtype.Float32, dtype.Float64, dtype.BFloat16, dtype.Float16, dtype.Int32, dtype.Int64}
	for _, dt := range g.some(dtypes) {
		for _, shape := range [][]int{{1}, {9}, {4, 5}, {3, 4, 5}, {0, 3}, {2, 600}} {
			for dim := range shape {
				if shape[dim] == 0 {
					continue
				}
				for _, l := range []layout{rowMajor, reversed, gapped, repeatLast} {
					in := g.random(dt, l, -3, 3, shape...)
					if dt.IsFloat() && l.name == gapped.name && in.numel() > 2 {
						in.set(in.numel()/2, math.NaN())
						in.set(in.numel()-1, math.NaN())
					}
					gone := make([]bool, len(shape))
					gone[dim] = true
					outShape, groups := reduced(in, gone)
					want := make([]float64, len(groups))
					for i, x := range groups {
						want[i] = float64(first(x, wins))
					}
					s := &sample{ins: []*operand{in}, outs: []*operand{output(dtype.Int64, rowMajor, outShape...)},
						want: [][]float64{want}}
					s.ints[0] = dim
					g.add(s, "%s %v dim %d %s", dt, shape, dim, l.name)
				}
			}
		}
	}
}

// first is the index of the first element that wins, or of the first NaN.
func first(x []float64, wins func(v, best float64) bool) int {
	best := 0
	for i, v := range x {
		if v != v {
			return i
		}
		if wins(v, x[best]) {
			best = i
		}
	}
	return best
}

func sumSqSamples(g *gen) {
	for _, dt := range g.some(floating) {
		for _, shape := range [][]int{{}, {0}, {5}, {3, 4}, {4096}, {4097}, {3, 5000}} {
			in := g.random(dt, rowMajor, -2, 2, shape...)
			want := make([]float64, (in.numel()+4095)/4096)
			for i := range in.numel() {
				want[i/4096] += in.at(i) * in.at(i)
			}
			g.add(&sample{ins: []*operand{in}, outs: []*operand{output(dtype.Float64, rowMajor, len(want))},
				want: [][]float64{want}}, "%s %v", dt, shape)
		}
	}
}
