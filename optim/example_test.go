// SPDX-License-Identifier: Apache-2.0

package optim_test

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Minimise (w - 3)² with AdamW, a learning rate that falls to 0, and clipped gradients.
func Example() {
	c := tensor.NewCtx(tensor.CPU())
	w := tensor.FromSlice(c, []float32{0}, 1).SetRequiresGrad(true)
	params := []tensor.Named{{Name: "w", Tensor: w}}
	opt := optim.DefaultAdamW().New(c, []*optim.Group{{Params: params, LR: 0.3}})
	const steps = 100
	schedule, err := optim.NewSchedule("linear", 0, steps, 0.3, nil)
	if err != nil {
		panic(err)
	}

	for step := range int64(steps) {
		c.Scope(func(c *tensor.Ctx) []*tensor.Tensor { // frees what the step makes
			d := tensor.Affine(c, w, 1, -3)
			loss := tensor.Sum(c, tensor.Mul(c, d, d), nil, false)
			tensor.Backward(c, []*tensor.Tensor{loss}, nil, nil)
			return nil
		})
		optim.ClipGradNorm(c, params, 1)
		opt.ScaleLR(schedule.Factor(step))
		opt.Step(c)
		opt.ZeroGrad()
	}
	fmt.Printf("w = %.1f\n", tensor.Item(c, w))
	// Output: w = 3.0
}

// The learning rate rises for 10 steps and then falls like a cosine.
func ExampleNewSchedule() {
	const baseLR = 5e-5
	schedule, err := optim.NewSchedule("cosine", 10, 100, baseLR, nil)
	if err != nil {
		panic(err)
	}
	for _, step := range []int64{0, 5, 10, 55, 100} {
		fmt.Printf("step %3d: %.2e\n", step, baseLR*schedule.Factor(step))
	}
	// Output:
	// step   0: 0.00e+00
	// step   5: 2.50e-05
	// step  10: 5.00e-05
	// step  55: 2.50e-05
	// step 100: 0.00e+00
}
