// SPDX-License-Identifier: Apache-2.0

package optest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/lockstep-ml/lockstep/tensor"
)

func bceOps() []Op {
	op := Op{Name: "BCEWithLogits", DTypes: floats, Slack: 2, Misuse: []Misuse{
		{Name: "shapes", Want: "float32[2 3], float32[3]): want logits and targets of one shape",
			Call: func(c *tensor.Ctx) {
				tensor.BCEWithLogits(c, zeros(c, 2, 3), zeros(c, 3), nil)
			}},
		{Name: "weight", Want: "float32[3], float32[3], float32[2 3]): want logits and targets",
			Call: func(c *tensor.Ctx) {
				tensor.BCEWithLogits(c, zeros(c, 3), zeros(c, 3), zeros(c, 2, 3))
			}},
		{Name: "dtypes", Want: "one dtype",
			Call: func(c *tensor.Ctx) {
				tensor.BCEWithLogits(c, zeros(c, 3), tensor.Zeros(c, tensor.Float64, 3), nil)
			}},
		{Name: "weight's gradient", Want: "gets no gradient: pass it through Detach", Call: func(c *tensor.Ctx) {
			tensor.BCEWithLogits(c, zeros(c, 3), zeros(c, 3), zeros(c, 3).SetRequiresGrad(true))
		}},
	}}
	apply := ternary(tensor.BCEWithLogits)
	want := func(_ tensor.DType, in []Array) []Array {
		return []Array{generate(in[0].Shape, func(at []int) float64 {
			x, y, p := in[0].at(at...), in[1].at(at...), 1.0
			if in[2].V != nil {
				p = in[2].at(at...)
			}
			common := math.Log1p(math.Exp(-math.Abs(x)))
			return p*y*(common+max(-x, 0)) + (1-y)*(common+max(x, 0))
		})}
	}
	chance := each(func(r *rand.Rand) float64 { return r.Float64() })
	for _, shape := range [][]int{{}, {1}, {7}, {3, 5}, {0, 3}} {
		x, y := diff(normal, shape...), diff(chance, shape...)
		op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(shape), In: []Input{x, y, none()}, Apply: apply,
			Want: want})
		if len(shape) > 0 {
			op.Samples = append(op.Samples, Sample{Name: fmt.Sprint(shape, " weighted"),
				In: []Input{x, y, typed(positive, shape[len(shape)-1])}, Apply: apply, Want: want})
		}
	}
	op.Samples = append(op.Samples,
		Sample{Name: "far", In: []Input{diff(given(10, -10, 50, -50, 1000, -1000, 10, -10), 8),
			diff(given(1, 0, 1, 0, 1, 0, 0, 1), 8), none()}, Apply: apply, Want: want, Rough: true},
		Sample{Name: "large", Large: true,
			In: []Input{diff(normal, 7, 5003), diff(chance, 7, 5003), typed(positive, 5003)}, Apply: apply})
	return []Op{op}
}
