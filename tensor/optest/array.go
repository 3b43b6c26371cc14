// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Array is a tensor on the host: row-major values, of whatever dtype, as float64.
type Array struct {
	Shape []int
	V     []float64
}

// Oracle computes an op's outputs in float64, one element at a time. dt is the dtype
// under test, for ops that have no typed input.
type Oracle func(dt tensor.DType, in []Array) []Array

func numel(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// generate makes an array of f's values at each index.
func generate(shape []int, f func(at []int) float64) Array {
	a := Array{Shape: slices.Clone(shape), V: make([]float64, numel(shape))}
	at := make([]int, len(shape))
	for i := range a.V {
		a.V[i] = f(at)
		for d := len(at) - 1; d >= 0; d-- {
			if at[d]++; at[d] < shape[d] {
				break
			}
			at[d] = 0
		}
	}
	return a
}

// at is the element at an index of as many dims or more, broadcast.
func (a Array) at(at ...int) float64 {
	at = at[len(at)-len(a.Shape):]
	i := 0
	for d, s := range a.Shape {
		i = i*s + min(at[d], s-1)
	}
	return a.V[i]
}

// broadcastShape is the common shape of arrays that broadcast.
func broadcastShape(in []Array) []int {
	var shape []int
	for _, a := range in {
		for len(shape) < len(a.Shape) {
			shape = slices.Insert(shape, 0, 1)
		}
		for d, s := range a.Shape {
			if s != 1 {
				shape[len(shape)-len(a.Shape)+d] = s
			}
		}
	}
	return shape
}

// pointwise is the oracle of an elementwise op with broadcasting.
func pointwise(f func(x ...float64) float64) Oracle {
	return func(_ tensor.DType, in []Array) []Array {
		args := make([]float64, len(in))
		return []Array{generate(broadcastShape(in), func(at []int) float64 {
			for i, a := range in {
				args[i] = a.at(at...)
			}
			return f(args...)
		})}
	}
}

// indexed is the oracle of an op that moves elements of its first input: from maps an
// index of the result to one of the input.
func indexed(shape []int, from func(at []int) []int) Oracle {
	return func(_ tensor.DType, in []Array) []Array {
		return []Array{generate(shape, func(at []int) float64 { return in[0].at(from(at)...) })}
	}
}

// same is the oracle of an op that keeps the elements and their order.
func same(shape ...int) Oracle {
	return func(_ tensor.DType, in []Array) []Array { return []Array{{Shape: shape, V: in[0].V}} }
}

// reduced is the oracle of a reduction: f sees the elements over dims, in order.
func reduced(dims []int, keep bool, f func(v []float64) float64) Oracle {
	return func(_ tensor.DType, in []Array) []Array {
		x := in[0]
		kept := slices.Clone(x.Shape)
		for _, d := range dims {
			kept[d] = 1
		}
		groups := make([][]float64, numel(kept))
		i := 0
		generate(x.Shape, func(at []int) float64 {
			k := 0
			for d, s := range kept {
				k = k*s + min(at[d], s-1)
			}
			groups[k] = append(groups[k], x.V[i])
			i++
			return 0
		})
		out := Array{Shape: kept, V: make([]float64, len(groups))}
		for k, v := range groups {
			out.V[k] = f(v)
		}
		if !keep {
			out.Shape = nil
			for d, s := range x.Shape {
				if !slices.Contains(dims, d) {
					out.Shape = append(out.Shape, s)
				}
			}
		}
		return []Array{out}
	}
}

// collapse makes the values equal along the first dim that is larger than 1, so that a
// broadcast view can show them; d is −1 if there is none.
func (a Array) collapse() (same Array, d int) {
	d = slices.IndexFunc(a.Shape, func(s int) bool { return s > 1 })
	if d < 0 || len(a.V) == 0 {
		return a, -1
	}
	return generate(a.Shape, func(at []int) float64 {
		at = slices.Clone(at)
		at[d] = 0
		return a.at(at...)
	}), d
}
