// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/internal/kernels"
	"github.com/lockstep-ml/lockstep/tensor"
)

// productRows are the matrix products of training: GPT-2 small's projections and head, ResNet-18's convolutions as
// products over unfolded windows, and squares.
func productRows() []row {
	var all []row
	for _, w := range [][2]int{{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}} {
		for _, tokens := range []int{1, 8, 128, 1024, 4096} {
			all = append(all, projection(tokens, w[0], w[1])...)
		}
	}
	for _, tokens := range []int{1, 8, 128, 1024, 4096} {
		all = append(all, head(tokens, 768, 50257)...)
	}
	// Output channels, input channels × kernel, and places, of as many images as Conv2D takes at once.
	for _, w := range [][3]int{{64, 147, 2 * 112 * 112}, {64, 576, 2 * 56 * 56}, {128, 1152, 4 * 28 * 28},
		{256, 2304, 9 * 14 * 14}, {512, 4608, 18 * 7 * 7}, {128, 64, 28 * 28}} {
		all = append(all, convolution(w[0], w[1], w[2])...)
	}
	for _, n := range []int{512, 1024, 2048} {
		r := product(fmt.Sprintf("square_%d", n), n, n, n, false, false)
		r.against, r.ofCeiling, r.extra = []side{kept, openblas}, true, false
		all = append(all, r)
		if n == 1024 && slices.Contains(kernels.Available(), kernels.AVX2) {
			all = append(all, under(r, kernels.AVX2))
		}
	}
	double := productOf(tensor.Float64, "square_1024_f64", 1024, 1024, 1024, false, false)
	double.ofCeiling = true
	all = append(all, extras(double, productOf(tensor.BFloat16, "square_1024_bf16", 1024, 1024, 1024, false, false))...)
	for _, tokens := range []int{1, 8, 1024} {
		all = append(all,
			extras(productOf(tensor.BFloat16, fmt.Sprintf("bf16_768x3072_%d", tokens), tokens, 3072, 768, false,
				false))...)
	}
	return append(all, decodeRows()...)
}

// decodeRows are products of a few rows by a weight [out, in] past the caches, as a decoder runs them for one text or a
// few: their time is that of reading the weight.
func decodeRows() []row {
	const in, out = 4096, 11008
	var all []row
	for _, of := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16} {
		for rows := 1; rows <= 8; rows++ {
			r := productOf(of, fmt.Sprintf("decode_%v_%d", of, rows), rows, out, in, false, true)
			r.flops, r.bytes = 0, float64(of.Size()*in*out)
			r.reads, r.ofCeiling, r.against = true, true, []side{}
			all = append(all, r)
			if slices.Contains(kernels.Available(), kernels.AVX2) {
				all = append(all, under(r, kernels.AVX2))
			}
		}
	}
	return extras(all...)
}

// longProduct is the number of operations from which on a product is left out of a quick run.
const longProduct = 2e10

// under is a row with a variant of the kernels forced, without a peer: what counts is the share of the variant's own
// peak.
func under(r row, v kernels.Variant) row {
	open := r.open
	r.name, r.against = fmt.Sprintf("%s_%s", r.name, v), []side{}
	r.open = func(threads int) (run, end func()) {
		restore, err := kernels.Force(v)
		if err != nil {
			panic(err)
		}
		run, done := open(threads)
		return run, func() { done(); restore() }
	}
	return r
}

// projection is x·w + b with a weight [in, out], and its gradients.
func projection(tokens, in, out int) []row {
	name := fmt.Sprintf("matmul_%dx%d_%d", in, out, tokens)
	flops := 2 * float64(tokens*in*out)
	forward := row{name: name, flops: flops, against: []side{kept}, extra: flops > longProduct,
		open: func(threads int) (run, end func()) {
			dev := tensor.NewCPU(threads)
			c := tensor.NewCtx(dev).NoGrad()
			x, w, b := filled(c, tokens, in), filled(c, in, out), filled(c, out)
			return func() { c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { tensor.AddMM(c, b, x, w); return nil }) },
				func() { dev.Close() }
		}}
	return []row{forward, product(name+"_dx", tokens, in, out, false, true),
		product(name+"_dw", in, out, tokens, true, false)}
}

// head is x·wᵀ with a weight [out, in], an embedding's table, and its gradients.
func head(tokens, in, out int) []row {
	name := fmt.Sprintf("head_%dx%d_%d", in, out, tokens)
	return []row{
		product(name, tokens, out, in, false, true),
		product(name+"_dx", tokens, in, out, false, false),
		product(name+"_dw", out, in, tokens, true, false),
	}
}

// convolution is the product of a convolution's weight [out, depth] with its windows [depth, places], and its
// gradients.
func convolution(out, depth, places int) []row {
	name := fmt.Sprintf("conv_%dx%d_%d", out, depth, places)
	return []row{
		product(name, out, places, depth, false, false),
		product(name+"_dx", depth, places, out, true, false),
		product(name+"_dw", out, depth, places, false, true),
	}
}

// product is [m,k]·[k,n] of operands that are stored as they are, or transposed.
func product(name string, m, n, k int, transA, transB bool) row {
	return productOf(tensor.Float32, name, m, n, k, transA, transB)
}

// productOf is a product of operands of a type.
func productOf(of tensor.DType, name string, m, n, k int, transA, transB bool) row {
	flops := 2 * float64(m) * float64(n) * float64(k)
	return row{name: name, flops: flops, double: of == tensor.Float64, against: []side{kept},
		extra: flops > longProduct, open: func(threads int) (run, end func()) {
			dev := tensor.NewCPU(threads)
			c := tensor.NewCtx(dev).NoGrad()
			matrix := func(rows, cols int, transposed bool) *tensor.Tensor {
				if transposed {
					return tensor.Transpose(c, tensor.Cast(c, filled(c, cols, rows), of), 0, 1)
				}
				return tensor.Cast(c, filled(c, rows, cols), of)
			}
			x, y := matrix(m, k, transA), matrix(k, n, transB)
			return func() { c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { tensor.MatMul(c, x, y); return nil }) },
				func() { dev.Close() }
		}}
}
