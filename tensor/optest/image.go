// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

func imageOps() []Op {
	return []Op{conv2DRow(), poolRow("MaxPool2D", tensor.MaxPool2D, false, slices.Max),
		poolRow("AvgPool2D", tensor.AvgPool2D, true, average), globalAvgPoolRow()}
}

// convolution is one set of shapes and options: images [n,c,h,w], kernels [o,c/groups,kh,kw].
type convolution struct {
	x, weight []int
	opt       tensor.Conv2DOptions
}

func (k convolution) apply(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
	return []*tensor.Tensor{tensor.Conv2D(c, in[0], in[1], in[2], k.opt)}
}

// want adds up the products under each place of the kernel, pixel by pixel.
func (k convolution) want(_ tensor.DType, in []Array) []Array {
	x, weight, bias := in[0], in[1], in[2]
	stride, dilation, groups := k.opt.Stride, k.opt.Dilation, max(k.opt.Groups, 1)
	shape := []int{x.Shape[0], weight.Shape[0], 0, 0}
	for d := range 2 {
		stride[d], dilation[d] = max(stride[d], 1), max(dilation[d], 1)
		shape[2+d] = (x.Shape[2+d]+2*k.opt.Padding[d]-dilation[d]*(weight.Shape[2+d]-1)-1)/stride[d] + 1
	}
	return []Array{generate(shape, func(at []int) float64 {
		sum := 0.0
		if bias.V != nil {
			sum = bias.V[at[1]]
		}
		group := at[1] / (shape[1] / groups)
		generate(weight.Shape[1:], func(w []int) float64 {
			row, col := at[2]*stride[0]-k.opt.Padding[0]+w[1]*dilation[0],
				at[3]*stride[1]-k.opt.Padding[1]+w[2]*dilation[1]
			if row >= 0 && row < x.Shape[2] && col >= 0 && col < x.Shape[3] {
				sum += weight.at(at[1], w[0], w[1], w[2]) * x.at(at[0], group*weight.Shape[1]+w[0], row, col)
			}
			return 0
		})
		return sum
	})}
}

func conv2DRow() Op {
	op := Op{Name: "Conv2D", DTypes: floats, Slack: 4}
	pair := func(a, b int) [2]int { return [2]int{a, b} }
	for _, k := range []convolution{
		{[]int{2, 3, 4, 5}, []int{2, 3, 3, 3}, tensor.Conv2DOptions{Padding: pair(1, 1)}},
		{[]int{1, 2, 5, 4}, []int{3, 2, 3, 2}, tensor.Conv2DOptions{Stride: pair(2, 1)}},
		{[]int{2, 2, 6, 5}, []int{2, 2, 2, 3},
			tensor.Conv2DOptions{Stride: pair(1, 2), Padding: pair(2, 1), Dilation: pair(2, 1)}},
		{[]int{2, 4, 3, 3}, []int{6, 2, 2, 2}, tensor.Conv2DOptions{Groups: 2, Padding: pair(0, 1)}},
		{[]int{2, 3, 4, 4}, []int{3, 1, 3, 3},
			tensor.Conv2DOptions{Groups: 3, Padding: pair(1, 1), Stride: pair(2, 2)}},
		{[]int{2, 3, 2, 3}, []int{4, 3, 1, 1}, tensor.Conv2DOptions{}},
		{[]int{2, 4, 2, 2}, []int{2, 2, 1, 1}, tensor.Conv2DOptions{Groups: 2}},
		{[]int{2, 3, 4, 3}, []int{2, 3, 1, 1}, tensor.Conv2DOptions{Stride: pair(2, 2)}},
		{[]int{1, 1, 1, 1}, []int{1, 1, 1, 1}, tensor.Conv2DOptions{}},
		{[]int{1, 1, 2, 1}, []int{1, 1, 3, 3}, tensor.Conv2DOptions{Padding: pair(3, 4)}},
		{[]int{0, 2, 3, 3}, []int{2, 2, 2, 2}, tensor.Conv2DOptions{}},
		{[]int{0, 2, 3, 3}, []int{2, 2, 1, 1}, tensor.Conv2DOptions{}},
		{[]int{2, 0, 3, 3}, []int{2, 0, 2, 2}, tensor.Conv2DOptions{}},
		{[]int{2, 2, 3, 3}, []int{0, 2, 2, 2}, tensor.Conv2DOptions{}},
		{[]int{2, 1, 0, 2}, []int{1, 1, 2, 2}, tensor.Conv2DOptions{Padding: pair(1, 0)}},
	} {
		x, weight, bias := diff(normal, k.x...), diff(normal, k.weight...), diff(normal, k.weight[0])
		name := fmt.Sprintf("%v %v %+v", k.x, k.weight, k.opt)
		op.Samples = append(op.Samples,
			Sample{Name: name, In: []Input{x, weight, bias}, Apply: k.apply, Want: k.want},
			Sample{Name: name + " no bias", In: []Input{x, weight, none()}, Apply: k.apply, Want: k.want})
	}
	for _, k := range []convolution{
		{[]int{3, 16, 31, 33}, []int{24, 8, 3, 3}, tensor.Conv2DOptions{Groups: 2, Padding: pair(1, 1)}},
		{[]int{3, 32, 130, 130}, []int{4, 32, 3, 3}, tensor.Conv2DOptions{}}, // more windows than one block holds
		{[]int{5, 32, 30, 31}, []int{48, 32, 3, 3}, tensor.Conv2DOptions{Padding: pair(1, 0)}},
		{[]int{5, 20, 30, 31}, []int{48, 20, 3, 3}, tensor.Conv2DOptions{Padding: pair(1, 1), Stride: pair(2, 2)}},
	} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprintf("large %v %v", k.x, k.weight), Large: true,
			In: []Input{diff(normal, k.x...), diff(normal, k.weight...), diff(normal, k.weight[0])}, Apply: k.apply})
	}
	call := func(x, weight, bias []int, opt tensor.Conv2DOptions) func(c *tensor.Ctx) {
		return func(c *tensor.Ctx) { tensor.Conv2D(c, zeros(c, x...), zeros(c, weight...), zeros(c, bias...), opt) }
	}
	image, kernel, bias := []int{1, 4, 5, 5}, []int{2, 4, 3, 3}, []int{2}
	op.Misuse = []Misuse{
		{Name: "dims", Want: "want images [N C H W]", Call: call([]int{4, 5, 5}, kernel, bias, tensor.Conv2DOptions{})},
		{Name: "channels",
			Want: "float32[1 4 5 5], float32[2 3 3 3], float32[2]): 1 groups: want a weight for 4/groups",
			Call: call(image, []int{2, 3, 3, 3}, bias, tensor.Conv2DOptions{})},
		{Name: "groups", Want: "output channels that groups divides",
			Call: call(image, []int{3, 2, 3, 3}, []int{3}, tensor.Conv2DOptions{Groups: 2})},
		{Name: "negative groups", Want: "-1 groups", Call: call(image, kernel, bias, tensor.Conv2DOptions{Groups: -1})},
		{Name: "bias", Want: "want a bias of shape [2]", Call: call(image, kernel, []int{3}, tensor.Conv2DOptions{})},
		{Name: "too small", Want: "a kernel [3 3] of dilation [3 1] does not fit images of [5 5] pixels",
			Call: call(image, kernel, bias, tensor.Conv2DOptions{Dilation: pair(3, 1)})},
		{Name: "stride", Want: "stride [-1 1]",
			Call: call(image, kernel, bias, tensor.Conv2DOptions{Stride: pair(-1, 1)})},
		{Name: "padding", Want: "no negative padding",
			Call: call(image, kernel, bias, tensor.Conv2DOptions{Padding: pair(0, -1)})},
		{Name: "dtypes", Want: "one dtype", Call: func(c *tensor.Ctx) {
			tensor.Conv2D(c, zeros(c, image...), tensor.Zeros(c, tensor.Float64, kernel...), nil,
				tensor.Conv2DOptions{})
		}},
	}
	return op
}

// pooling is one image and window.
type pooling struct {
	x   []int
	opt tensor.Pool2DOptions
}

// seen is the oracle that reduces the pixels which each window sees, with zeros or nothing for padding.
func (k pooling) seen(padded bool, f func(v []float64) float64) Oracle {
	return func(_ tensor.DType, in []Array) []Array {
		x, stride := in[0], k.opt.Stride
		shape := []int{x.Shape[0], x.Shape[1], 0, 0}
		for d := range 2 {
			if stride[d] == 0 {
				stride[d] = k.opt.Kernel[d]
			}
			shape[2+d] = (x.Shape[2+d]+2*k.opt.Padding[d]-k.opt.Kernel[d])/stride[d] + 1
		}
		return []Array{generate(shape, func(at []int) float64 {
			var v []float64
			for a := range k.opt.Kernel[0] {
				for b := range k.opt.Kernel[1] {
					row, col := at[2]*stride[0]-k.opt.Padding[0]+a, at[3]*stride[1]-k.opt.Padding[1]+b
					switch {
					case row >= 0 && row < x.Shape[2] && col >= 0 && col < x.Shape[3]:
						v = append(v, x.at(at[0], at[1], row, col))
					case padded:
						v = append(v, 0)
					}
				}
			}
			return f(v)
		})}
	}
}

func poolRow(name string, f func(c *tensor.Ctx, x *tensor.Tensor, opt tensor.Pool2DOptions) *tensor.Tensor, padded bool,
	want func(v []float64) float64) Op {
	op := Op{Name: name, DTypes: floats, Slack: 2}
	for _, k := range []pooling{
		{[]int{2, 2, 4, 6}, tensor.Pool2DOptions{Kernel: [2]int{2, 3}}},
		{[]int{1, 2, 5, 4}, tensor.Pool2DOptions{Kernel: [2]int{3, 2}, Stride: [2]int{2, 1}, Padding: [2]int{1, 1}}},
		{[]int{2, 1, 4, 4}, tensor.Pool2DOptions{Kernel: [2]int{3, 3}, Stride: [2]int{1, 1}, Padding: [2]int{1, 0}}},
		{[]int{1, 1, 1, 1}, tensor.Pool2DOptions{Kernel: [2]int{1, 1}}},
		{[]int{0, 2, 3, 3}, tensor.Pool2DOptions{Kernel: [2]int{2, 2}}},
		{[]int{2, 0, 3, 3}, tensor.Pool2DOptions{Kernel: [2]int{2, 2}}},
		{[]int{5, 9, 30, 31}, tensor.Pool2DOptions{Kernel: [2]int{3, 3}, Stride: [2]int{2, 2}, Padding: [2]int{1, 1}}},
	} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprintf("%v %+v", k.x, k.opt),
			In: []Input{diff(distinct, k.x...)}, Want: k.seen(padded, want), Large: k.x[0] == 5,
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return f(c, x, k.opt) })})
	}
	call := func(x []int, opt tensor.Pool2DOptions) func(c *tensor.Ctx) {
		return func(c *tensor.Ctx) { f(c, zeros(c, x...), opt) }
	}
	two := [2]int{2, 2}
	op.Misuse = []Misuse{
		{Name: "dims", Want: "float32[3 4 4]): want images [N C H W]",
			Call: call([]int{3, 4, 4}, tensor.Pool2DOptions{Kernel: two})},
		{Name: "no pixels", Want: "at least one pixel",
			Call: call([]int{1, 3, 0, 4}, tensor.Pool2DOptions{Kernel: two, Padding: [2]int{1, 1}})},
		{Name: "no kernel", Want: "kernel [0 0]", Call: call([]int{1, 3, 4, 4}, tensor.Pool2DOptions{})},
		{Name: "padding", Want: "padding [2 0]: want at most half of the kernel [2 2]",
			Call: call([]int{1, 3, 4, 4}, tensor.Pool2DOptions{Kernel: two, Padding: [2]int{2, 0}})},
		{Name: "negative padding", Want: "no negative padding",
			Call: call([]int{1, 3, 4, 4}, tensor.Pool2DOptions{Kernel: two, Padding: [2]int{-1, 0}})},
		{Name: "stride", Want: "stride [1 -2]",
			Call: call([]int{1, 3, 4, 4}, tensor.Pool2DOptions{Kernel: two, Stride: [2]int{1, -2}})},
		{Name: "too small", Want: "does not fit images of [1 4] pixels",
			Call: call([]int{1, 3, 1, 4}, tensor.Pool2DOptions{Kernel: two})},
	}
	return op
}

func average(v []float64) float64 { return total(v) / float64(len(v)) }

func globalAvgPoolRow() Op {
	op := Op{Name: "GlobalAvgPool2D", DTypes: floats, Misuse: []Misuse{
		{Name: "dims", Want: "float32[3 4]): want images [N C H W]", Call: func(c *tensor.Ctx) {
			tensor.GlobalAvgPool2D(c, zeros(c, 3, 4))
		}},
		{Name: "no pixels", Want: "at least one pixel", Call: func(c *tensor.Ctx) {
			tensor.GlobalAvgPool2D(c, zeros(c, 1, 2, 3, 0))
		}},
	}}
	for _, shape := range [][]int{{2, 3, 4, 5}, {1, 1, 1, 1}, {0, 2, 3, 3}, {2, 0, 3, 3}} {
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(shape), In: []Input{diff(normal, shape...)},
			Apply: unary(tensor.GlobalAvgPool2D),
			Want:  reduced([]int{2, 3}, true, average)})
	}
	return op
}
