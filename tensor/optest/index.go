// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

func indexOps() []Op {
	return []Op{embeddingRow(), rowMeanRow(), oneHotRow(), gatherRow(), scatterAddRow()}
}

func embeddingRow() Op {
	op := Op{Name: "Embedding", DTypes: floats, Misuse: []Misuse{
		{Name: "table", Want: "float32[3], int64[2]): want a table [V C]", Call: func(c *tensor.Ctx) {
			tensor.Embedding(c, zeros(c, 3), tensor.Zeros(c, tensor.Int64, 2))
		}},
		{Name: "ids dtype", Want: "int32 or int64", Call: func(c *tensor.Ctx) {
			tensor.Embedding(c, zeros(c, 3, 2), zeros(c, 2))
		}},
		{Name: "id", Fault: true, Want: "3", Call: func(c *tensor.Ctx) {
			tensor.Embedding(c, zeros(c, 3, 2), tensor.FromSlice(c, []int64{0, 3}, 2))
		}},
		{Name: "negative id", Fault: true, Want: "-7", Call: func(c *tensor.Ctx) {
			tensor.Embedding(c, zeros(c, 3, 2), tensor.FromSlice(c, []int32{-7}, 1))
		}},
	}}
	want := func(_ tensor.DType, in []Array) []Array {
		shape := append(slices.Clone(in[1].Shape), in[0].Shape[1])
		return []Array{generate(shape, func(at []int) float64 {
			last := len(at) - 1
			return in[0].at(int(in[1].at(at[:last]...)), at[last])
		})}
	}
	for _, s := range []struct{ table, ids []int }{
		{[]int{5, 3}, []int{7}}, {[]int{5, 3}, []int{2, 4}}, {[]int{1, 1}, []int{3}}, {[]int{4, 2}, []int{}},
		{[]int{4, 2}, []int{0}}, {[]int{4, 0}, []int{3}},
	} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(s),
			In:    []Input{diff(normal, s.table...), index64(below(s.table[0]), s.ids...)},
			Apply: binary(tensor.Embedding), Want: want})
	}
	op.Samples = append(op.Samples,
		Sample{Name: "int32", In: []Input{diff(normal, 5, 3), index32(given(4, 4, 0), 3)},
			Apply: binary(tensor.Embedding), Want: want},
		Sample{Name: "large", Large: true, In: []Input{diff(normal, 53, 67), index64(below(53), 1301)},
			Apply: binary(tensor.Embedding)})
	return op
}

func rowMeanRow() Op {
	op := Op{Name: "RowMean", DTypes: floats, Misuse: []Misuse{{Name: "table", Want: "float32[3]): want a table [V C]",
		Call: func(c *tensor.Ctx) { tensor.RowMean(c, zeros(c, 3)) }}}}
	for _, shape := range [][]int{{3, 5}, {1, 2}, {4, 1}, {3, 0}} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(shape), In: []Input{diff(normal, shape...)},
			Want:  reduced([]int{0}, false, func(v []float64) float64 { return total(v) / float64(len(v)) }),
			Apply: unary(tensor.RowMean)})
	}
	op.Samples = append(op.Samples, Sample{Name: "large", Large: true, In: []Input{diff(normal, 1301, 67)},
		Apply: unary(tensor.RowMean)})
	return op
}

func oneHotRow() Op {
	op := Op{Name: "OneHot", DTypes: all, Misuse: []Misuse{
		{Name: "ids dtype", Want: "int32 or int64",
			Call: func(c *tensor.Ctx) { tensor.OneHot(c, zeros(c, 2), 3, tensor.Float32) }},
		{Name: "classes", Want: "-1 classes",
			Call: func(c *tensor.Ctx) { tensor.OneHot(c, tensor.Zeros(c, tensor.Int64, 2), -1, tensor.Float32) }},
		{Name: "id", Fault: true, Want: "3",
			Call: func(c *tensor.Ctx) { tensor.OneHot(c, tensor.FromSlice(c, []int64{0, 3}, 2), 3, tensor.Float32) }},
		{Name: "negative id", Fault: true, Want: "-7",
			Call: func(c *tensor.Ctx) { tensor.OneHot(c, tensor.FromSlice(c, []int32{-7}, 1), 3, tensor.Bool) }},
	}}
	for _, shape := range [][]int{{7}, {2, 3}, {}, {0}, {1}} {
		for _, classes := range []int{1, 5} {
			in := index64(below(classes), shape...)
			if classes == 5 {
				in = index32(below(classes), shape...)
			}
			op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(shape, classes), In: []Input{in},
				Apply: func(c *tensor.Ctx, dt tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
					return []*tensor.Tensor{tensor.OneHot(c, in[0], classes, dt)}
				},
				Want: func(_ tensor.DType, in []Array) []Array {
					return []Array{generate(append(slices.Clone(in[0].Shape), classes), func(at []int) float64 {
						last := len(at) - 1
						return truth(int(in[0].at(at[:last]...)) == at[last])
					})}
				}})
		}
	}
	return op
}

// gatherShapes are operand, dim and index shapes as torch.gather takes them.
var gatherShapes = []struct {
	x, index []int
	d        int
}{
	{[]int{5}, []int{7}, 0}, {[]int{3, 4}, []int{3, 2}, 1}, {[]int{3, 4}, []int{6, 3}, 0},
	{[]int{2, 3, 4}, []int{1, 5, 3}, -2}, {[]int{1}, []int{1}, 0}, {[]int{3, 4}, []int{0, 4}, 0},
	{[]int{3, 4}, []int{3, 0}, 1},
}

func gatherRow() Op {
	op := Op{Name: "Gather", DTypes: all, Misuse: []Misuse{
		{Name: "dims", Want: "float32[2 3], int64[2]): want an index with as many dims", Call: func(c *tensor.Ctx) {
			tensor.Gather(c, zeros(c, 2, 3), 0, tensor.Zeros(c, tensor.Int64, 2))
		}},
		{Name: "size", Want: "none larger except dim 1", Call: func(c *tensor.Ctx) {
			tensor.Gather(c, zeros(c, 2, 3), 1, tensor.Zeros(c, tensor.Int64, 3, 3))
		}},
		{Name: "index", Fault: true, Want: "3", Call: func(c *tensor.Ctx) {
			tensor.Gather(c, zeros(c, 3), 0, tensor.FromSlice(c, []int64{3}, 1))
		}},
	}}
	for _, s := range gatherShapes {
		d := (s.d + len(s.x)) % len(s.x)
		f := binary(func(c *tensor.Ctx, x, index *tensor.Tensor) *tensor.Tensor {
			return tensor.Gather(c, x, s.d, index)
		})
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(s),
			In: []Input{diff(normal, s.x...), index64(below(s.x[d]), s.index...)}, Apply: f,
			Want: func(_ tensor.DType, in []Array) []Array {
				return []Array{generate(in[1].Shape, func(at []int) float64 {
					from := slices.Clone(at)
					from[d] = int(in[1].at(at...))
					return in[0].at(from...)
				})}
			}})
	}
	op.Samples = append(op.Samples, Sample{Name: "large", Large: true,
		In: []Input{diff(normal, 67, 503), index32(below(67), 131, 503)},
		Apply: binary(func(c *tensor.Ctx, x, index *tensor.Tensor) *tensor.Tensor {
			return tensor.Gather(c, x, 0, index)
		})})
	return op
}

func scatterAddRow() Op {
	op := Op{Name: "ScatterAdd", DTypes: floats, Slack: 4, Misuse: []Misuse{
		{Name: "source", Want: "float32[2 3], int64[2 3], float32[3]): want src of index's shape",
			Call: func(c *tensor.Ctx) {
				tensor.ScatterAdd(c, zeros(c, 2, 3), 0, tensor.Zeros(c, tensor.Int64, 2, 3), zeros(c, 3))
			}},
		{Name: "index", Fault: true, Want: "-1", Call: func(c *tensor.Ctx) {
			tensor.ScatterAdd(c, zeros(c, 3), 0, tensor.FromSlice(c, []int64{-1}, 1), zeros(c, 1))
		}},
	}}
	for _, s := range gatherShapes {
		d := (s.d + len(s.x)) % len(s.x)
		f := ternary(func(c *tensor.Ctx, x, index, src *tensor.Tensor) *tensor.Tensor {
			return tensor.ScatterAdd(c, x, s.d, index, src)
		})
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(s),
			In: []Input{diff(normal, s.x...), index64(below(s.x[d]), s.index...), diff(normal, s.index...)}, Apply: f,
			Want: func(_ tensor.DType, in []Array) []Array {
				out, x := Array{in[0].Shape, slices.Clone(in[0].V)}, in[0].Shape
				generate(in[1].Shape, func(at []int) float64 {
					i := 0
					for k, a := range at {
						if k == d {
							a = int(in[1].at(at...))
						}
						i = i*x[k] + a
					}
					out.V[i] += in[2].at(at...)
					return 0
				})
				return []Array{out}
			}})
	}
	op.Samples = append(op.Samples, Sample{Name: "large", Large: true,
		In: []Input{diff(normal, 67, 503), index32(below(67), 131, 503), diff(normal, 131, 503)},
		Apply: ternary(func(c *tensor.Ctx, x, index, src *tensor.Tensor) *tensor.Tensor {
			return tensor.ScatterAdd(c, x, 0, index, src)
		})})
	return op
}
