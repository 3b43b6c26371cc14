// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// viewSample is a sample of an op on one operand that moves elements; large ones are
// there because the ops that follow a view see its strides.
func viewSample(shape []int, what any, want Oracle, f unaryFunc) Sample {
	return Sample{Name: fmt.Sprint(shape, what), In: []Input{diff(normal, shape...)}, Apply: unary(f), Want: want}
}

func viewOps() []Op {
	return []Op{cloneRow("Clone", tensor.Clone), cloneRow("Contiguous", tensor.Contiguous), castRow(), reshapeRow(),
		flattenRow(), squeezeRow(), unsqueezeRow(),
		permuteRow(), transposeRow(), expandRow(), sliceRow(), selectRow(), splitRow()}
}

func cloneRow(name string, f unaryFunc) Op {
	op := Op{Name: name, DTypes: all}
	for _, shape := range [][]int{{}, {1}, {3, 5}, {2, 0}} {
		op.Samples = append(op.Samples, viewSample(shape, "", same(shape...), f))
	}
	transposed := func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return f(c, tensor.Transpose(c, x, 0, 1)) }
	op.Samples = append(op.Samples, viewSample([]int{3, 4}, "transposed",
		indexed([]int{4, 3}, func(at []int) []int { return []int{at[1], at[0]} }), transposed),
		Sample{Name: "large", Large: true, In: []Input{diff(normal, 211, 307)}, Apply: unary(transposed)})
	return op
}

func castRow() Op {
	op := Op{Name: "Cast", DTypes: all}
	for _, to := range all {
		fill := normal
		if to == tensor.Uint8 { // which negative numbers do not fit
			fill = positive
		}
		op.Samples = append(op.Samples, Sample{Name: to.String(), Rough: to != tensor.Float64,
			In:    []Input{{Shape: []int{2, 5}, Fill: fill, Diff: to.IsFloat()}},
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Cast(c, x, to) }),
			Want:  pointwise(func(x ...float64) float64 { return convert(to, x[0]) })})
	}
	op.Samples = append(op.Samples, Sample{Name: "empty", In: []Input{diff(normal, 2, 0)},
		Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Cast(c, x, tensor.Float64) }),
		Want:  same(2, 0)})
	op.Misuse = []Misuse{{Name: "dtype", Want: "want one of", Call: func(c *tensor.Ctx) {
		tensor.Cast(c, zeros(c, 2), tensor.DType(77))
	}}}
	return op
}

func reshapeRow() Op {
	op := Op{Name: "Reshape", DTypes: all, Misuse: []Misuse{
		{Name: "size", Want: "float32[2 3]): shape [4] holds 4 elements: want 6", Call: func(c *tensor.Ctx) {
			tensor.Reshape(c, zeros(c, 2, 3), 4)
		}},
		{Name: "two holes", Want: "at most one", Call: func(c *tensor.Ctx) {
			tensor.Reshape(c, zeros(c, 2, 3), -1, -1)
		}},
		{Name: "no divisor", Want: "no size for", Call: func(c *tensor.Ctx) {
			tensor.Reshape(c, zeros(c, 2, 3), 4, -1)
		}},
		{Name: "empty hole", Want: "no size for", Call: func(c *tensor.Ctx) { tensor.Reshape(c, zeros(c, 0), 0, -1) }},
		{Name: "dims", Want: "at most 6 dims", Call: func(c *tensor.Ctx) {
			tensor.Reshape(c, zeros(c, 1), 1, 1, 1, 1, 1, 1, 1)
		}},
	}}
	for _, s := range []struct{ from, to, want []int }{
		{[]int{2, 6}, []int{3, 4}, []int{3, 4}}, {[]int{2, 6}, []int{-1}, []int{12}},
		{[]int{2, 3, 4}, []int{6, -1}, []int{6, 4}}, {[]int{}, []int{1, 1}, []int{1, 1}},
		{[]int{1}, nil, nil}, {[]int{0, 3}, []int{3, 0, 2}, []int{3, 0, 2}}, {[]int{0, 3}, []int{-1, 3}, []int{0, 3}},
	} {
		op.Samples = append(op.Samples, viewSample(s.from, s.to, same(s.want...),
			func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Reshape(c, x, s.to...) }))
	}
	return op
}

func flattenRow() Op {
	op := Op{Name: "Flatten", DTypes: all, Misuse: []Misuse{
		{Name: "order", Want: "float32[2 3]): dims 1 to 0: want start ≤ end", Call: func(c *tensor.Ctx) {
			tensor.Flatten(c, zeros(c, 2, 3), 1, 0)
		}},
	}}
	for _, s := range []struct {
		shape      []int
		start, end int
		want       []int
	}{
		{[]int{2, 3, 4}, 0, -1, []int{24}}, {[]int{2, 3, 4}, 1, 2, []int{2, 12}}, {[]int{2, 3, 4}, -3, 1, []int{6, 4}},
		{[]int{2, 3}, 1, 1, []int{2, 3}},
		{[]int{}, 0, -1, []int{1}}, {[]int{2, 0, 3}, 0, 1, []int{0, 3}},
	} {
		op.Samples = append(op.Samples, viewSample(s.shape, []int{s.start, s.end}, same(s.want...),
			func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
				return tensor.Flatten(c, x, s.start, s.end)
			}))
	}
	return op
}

func squeezeRow() Op {
	op := Op{Name: "Squeeze", DTypes: all, Misuse: []Misuse{
		{Name: "size", Want: "float32[2 3]): dim 1 does not have size 1", Call: func(c *tensor.Ctx) {
			tensor.Squeeze(c, zeros(c, 2, 3), -1)
		}},
	}}
	for _, d := range []int{1, -2} {
		op.Samples = append(op.Samples, viewSample([]int{2, 1, 3}, d, same(2, 3),
			func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Squeeze(c, x, d) }))
	}
	op.Samples = append(op.Samples, viewSample([]int{1}, 0, same(),
		func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Squeeze(c, x, 0) }),
		viewSample([]int{0, 1}, 1, same(0), func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
			return tensor.Squeeze(c, x, 1)
		}))
	return op
}

func unsqueezeRow() Op {
	op := Op{Name: "Unsqueeze", DTypes: all, Misuse: []Misuse{
		{Name: "dim", Want: "float32[2 3]): dim 3: want one in [-3, 2]", Call: func(c *tensor.Ctx) {
			tensor.Unsqueeze(c, zeros(c, 2, 3), 3)
		}},
	}}
	for _, s := range []struct {
		shape []int
		d     int
		want  []int
	}{{[]int{2, 3}, 0, []int{1, 2, 3}}, {[]int{2, 3}, 2, []int{2, 3, 1}}, {[]int{2, 3}, -1, []int{2, 3, 1}},
		{[]int{}, 0, []int{1}}, {[]int{0}, -2, []int{1, 0}}} {
		op.Samples = append(op.Samples, viewSample(s.shape, s.d, same(s.want...),
			func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
				return tensor.Unsqueeze(c, x, s.d)
			}))
	}
	return op
}

func permuteRow() Op {
	op := Op{Name: "Permute", DTypes: all, Misuse: []Misuse{
		{Name: "count", Want: "float32[2 3]): dims [0]: want a permutation of 2 dims", Call: func(c *tensor.Ctx) {
			tensor.Permute(c, zeros(c, 2, 3), 0)
		}},
		{Name: "twice", Want: "dim 1 twice", Call: func(c *tensor.Ctx) { tensor.Permute(c, zeros(c, 2, 3), 1, -1) }},
	}}
	for _, s := range []struct{ shape, dims []int }{
		{[]int{2, 3, 4}, []int{2, 0, 1}}, {[]int{2, 3, 4}, []int{-1, 1, 0}}, {[]int{2, 3, 1, 2}, []int{0, 2, 1, 3}},
		{[]int{}, nil}, {[]int{5}, []int{0}}, {[]int{0, 2}, []int{1, 0}},
	} {
		shape := make([]int, len(s.dims))
		source := make([]int, len(s.dims))
		for i, d := range s.dims {
			source[i] = (d + len(s.shape)) % len(s.shape)
			shape[i] = s.shape[source[i]]
		}
		op.Samples = append(op.Samples, viewSample(s.shape, s.dims, indexed(shape, func(at []int) []int {
			from := make([]int, len(at))
			for i, d := range source {
				from[d] = at[i]
			}
			return from
		}), func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Permute(c, x, s.dims...) }))
	}
	return op
}

func transposeRow() Op {
	op := Op{Name: "Transpose", DTypes: all, Misuse: []Misuse{
		{Name: "dim", Want: "float32[2 3]): dim 2", Call: func(c *tensor.Ctx) {
			tensor.Transpose(c, zeros(c, 2, 3), 0, 2)
		}},
	}}
	for _, s := range []struct {
		shape  []int
		d0, d1 int
	}{{[]int{2, 3, 4}, 0, -1}, {[]int{2, 3, 4}, 1, 2}, {[]int{2, 3}, 1, 1}, {[]int{3, 0}, 0, 1}} {
		a, b := (s.d0+len(s.shape))%len(s.shape), (s.d1+len(s.shape))%len(s.shape)
		shape := slices.Clone(s.shape)
		shape[a], shape[b] = shape[b], shape[a]
		op.Samples = append(op.Samples, viewSample(s.shape, []int{s.d0, s.d1}, indexed(shape, func(at []int) []int {
			from := slices.Clone(at)
			from[a], from[b] = at[b], at[a]
			return from
		}), func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Transpose(c, x, s.d0, s.d1) }))
	}
	op.Samples = append(op.Samples, viewSample(nil, "0-D", same(),
		func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Transpose(c, x, 0, -1) }))
	return op
}

func expandRow() Op {
	op := Op{Name: "Expand", DTypes: all, Misuse: []Misuse{
		{Name: "size", Want: "float32[2 3]): does not broadcast to [2 4]", Call: func(c *tensor.Ctx) {
			tensor.Expand(c, zeros(c, 2, 3), 2, 4)
		}},
		{Name: "fewer dims", Want: "does not broadcast to [3]", Call: func(c *tensor.Ctx) {
			tensor.Expand(c, zeros(c, 2, 3), 3)
		}},
		{Name: "negative", Want: "does not broadcast to [-1 3]", Call: func(c *tensor.Ctx) {
			tensor.Expand(c, zeros(c, 3), -1, 3)
		}},
	}}
	for _, s := range []struct{ from, to []int }{
		{[]int{3}, []int{2, 3}}, {[]int{1, 3}, []int{4, 3}}, {[]int{2, 1}, []int{3, 2, 4}}, {[]int{}, []int{2, 2}},
		{[]int{3}, []int{3}}, {[]int{1}, []int{0}}, {[]int{1, 0}, []int{2, 0}}, {[]int{2}, []int{0, 2}},
	} {
		op.Samples = append(op.Samples, viewSample(s.from, s.to, indexed(s.to, func(at []int) []int { return at }),
			func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
				return tensor.Expand(c, x, s.to...)
			}))
	}
	return op
}

func sliceRow() Op {
	op := Op{Name: "Slice", DTypes: all, Misuse: []Misuse{
		{Name: "end", Want: "float32[2 3]): [1:4] of dim 1: want 0 ≤ start ≤ end ≤ 3", Call: func(c *tensor.Ctx) {
			tensor.Slice(c, zeros(c, 2, 3), 1, 1, 4)
		}},
		{Name: "order", Want: "[2:1]", Call: func(c *tensor.Ctx) { tensor.Slice(c, zeros(c, 2, 3), 1, 2, 1) }},
		{Name: "start", Want: "[-4:1]", Call: func(c *tensor.Ctx) { tensor.Slice(c, zeros(c, 2, 3), 1, -4, 1) }},
		{Name: "0-D", Want: "no dim to slice", Call: func(c *tensor.Ctx) { tensor.Slice(c, zeros(c), 0, 0, 1) }},
	}}
	for _, s := range []struct {
		shape         []int
		d, start, end int
		from, n       int
	}{
		{[]int{5}, 0, 1, 4, 1, 3}, {[]int{3, 4}, 1, -3, -1, 1, 2}, {[]int{3, 4}, 0, 1, 3, 1, 2},
		{[]int{2, 3, 4}, -2, 1, 2, 1, 1}, {[]int{3, 4}, 1, 0, 4, 0, 4},
		{[]int{3, 4}, 1, 4, 4, 4, 0}, {[]int{3, 4}, 0, 2, 2, 2, 0}, {[]int{0, 4}, 1, 1, 3, 1, 2},
	} {
		d := (s.d + len(s.shape)) % len(s.shape)
		shape := slices.Clone(s.shape)
		shape[d] = s.n
		op.Samples = append(op.Samples, viewSample(s.shape, []int{s.d, s.start, s.end},
			indexed(shape, func(at []int) []int {
				from := slices.Clone(at)
				from[d] += s.from
				return from
			}), func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
				return tensor.Slice(c, x, s.d, s.start, s.end)
			}))
	}
	return op
}

func selectRow() Op {
	op := Op{Name: "Select", DTypes: all, Misuse: []Misuse{
		{Name: "index", Want: "float32[2 3]): index 3 of dim 1 is out of range", Call: func(c *tensor.Ctx) {
			tensor.Select(c, zeros(c, 2, 3), 1, 3)
		}},
		{Name: "empty", Want: "out of range", Call: func(c *tensor.Ctx) { tensor.Select(c, zeros(c, 0), 0, 0) }},
	}}
	for _, s := range []struct {
		shape   []int
		d, i    int
		at      int
		without []int
	}{
		{[]int{5}, 0, 3, 3, nil}, {[]int{3, 4}, 0, 1, 1, []int{4}}, {[]int{3, 4}, -1, -1, 3, []int{3}},
		{[]int{2, 3, 4}, 1, 2, 2, []int{2, 4}}, {[]int{2, 0}, 0, 1, 1, []int{0}},
	} {
		d := (s.d + len(s.shape)) % len(s.shape)
		op.Samples = append(op.Samples, viewSample(s.shape, []int{s.d, s.i},
			indexed(s.without, func(at []int) []int { return slices.Insert(slices.Clone(at), d, s.at) }),
			func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Select(c, x, s.d, s.i) }))
	}
	return op
}

func splitRow() Op {
	op := Op{Name: "Split", DTypes: all, Misuse: []Misuse{
		{Name: "sum", Want: "float32[2 3]): sizes [1 1] add up to 2", Call: func(c *tensor.Ctx) {
			tensor.Split(c, zeros(c, 2, 3), 1, 1, 1)
		}},
		{Name: "negative", Want: "want sizes ≥ 0", Call: func(c *tensor.Ctx) {
			tensor.Split(c, zeros(c, 2, 3), 1, 5, -2)
		}},
	}}
	for _, s := range []struct {
		shape []int
		d     int
		sizes []int
	}{{[]int{6}, 0, []int{1, 2, 3}}, {[]int{3, 4}, -1, []int{2, 2}}, {[]int{4, 3}, 0, []int{3, 0, 1}},
		{[]int{2, 3, 4}, 1, []int{3}}, {[]int{0, 4}, 1, []int{1, 3}}} {
		d := (s.d + len(s.shape)) % len(s.shape)
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(s), In: []Input{diff(normal, s.shape...)},
			Apply: func(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
				return tensor.Split(c, in[0], s.d, s.sizes...)
			},
			Want: func(dt tensor.DType, in []Array) (out []Array) {
				first := 0
				for _, n := range s.sizes {
					shape := slices.Clone(s.shape)
					shape[d] = n
					out = append(out, indexed(shape, func(at []int) []int {
						from := slices.Clone(at)
						from[d] += first
						return from
					})(dt, in)...)
					first += n
				}
				return out
			}})
	}
	return op
}

// joinSample joins operands of the given shapes along d; stack puts a new dim there.
func joinSample(shapes [][]int, d int, want Oracle,
	f func(c *tensor.Ctx, d int, xs ...*tensor.Tensor) *tensor.Tensor) Sample {
	s := Sample{Name: fmt.Sprint(shapes, d), Want: want,
		Apply: func(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
			return []*tensor.Tensor{f(c, d, in...)}
		}}
	for _, shape := range shapes {
		s.In = append(s.In, diff(normal, shape...))
	}
	return s
}

func joinOps() []Op {
	concat := Op{Name: "Concat", DTypes: all, Misuse: []Misuse{
		{Name: "none", Want: "no tensors", Call: func(c *tensor.Ctx) { tensor.Concat(c, 0) }},
		{Name: "sizes", Want: "float32[2 3], float32[3 3]): sizes of dim 0 differ", Call: func(c *tensor.Ctx) {
			tensor.Concat(c, 1, zeros(c, 2, 3), zeros(c, 3, 3))
		}},
		{Name: "dims", Want: "equal numbers of dims", Call: func(c *tensor.Ctx) {
			tensor.Concat(c, 0, zeros(c, 2, 3), zeros(c, 3))
		}},
		{Name: "dtypes", Want: "one dtype", Call: func(c *tensor.Ctx) {
			tensor.Concat(c, 0, zeros(c, 2), tensor.Zeros(c, tensor.Int32, 2))
		}},
	}}
	stack := Op{Name: "Stack", DTypes: all, Misuse: []Misuse{
		{Name: "shapes", Want: "float32[2], float32[3]): want operands of one shape", Call: func(c *tensor.Ctx) {
			tensor.Stack(c, 0, zeros(c, 2), zeros(c, 3))
		}},
	}}
	for _, s := range []struct {
		shapes [][]int
		d      int
	}{
		{[][]int{{2}, {1}, {3}}, 0}, {[][]int{{2, 3}, {2, 1}}, -1}, {[][]int{{1, 3}, {2, 3}}, 0},
		{[][]int{{2, 1, 3}, {2, 2, 3}, {2, 0, 3}}, 1}, {[][]int{{4}}, 0}, {[][]int{{0}, {0}}, 0},
	} {
		concat.Samples = append(concat.Samples, joinSample(s.shapes, s.d, concatOracle(s.d), tensor.Concat))
	}
	concat.Samples = append(concat.Samples, Sample{Name: "large", Large: true,
		In:    []Input{diff(normal, 13, 2500), diff(normal, 13, 2503)},
		Apply: binary(func(c *tensor.Ctx, x, y *tensor.Tensor) *tensor.Tensor { return tensor.Concat(c, 1, x, y) })})
	for _, s := range []struct {
		shape []int
		n, d  int
	}{{[]int{3}, 2, 0}, {[]int{3}, 2, -1}, {[]int{2, 3}, 3, 1}, {[]int{}, 2, 0}, {[]int{2, 3}, 1, -3},
		{[]int{0}, 2, 1}} {
		shapes := slices.Repeat([][]int{s.shape}, s.n)
		d := (s.d + len(s.shape) + 1) % (len(s.shape) + 1)
		stack.Samples = append(stack.Samples, joinSample(shapes, s.d, func(_ tensor.DType, in []Array) []Array {
			return []Array{generate(slices.Insert(slices.Clone(s.shape), d, s.n), func(at []int) float64 {
				return in[at[d]].at(slices.Delete(slices.Clone(at), d, d+1)...)
			})}
		}, tensor.Stack))
	}
	return []Op{concat, stack}
}

func concatOracle(d int) Oracle {
	return func(_ tensor.DType, in []Array) []Array {
		d := (d + len(in[0].Shape)) % len(in[0].Shape)
		shape := slices.Clone(in[0].Shape)
		for _, a := range in[1:] {
			shape[d] += a.Shape[d]
		}
		return []Array{generate(shape, func(at []int) float64 {
			at = slices.Clone(at)
			for _, a := range in {
				if at[d] < a.Shape[d] {
					return a.at(at...)
				}
				at[d] -= a.Shape[d]
			}
			panic("outside of all operands")
		})}
	}
}
