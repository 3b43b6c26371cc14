// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func init() {
	makers[backend.OpIm2Col] = func(g *gen) { windowSamples(g, false) }
	makers[backend.OpCol2Im] = func(g *gen) { windowSamples(g, true) }
	for _, op := range []backend.Op{backend.OpConv2D, backend.OpConv2DGrad, backend.OpConv2DParamGrad} {
		makers[op] = func(g *gen) { convSamples(g, op) }
	}
	makers[backend.OpMaxPool] = maxPoolSamples
	makers[backend.OpMaxPoolGrad] = maxPoolGradSamples
}

// windowCase is an image and a window that moves over it; the pairs are for rows and columns.
type windowCase struct {
	n, c                    int
	size, window            [2]int
	stride, padding, spread [2]int
}

// places is the number of places of the window along rows or columns.
func (w windowCase) places(k int) int {
	return (w.size[k]+2*w.padding[k]-w.spread[k]*(w.window[k]-1)-1)/w.stride[k] + 1
}

// pixel is the place in the plane that element at of the window sees from a place, false for padding.
func (w windowCase) pixel(place, at [2]int) (int, bool) {
	var xy [2]int
	for k := range xy {
		xy[k] = place[k]*w.stride[k] - w.padding[k] + at[k]*w.spread[k]
		if xy[k] < 0 || xy[k] >= w.size[k] {
			return 0, false
		}
	}
	return xy[0]*w.size[1] + xy[1], true
}

var windowCases = []windowCase{
	{1, 1, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}, [2]int{0, 0}, [2]int{1, 1}},
	{2, 3, [2]int{5, 6}, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}},
	{1, 2, [2]int{7, 5}, [2]int{3, 2}, [2]int{2, 3}, [2]int{1, 0}, [2]int{1, 1}},
	{2, 1, [2]int{9, 8}, [2]int{2, 3}, [2]int{2, 1}, [2]int{2, 4}, [2]int{3, 2}},
	// some elements of the window see padding alone
	{1, 1, [2]int{3, 2}, [2]int{2, 4}, [2]int{3, 2}, [2]int{4, 5}, [2]int{1, 3}},
	{1, 2, [2]int{4, 4}, [2]int{1, 1}, [2]int{2, 2}, [2]int{0, 0}, [2]int{1, 1}},
	{0, 2, [2]int{4, 4}, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}},
	{2, 0, [2]int{4, 4}, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}},
	{1, 1, [2]int{0, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}},
	{3, 5, [2]int{33, 29}, [2]int{7, 7}, [2]int{2, 2}, [2]int{3, 3}, [2]int{1, 1}},
	{30, 4, [2]int{5, 6}, [2]int{3, 3}, [2]int{2, 2}, [2]int{1, 1}, [2]int{1, 1}},
	{2, 2, [2]int{9, 8}, [2]int{3, 2}, [2]int{1, 2}, [2]int{-2, -1}, [2]int{1, 2}},
	{1, 2, [2]int{40, 50}, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}},
}

func windowSamples(g *gen, gradient bool) {
	for _, dt := range g.some(floating) {
		for _, w := range windowCases {
			image, cols := []int{w.c, w.size[0], w.size[1], w.n},
				[]int{w.c, w.window[0], w.window[1], w.places(0), w.places(1), w.n}
			s := &sample{ints: [8]int{w.stride[0], w.stride[1], w.padding[0], w.padding[1], w.spread[0], w.spread[1]}}
			in, out := g.random(dt, rowMajor, -1, 1, image...), output(dt, rowMajor, cols...)
			if gradient {
				in, out = g.random(dt, rowMajor, -1, 1, cols...), output(dt, rowMajor, image...)
			}
			want := make([]float64, out.numel())
			for i := range numel(cols) {
				at := unravel(i, cols)
				pixel, seen := w.pixel([2]int{at[3], at[4]}, [2]int{at[1], at[2]})
				pixel = (at[0]*w.size[0]*w.size[1]+pixel)*w.n + at[5]
				switch {
				case !seen:
				case gradient:
					want[pixel] += in.at(i)
				default:
					want[i] = in.at(pixel)
				}
			}
			s.ins, s.outs, s.want, s.loose = []*operand{in}, []*operand{out}, [][]float64{want}, 4
			g.add(s, "%s %+v", dt, w)
		}
	}
}

var maxPoolCases = []windowCase{
	{1, 1, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}, [2]int{0, 0}, [2]int{1, 1}},
	{2, 3, [2]int{4, 6}, [2]int{2, 2}, [2]int{2, 2}, [2]int{0, 0}, [2]int{1, 1}},
	{2, 2, [2]int{7, 5}, [2]int{3, 3}, [2]int{2, 2}, [2]int{1, 1}, [2]int{1, 1}},
	{1, 1, [2]int{1, 3}, [2]int{2, 4}, [2]int{1, 3}, [2]int{1, 2}, [2]int{1, 1}},
	{0, 2, [2]int{4, 4}, [2]int{2, 2}, [2]int{2, 2}, [2]int{0, 0}, [2]int{1, 1}},
	{3, 7, [2]int{30, 31}, [2]int{3, 5}, [2]int{2, 1}, [2]int{1, 2}, [2]int{1, 1}},
}

// maxPoolGradSamples are the gradients of maxima that meet.
func maxPoolGradSamples(g *gen) {
	for _, dt := range g.some(floating) {
		for _, w := range maxPoolCases {
			s := maxPoolSample(g, dt, w, 0)
			x, index, dy := s.ins[0], s.want[1], g.random(dt, rowMajor, -1, 1, s.outs[0].shape...)
			dx, area, places := make([]float64, x.numel()), w.size[0]*w.size[1], w.places(0)*w.places(1)
			for i := range dy.numel() {
				dx[i/places*area+int(index[i])] += dy.at(i)
			}
			s.ins = []*operand{dy, numbers(dtype.Int64, dy.shape, index)}
			s.outs, s.want, s.loose = []*operand{output(dt, rowMajor, x.shape...)}, [][]float64{dx}, 4
			g.add(s, "%s %+v", dt, w)
		}
	}
}

func maxPoolSamples(g *gen) {
	for _, dt := range g.some(floating) {
		for _, w := range maxPoolCases {
			for _, special := range []float64{0, math.NaN(), math.Inf(-1)} {
				g.add(maxPoolSample(g, dt, w, special), "%s %+v with %v", dt, w, special)
			}
		}
	}
}

// maxPoolSample has few different numbers, so that maxima meet, and the special one at so many places that some windows
// see nothing else.
func maxPoolSample(g *gen, dt dtype.DType, w windowCase, special float64) *sample {
	x := newOperand(dt, rowMajor, []int{w.n, w.c, w.size[0], w.size[1]}, func(int) float64 {
		if v := g.rng.IntN(8); v > 2 {
			return float64(v)
		}
		return special
	})
	shape := []int{w.n, w.c, w.places(0), w.places(1)}
	y, index := make([]float64, numel(shape)), make([]float64, numel(shape))
	for i := range y {
		at := unravel(i, shape)
		best := -1
		for k := range w.window[0] * w.window[1] {
			pixel, seen := w.pixel([2]int{at[2], at[3]}, [2]int{k / w.window[1], k % w.window[1]})
			if !seen {
				continue
			}
			v := x.at((at[0]*w.c+at[1])*w.size[0]*w.size[1] + pixel)
			if best < 0 || v > y[i] || math.IsNaN(v) && !math.IsNaN(y[i]) {
				best, y[i] = pixel, v
			}
		}
		index[i] = float64(best)
	}
	return &sample{ins: []*operand{x}, outs: []*operand{output(dt, rowMajor, shape...),
		output(dtype.Int64, rowMajor, shape...)}, want: [][]float64{y, index},
		ints: [8]int{w.stride[0], w.stride[1], w.padding[0], w.padding[1], w.window[0], w.window[1]}}
}

// convCase is a convolution: images of one channel each of c, and so many kernels.
type convCase struct {
	windowCase
	o int
}

var convCases = []convCase{
	{windowCase{1, 1, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}, [2]int{0, 0}, [2]int{1, 1}}, 1},
	{windowCase{2, 3, [2]int{5, 6}, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}}, 5},
	{windowCase{3, 2, [2]int{7, 5}, [2]int{3, 2}, [2]int{2, 3}, [2]int{1, 0}, [2]int{1, 1}}, 3},
	{windowCase{2, 9, [2]int{9, 8}, [2]int{2, 3}, [2]int{2, 1}, [2]int{2, 4}, [2]int{3, 2}}, 7},
	{windowCase{1, 11, [2]int{3, 2}, [2]int{2, 4}, [2]int{3, 2}, [2]int{4, 5}, [2]int{1, 3}}, 2},
	{windowCase{2, 10, [2]int{4, 5}, [2]int{1, 1}, [2]int{1, 1}, [2]int{0, 0}, [2]int{1, 1}}, 33},
	{windowCase{2, 10, [2]int{4, 5}, [2]int{1, 1}, [2]int{2, 2}, [2]int{0, 0}, [2]int{1, 1}}, 3},
	{windowCase{1, 9, [2]int{4, 4}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 2}, [2]int{1, 1}}, 3},
	{windowCase{2, 3, [2]int{33, 29}, [2]int{7, 7}, [2]int{2, 2}, [2]int{3, 3}, [2]int{1, 1}}, 4},
	{windowCase{3, 20, [2]int{17, 18}, [2]int{3, 3}, [2]int{2, 2}, [2]int{1, 1}, [2]int{1, 1}}, 70}, // several pieces
	// blocks of channels
	{windowCase{1, 130, [2]int{4, 3}, [2]int{3, 3}, [2]int{2, 1}, [2]int{1, 1}, [2]int{1, 1}}, 140},
	// Winograd's from here on
	{windowCase{3, 16, [2]int{1, 1}, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}}, 16},
	{windowCase{2, 17, [2]int{5, 6}, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}}, 19},
	{windowCase{5, 16, [2]int{6, 3}, [2]int{3, 3}, [2]int{1, 1}, [2]int{2, 0}, [2]int{1, 1}}, 33},
	{windowCase{2, 21, [2]int{5, 17}, [2]int{3, 3}, [2]int{1, 1}, [2]int{0, 2}, [2]int{1, 1}}, 40},
	// blocks of channels
	{windowCase{1, 132, [2]int{3, 4}, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}}, 150},
	{windowCase{9, 16, [2]int{19, 18}, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}}, 16}, // several pieces
	{windowCase{0, 2, [2]int{4, 4}, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}}, 2},
	{windowCase{2, 0, [2]int{4, 4}, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}}, 2},
	{windowCase{2, 2, [2]int{4, 4}, [2]int{3, 3}, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}}, 0},
}

// products calls f for each product of an element of the kernels and a pixel: the indices of pixel, element and result.
func (w convCase) products(f func(x, weight, y int)) {
	taps, area, oh, ow := w.window[0]*w.window[1], w.size[0]*w.size[1], w.places(0), w.places(1)
	for place := range oh * ow {
		for tap := range taps {
			pixel, seen := w.pixel([2]int{place / ow, place % ow}, [2]int{tap / w.window[1], tap % w.window[1]})
			if !seen {
				continue
			}
			for n := range w.n {
				for c := range w.c {
					for o := range w.o {
						f((n*w.c+c)*area+pixel, (o*w.c+c)*taps+tap, (n*w.o+o)*oh*ow+place)
					}
				}
			}
		}
	}
}

// convSamples are convolutions, or their gradients by images or kernels.
func convSamples(g *gen, op backend.Op) {
	for _, dt := range g.some(floating) {
		for _, w := range convCases {
			image, kernel, result := []int{w.n, w.c, w.size[0], w.size[1]}, []int{w.o, w.c, w.window[0], w.window[1]},
				[]int{w.n, w.o, w.places(0), w.places(1)}
			ints := [8]int{w.stride[0], w.stride[1], w.padding[0], w.padding[1], w.spread[0], w.spread[1]}
			random := func(shape []int) *operand { return g.random(dt, rowMajor, -1, 1, shape...) }
			s := &sample{ints: ints, loose: 16}
			switch op {
			case backend.OpConv2D:
				x, weight, bias := random(image), random(kernel), random([]int{w.o})
				plain, biased := make([]float64, numel(result)), make([]float64, numel(result))
				w.products(func(i, k, j int) { plain[j] += x.at(i) * weight.at(k) })
				for j := range biased {
					biased[j] = plain[j] + bias.at(j/max(1, result[2]*result[3])%w.o)
				}
				with := &sample{ints: ints, loose: 16, ins: []*operand{x, weight, bias},
					outs: []*operand{output(dt, rowMajor, result...)}, want: [][]float64{biased}}
				g.add(with, "%s %+v with a bias", dt, w)
				s.ins, s.outs, s.want = []*operand{x, weight}, []*operand{output(dt, rowMajor, result...)},
					[][]float64{plain}
			case backend.OpConv2DGrad:
				dy, weight, dx := random(result), random(kernel), make([]float64, numel(image))
				w.products(func(i, k, j int) { dx[i] += dy.at(j) * weight.at(k) })
				s.ins, s.outs, s.want = []*operand{dy, weight}, []*operand{output(dt, rowMajor, image...)},
					[][]float64{dx}
			default:
				x, dy, dw := random(image), random(result), make([]float64, numel(kernel))
				w.products(func(i, k, j int) { dw[k] += dy.at(j) * x.at(i) })
				// sums over all places
				s.ins, s.outs, s.want, s.loose = []*operand{x, dy}, []*operand{output(dt, rowMajor, kernel...)},
					[][]float64{dw}, 64
			}
			g.add(s, "%s %+v", dt, w)
		}
	}
}
