// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/tensor"
)

func padOps() []Op {
	const misfit = "do not go with its size in this mode"
	op := Op{Name: "Pad", DTypes: all, Misuse: []Misuse{
		{Name: "odd", Want: "float32[2 3]): pads [1 1 1]: want a pair for each of at most 2 dims",
			Call: func(c *tensor.Ctx) {
				tensor.Pad(c, zeros(c, 2, 3), slices.Repeat([]int{1}, 3), tensor.PadConstant, 0)
			}},
		{Name: "dims", Want: "at most 1 dims",
			Call: func(c *tensor.Ctx) { tensor.Pad(c, zeros(c, 2), []int{1, 1, 1, 1}, tensor.PadConstant, 0) }},
		{Name: "mode", Want: "mode 9", Call: func(c *tensor.Ctx) { tensor.Pad(c, zeros(c, 2), []int{1, 1}, 9, 0) }},
		{Name: "value", Want: "a value for PadConstant alone",
			Call: func(c *tensor.Ctx) { tensor.Pad(c, zeros(c, 2), []int{1, 1}, tensor.PadReflect, 1) }},
		{Name: "reflect", Want: "2 before and 0 behind dim 0 " + misfit,
			Call: func(c *tensor.Ctx) { tensor.Pad(c, zeros(c, 2), []int{2, 0}, tensor.PadReflect, 0) }},
		{Name: "circular", Want: misfit, Call: func(c *tensor.Ctx) {
			tensor.Pad(c, zeros(c, 2), []int{0, 3}, tensor.PadCircular, 0)
		}},
		{Name: "replicate", Want: misfit,
			Call: func(c *tensor.Ctx) { tensor.Pad(c, zeros(c, 0), []int{0, 1}, tensor.PadReplicate, 0) }},
		{Name: "negative", Want: misfit, Call: func(c *tensor.Ctx) {
			tensor.Pad(c, zeros(c, 3), []int{0, -1}, tensor.PadCircular, 0)
		}},
		{Name: "crop", Want: misfit, Call: func(c *tensor.Ctx) {
			tensor.Pad(c, zeros(c, 3), []int{-2, -2}, tensor.PadConstant, 0)
		}},
	}}
	for _, s := range []struct {
		shape, pads []int
		mode        tensor.PadMode
	}{
		{[]int{5}, []int{1, 2}, tensor.PadConstant}, {[]int{2, 3}, []int{0, 1, 2, 0}, tensor.PadConstant},
		{[]int{2, 3, 4}, []int{-1, 2, 1, -2}, tensor.PadConstant},
		{[]int{3}, []int{-3, 0}, tensor.PadConstant}, {[]int{3}, []int{-3, 2}, tensor.PadConstant},
		{[]int{}, nil, tensor.PadConstant}, {[]int{2, 0}, []int{1, 1}, tensor.PadConstant},
		{[]int{1, 3}, []int{}, tensor.PadConstant},
		{[]int{4}, []int{3, 2}, tensor.PadReflect}, {[]int{2, 3, 4}, []int{1, 0, 2, 1}, tensor.PadReflect},
		{[]int{1, 3}, nil, tensor.PadReflect},
		{[]int{4}, []int{3, 5}, tensor.PadReplicate}, {[]int{2, 1, 3}, []int{1, 0, 2, 1}, tensor.PadReplicate},
		{[]int{4}, []int{4, 1}, tensor.PadCircular}, {[]int{2, 3}, []int{1, 0, 2, 1}, tensor.PadCircular},
		{[]int{7, 31, 153}, []int{1, 2, 3, 4}, tensor.PadConstant},
		{[]int{7, 31, 153}, []int{1, 2, 3, 4}, tensor.PadReflect},
	} {
		value := 0.0
		if s.mode == tensor.PadConstant {
			value = 1
		}
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(s), In: []Input{diff(normal, s.shape...)},
			Want: padOracle(s.pads, s.mode, value), Large: numel(s.shape) > 1000,
			Apply: unary(func(c *tensor.Ctx, x *tensor.Tensor) *tensor.Tensor {
				return tensor.Pad(c, x, s.pads, s.mode, value)
			})})
	}
	return []Op{op}
}

// padOracle finds for each element where it comes from, one step at a time.
func padOracle(pads []int, mode tensor.PadMode, value float64) Oracle {
	return func(_ tensor.DType, in []Array) []Array {
		x := in[0]
		shape, before := slices.Clone(x.Shape), make([]int, len(x.Shape))
		for i := 0; i < len(pads); i += 2 {
			d := len(shape) - 1 - i/2
			before[d] = pads[i]
			shape[d] += pads[i] + pads[i+1]
		}
		return []Array{generate(shape, func(at []int) float64 {
			from := slices.Clone(at)
			for d, n := range x.Shape {
				from[d] -= before[d]
				for from[d] < 0 || from[d] >= n {
					switch mode {
					case tensor.PadConstant:
						return value
					case tensor.PadReflect:
						if from[d] < 0 {
							from[d] = -from[d]
						} else {
							from[d] = 2*(n-1) - from[d]
						}
					case tensor.PadReplicate:
						from[d] = min(max(from[d], 0), n-1)
					case tensor.PadCircular:
						from[d] = (from[d] + n) % n
					}
				}
			}
			return x.at(from...)
		})}
	}
}
