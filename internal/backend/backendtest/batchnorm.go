// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"math"

	"github.com/lockstep-ml/lockstep/internal/backend"
	"github.com/lockstep-ml/lockstep/internal/dtype"
)

func init() {
	makers[backend.OpBatchStats] = batchStatsSamples
	makers[backend.OpBatchNorm] = batchNormSamples
	makers[backend.OpBatchNormGrad] = batchNormGradSamples
}

// batchShapes have planes of one element, short ones, and such as are longer than a line of the CPU's kernels.
var batchShapes = [][]int{{0, 3, 4}, {2, 3, 0}, {2, 0, 5}, {1, 1, 1}, {5, 3, 1}, {700, 2, 3}, {3, 4, 25}, {130, 3, 16},
	{2, 3, 1500}}

// batchOf is x [N,C,L] with the statistics of its channels.
func batchOf(g *gen, dt dtype.DType, shape []int) (x *operand, mean, variance []float64) {
	x = g.random(dt, rowMajor, -1, 3, shape...)
	mean, variance = make([]float64, shape[1]), make([]float64, shape[1])
	count := float64(shape[0] * shape[2])
	channel := func(i int) int { return i / shape[2] % shape[1] }
	for i := range x.numel() {
		mean[channel(i)] += x.at(i) / count
	}
	for i := range x.numel() {
		d := x.at(i) - mean[channel(i)]
		variance[channel(i)] += d * d / count
	}
	return x, mean, variance
}

func batchStatsSamples(g *gen) {
	for _, dt := range g.some(floating) {
		for _, shape := range batchShapes {
			x, mean, variance := batchOf(g, dt, shape)
			stat := statistic(dt)
			g.add(&sample{ins: []*operand{x},
				outs: []*operand{output(stat, rowMajor, shape[1]), output(stat, rowMajor, shape[1])},
				want: [][]float64{mean, variance}, loose: 4},
				"%s %v", dt, shape)
		}
	}
}

// paramTypes are the dtypes that weights may have beside x of dt, Invalid for none.
func paramTypes(dt dtype.DType) []dtype.DType {
	all := []dtype.DType{dtype.Invalid, dt}
	if dt.IsHalf() {
		all = append(all, dtype.Float32)
	}
	return all
}

func batchNormSamples(g *gen) {
	for _, dt := range g.some(floating) {
		for _, shape := range batchShapes {
			for _, params := range paramTypes(dt) {
				affine := params != dtype.Invalid
				x, means, variances := batchOf(g, dt, shape)
				mean, variance := numbers(statistic(dt), shape[1:2], means),
					numbers(statistic(dt), shape[1:2], variances)
				s := &sample{ins: []*operand{x, mean, variance}, outs: []*operand{output(dt, rowMajor, shape...)},
					loose: 8}
				if affine {
					s.ins = append(s.ins, g.random(params, rowMajor, -2, 2, shape[1]),
						g.random(params, rowMajor, -2, 2, shape[1]))
				}
				y := make([]float64, x.numel())
				for i := range y {
					ch := i / shape[2] % shape[1]
					y[i] = (x.at(i) - mean.at(ch)) / math.Sqrt(variance.at(ch)+normEps)
					if affine {
						y[i] = y[i]*s.ins[3].at(ch) + s.ins[4].at(ch)
					}
				}
				s.want, s.floats[0] = [][]float64{y}, normEps
				g.add(s, "%s %v params %v", dt, shape, params)
			}
		}
	}
}

func batchNormGradSamples(g *gen) {
	for _, dt := range g.some(floating) {
		for _, shape := range batchShapes {
			for _, params := range paramTypes(dt) {
				for _, constant := range []bool{false, true} {
					g.add(batchNormGradSample(g, dt, shape, params, constant), "%s %v params %v constant %v", dt,
						shape, params, constant)
				}
			}
		}
	}
}

func batchNormGradSample(g *gen, dt dtype.DType, shape []int, params dtype.DType, constant bool) *sample {
	x, means, variances := batchOf(g, dt, shape)
	stat, channels := statistic(dt), shape[1]
	mean, variance, dy := numbers(stat, shape[1:2], means), numbers(stat, shape[1:2], variances),
		g.random(dt, rowMajor, -1, 1, shape...)
	affine, grads := params != dtype.Invalid, params
	if !affine {
		grads = dt
	}
	s := &sample{ins: []*operand{x, mean, variance, dy}, loose: 16,
		outs: []*operand{output(dt, rowMajor, shape...), output(grads, rowMajor, channels),
			output(grads, rowMajor, channels)}}
	s.floats[0] = normEps
	weight := func(int) float64 { return 1 }
	if affine {
		s.ins = append(s.ins, g.random(params, rowMajor, -2, 2, channels))
		weight = s.ins[4].at
	}
	dx, dw, db := make([]float64, x.numel()), make([]float64, channels), make([]float64, channels)
	channel := func(i int) int { return i / shape[2] % channels }
	rstd := func(ch int) float64 { return 1 / math.Sqrt(variance.at(ch)+normEps) }
	normal := func(i int) float64 { return (x.at(i) - mean.at(channel(i))) * rstd(channel(i)) }
	for i := range dx {
		dw[channel(i)] += dy.at(i) * normal(i)
		db[channel(i)] += dy.at(i)
	}
	for i := range dx {
		ch, count := channel(i), float64(shape[0]*shape[2])
		dx[i] = dy.at(i)
		if constant {
			s.ints[0] = 1
		} else {
			dx[i] -= db[ch]/count + normal(i)*dw[ch]/count
		}
		dx[i] *= rstd(ch) * weight(ch)
	}
	s.want = [][]float64{dx, dw, db}
	return s
}
