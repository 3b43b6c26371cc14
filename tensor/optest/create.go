// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/internal/rng"
	"github.com/lockstep-ml/lockstep/tensor"
)

// filled is the oracle of a tensor whose elements are all v.
func filled(v float64, shape ...int) Oracle {
	return func(dt tensor.DType, _ []Array) []Array {
		return []Array{generate(shape, func([]int) float64 { return convert(dt, v) })}
	}
}

// made is a sample of an op without operands.
func made(name string, want Oracle, f func(c *tensor.Ctx, dt tensor.DType) *tensor.Tensor) Sample {
	return Sample{Name: name, Want: want, Apply: func(c *tensor.Ctx, dt tensor.DType,
		_ []*tensor.Tensor) []*tensor.Tensor {
		return []*tensor.Tensor{f(c, dt)}
	}}
}

func creation() []Op {
	negativeSize := func(f func(c *tensor.Ctx)) []Misuse {
		return []Misuse{{Name: "size", Want: "sizes must not be negative", Call: f}}
	}
	full := Op{Name: "Full", DTypes: all, Misuse: negativeSize(func(c *tensor.Ctx) {
		tensor.Full(c, tensor.Float32, 1, 2, -1)
	})}
	full.Misuse = append(full.Misuse, Misuse{Name: "too large", Want: "too many elements", Call: func(c *tensor.Ctx) {
		tensor.Full(c, tensor.Float32, 1, 1<<40, 1<<40)
	}})
	zero := Op{Name: "Zeros", DTypes: all, Misuse: negativeSize(func(c *tensor.Ctx) {
		tensor.Zeros(c, tensor.Float32, -1)
	})}
	ones := Op{Name: "Ones", DTypes: all, Misuse: negativeSize(func(c *tensor.Ctx) {
		tensor.Ones(c, tensor.Float32, -1)
	})}
	like := Op{Name: "ZerosLike", DTypes: all}
	for _, shape := range [][]int{{}, {1}, {3, 5}, {2, 0}} {
		name := fmt.Sprint(shape)
		full.Samples = append(full.Samples, made(name, filled(3, shape...),
			func(c *tensor.Ctx, dt tensor.DType) *tensor.Tensor { return tensor.Full(c, dt, 3, shape...) }))
		zero.Samples = append(zero.Samples, made(name, filled(0, shape...),
			func(c *tensor.Ctx, dt tensor.DType) *tensor.Tensor { return tensor.Zeros(c, dt, shape...) }))
		ones.Samples = append(ones.Samples, made(name, filled(1, shape...),
			func(c *tensor.Ctx, dt tensor.DType) *tensor.Tensor { return tensor.Ones(c, dt, shape...) }))
		like.Samples = append(like.Samples, Sample{Name: name, In: []Input{typed(normal, shape...)},
			Apply: unary(tensor.ZerosLike), Want: filled(0, shape...)})
	}
	arange := Op{Name: "Arange", DTypes: numbers,
		Misuse: negativeSize(func(c *tensor.Ctx) { tensor.Arange(c, tensor.Int64, 0, 1, -1) })}
	for _, n := range []int{0, 1, 7} {
		arange.Samples = append(arange.Samples, made(fmt.Sprint(n), func(dt tensor.DType, _ []Array) []Array {
			return []Array{generate([]int{n}, func(at []int) float64 { return convert(dt, -2+3*float64(at[0])) })}
		}, func(c *tensor.Ctx, dt tensor.DType) *tensor.Tensor { return tensor.Arange(c, dt, -2, 3, n) }))
	}
	return []Op{full, zero, ones, like, arange, {Name: "Scalar", DTypes: all, Samples: []Sample{
		made("", filled(-2.5), func(c *tensor.Ctx, dt tensor.DType) *tensor.Tensor {
			return tensor.Scalar(c, dt, -2.5)
		})}}}
}

const (
	key      = 12345 // of the random streams of Uniform and Normal
	seed     = 7     // of the contexts that the suite makes
	position = 3     // of the first sample of their micro-batches
)

func randomOps() []Op {
	uniform := Op{Name: "Uniform", DTypes: floats,
		Misuse: []Misuse{{Name: "size", Want: "negative", Call: func(c *tensor.Ctx) {
			tensor.Uniform(c, tensor.Float32, key, 0, 1, -1)
		}}}}
	gauss := Op{Name: "Normal", DTypes: floats,
		Misuse: []Misuse{{Name: "size", Want: "negative", Call: func(c *tensor.Ctx) {
			tensor.Normal(c, tensor.Float32, key, 0, 1, -1)
		}}}}
	for _, shape := range [][]int{{}, {5}, {3, 7}, {0}} {
		draw := func(at32 func(k, p, e uint64) float32, at64 func(k, p, e uint64) float64, scale,
			shift float64) Oracle {
			return func(dt tensor.DType, _ []Array) []Array {
				e := uint64(0)
				return []Array{generate(shape, func([]int) float64 {
					defer func() { e++ }()
					if dt == tensor.Float64 {
						return shift + scale*at64(key, 0, e)
					}
					return shift + scale*float64(at32(key, 0, e))
				})}
			}
		}
		uniform.Samples = append(uniform.Samples,
			made(fmt.Sprint(shape), draw(rng.Float32At, rng.Float64At, 4, -1),
				func(c *tensor.Ctx, dt tensor.DType) *tensor.Tensor {
					return tensor.Uniform(c, dt, key, -1, 3, shape...)
				}))
		gauss.Samples = append(gauss.Samples,
			made(fmt.Sprint(shape), draw(rng.Normal32At, rng.Normal64At, 0.5, 2),
				func(c *tensor.Ctx, dt tensor.DType) *tensor.Tensor {
					return tensor.Normal(c, dt, key, 2, 0.5, shape...)
				}))
	}
	for _, op := range []*Op{&uniform, &gauss} {
		f := tensor.Uniform
		if op == &gauss {
			f = tensor.Normal
		}
		large := made("large", nil, func(c *tensor.Ctx, dt tensor.DType) *tensor.Tensor {
			return f(c, dt, key, 1, 2, 35003)
		})
		large.Large = true
		op.Samples = append(op.Samples, large)
	}
	return []Op{uniform, gauss, dropoutRow()}
}

func dropoutRow() Op {
	op := Op{Name: "Dropout", DTypes: floats, Misuse: []Misuse{
		{Name: "p", Want: "float32[2]): p = 1: want a probability in [0, 1)", Call: func(c *tensor.Ctx) {
			tensor.Dropout(c, zeros(c, 2), 1)
		}},
		{Name: "p", Want: "p = NaN", Call: func(c *tensor.Ctx) { tensor.Dropout(c, zeros(c, 2), math.NaN()) }},
	}}
	for _, p := range []float64{0, 0.4} {
		f := unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Dropout(c, x, p) })
		for _, shape := range [][]int{{}, {5}, {3, 7}, {2, 3, 5}, {0}, {3, 0}} {
			op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(shape, p), In: []Input{diff(normal, shape...)},
				Apply: f, Want: dropoutOracle(p)})
		}
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint("large ", p), Large: true,
			In: []Input{diff(normal, 7, 5003)}, Apply: f})
	}
	return op
}

// dropoutOracle draws as the design says: by key, position of the sample, element in it.
func dropoutOracle(p float64) Oracle {
	return func(_ tensor.DType, in []Array) []Array {
		x, k := in[0], rng.Derive(rng.Key(seed, "", 0), "dropout", 0)
		per := max(1, len(x.V))
		if len(x.Shape) > 0 && x.Shape[0] > 0 {
			per = max(1, len(x.V)/x.Shape[0])
		}
		i := 0
		return []Array{generate(x.Shape, func([]int) float64 {
			defer func() { i++ }()
			if float64(rng.Float32At(k, position+uint64(i/per), uint64(i%per))) < p {
				return 0
			}
			return x.V[i] / (1 - p)
		})}
	}
}
