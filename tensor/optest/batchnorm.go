// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

func batchNormOps() []Op {
	const eps = 1e-3
	own := Op{Name: "BatchNorm", DTypes: floats, Slack: 4,
		Misuse: batchNormMisuse(func(c *tensor.Ctx, x, weight, bias *tensor.Tensor) {
			tensor.BatchNorm(c, x, weight, bias, eps)
		})}
	given := Op{Name: "BatchNormWith", DTypes: floats, Slack: 4,
		Misuse: batchNormMisuse(func(c *tensor.Ctx, x, weight, bias *tensor.Tensor) {
			tensor.BatchNormWith(c, x, zeros(c, 3), zeros(c, 3), weight, bias, eps)
		})}
	given.Misuse = append(given.Misuse,
		Misuse{Name: "statistics", Want: "float32[2 3], float32[3], float32[2]): want statistics of float32 and " +
			"shape [3]", Call: func(c *tensor.Ctx) {
			tensor.BatchNormWith(c, zeros(c, 2, 3), zeros(c, 3), zeros(c, 2), nil, nil, eps)
		}},
		Misuse{Name: "statistics' dtype", Want: "want statistics of float32", Call: func(c *tensor.Ctx) {
			tensor.BatchNormWith(c, zeros(c, 2, 3), zeros(c, 3), tensor.Zeros(c, tensor.Float64, 3), nil, nil, eps)
		}})
	withOwn := ternary(func(c *tensor.Ctx, x, weight, bias *tensor.Tensor) *tensor.Tensor {
		y, _, _ := tensor.BatchNorm(c, x, weight, bias, eps)
		return y
	})
	withGiven := func(c *tensor.Ctx, dt tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
		mean, variance := in[3], in[4]
		if dt.IsHalf() {
			mean, variance = tensor.Cast(c, mean, tensor.Float32), tensor.Cast(c, variance, tensor.Float32)
		}
		return []*tensor.Tensor{tensor.BatchNormWith(c, in[0], mean, variance, in[1], in[2], eps)}
	}
	for _, shape := range [][]int{{4, 3}, {3, 2, 5}, {2, 3, 4, 5}, {1, 2, 3, 2}, {1, 1}, {0, 3, 2}, {2, 0, 2},
		{2, 3, 0}, {40, 2, 3, 3}, {67, 5, 31, 33}} {
		x, ch, large := diff(normal, shape...), shape[1], shape[0] == 67
		for _, affine := range []bool{true, false} {
			name, weight, bias := fmt.Sprint(shape), diff(positive, ch), diff(normal, ch)
			if !affine {
				name, weight, bias = name+" plain", none(), none()
			}
			a := Sample{Name: name, In: []Input{x, weight, bias}, Apply: withOwn, Want: batchNormOracle(eps),
				Large: large}
			b := Sample{Name: name, In: []Input{x, weight, bias, typed(normal, ch), typed(positive, ch)},
				Apply: withGiven, Want: batchNormOracle(eps), Large: large}
			own.Samples, given.Samples = append(own.Samples, a), append(given.Samples, b)
		}
	}
	stats := Sample{Name: "statistics", In: []Input{typed(normal, 5, 3, 4)},
		Apply: func(c *tensor.Ctx, _ tensor.DType, in []*tensor.Tensor) []*tensor.Tensor {
			_, mean, variance := tensor.BatchNorm(c, in[0], nil, nil, eps)
			return []*tensor.Tensor{mean, variance}
		}, Want: func(_ tensor.DType, in []Array) []Array {
			mean, variance := channelMoments(in[0])
			return []Array{{Shape: []int{3}, V: mean}, {Shape: []int{3}, V: variance}}
		}}
	own.Samples = append(own.Samples, stats)
	return []Op{own, given}
}

func batchNormMisuse(call func(c *tensor.Ctx, x, weight, bias *tensor.Tensor)) []Misuse {
	return []Misuse{
		{Name: "dims", Want: "float32[3]): want at least two dims, [N C ...]", Call: func(c *tensor.Ctx) {
			call(c, zeros(c, 3), nil, nil)
		}},
		{Name: "channels", Want: "float32[2 3], float32[2]): want a parameter of shape [3]", Call: func(c *tensor.Ctx) {
			call(c, zeros(c, 2, 3), zeros(c, 2), zeros(c, 2))
		}},
		{Name: "bias alone", Want: "want weight and bias, or neither", Call: func(c *tensor.Ctx) {
			call(c, zeros(c, 2, 3), nil, zeros(c, 3))
		}},
		{Name: "dtypes", Want: "one dtype", Call: func(c *tensor.Ctx) {
			call(c, zeros(c, 2, 3), tensor.Zeros(c, tensor.Float64, 3), zeros(c, 3))
		}},
	}
}

// channelMoments are the mean and the biased variance of each channel of x [N,C,...].
func channelMoments(x Array) (mean, variance []float64) {
	channel := channelOf(x.Shape)
	mean, variance = make([]float64, x.Shape[1]), make([]float64, x.Shape[1])
	count := float64(len(x.V) / max(x.Shape[1], 1))
	for i, v := range x.V {
		mean[channel(i)] += v / count
	}
	for i, v := range x.V {
		variance[channel(i)] += (v - mean[channel(i)]) * (v - mean[channel(i)]) / count
	}
	return mean, variance
}

// channelOf tells the channel of an element of a shape [N,C,...].
func channelOf(shape []int) func(i int) int {
	return func(i int) int { return i / numel(shape[2:]) % shape[1] }
}

// batchNormOracle normalises x by the statistics among the operands, else by its own.
func batchNormOracle(eps float64) Oracle {
	return func(_ tensor.DType, in []Array) []Array {
		x, weight, bias := in[0], in[1], in[2]
		mean, variance := channelMoments(x)
		if len(in) > 3 {
			mean, variance = in[3].V, in[4].V
		}
		channel := channelOf(x.Shape)
		y := Array{Shape: x.Shape, V: make([]float64, len(x.V))}
		for i, v := range x.V {
			ch := channel(i)
			y.V[i] = (v - mean[ch]) / math.Sqrt(variance[ch]+eps)
			if weight.V != nil {
				y.V[i] = y.V[i]*weight.V[ch] + bias.V[ch]
			}
		}
		return []Array{y}
	}
}
