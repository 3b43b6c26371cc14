// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// exampleCtx is a context for modules on the CPU, outside of training.
func exampleCtx() *nn.Ctx { return nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, false) }

func ExampleSequential() {
	in := nn.NewInit(tensor.CPU(), 1)
	model := nn.NewSequential(
		nn.NewLinear(in.Sub("0"), nn.LinearConfig{In: 4, Out: 16}),
		&nn.ReLU{},
		nn.NewLinear(in.Sub("2"), nn.LinearConfig{In: 16, Out: 3}),
	)
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()), nn.Walk(model), false)
	y := model.Forward(c, tensor.Ones(c.Ctx, tensor.Float32, 5, 4))
	fmt.Println(y.Shape())
	for _, p := range nn.NamedParameters(model) {
		fmt.Println(p.Name, p.Shape())
	}
	// Output:
	// [5 3]
	// 0.weight [16 4]
	// 0.bias [16]
	// 2.weight [3 16]
	// 2.bias [3]
}

func ExampleGroupNorm() {
	c := exampleCtx()
	norm := nn.NewGroupNorm(nn.NewInit(tensor.CPU(), 1), nn.GroupNormConfig{Groups: 1, Channels: 2})
	y := norm.Forward(c, tensor.FromSlice(c.Ctx, []float32{1, 3, 5, 7}, 1, 2, 2))
	fmt.Printf("%.3f\n", tensor.ToSlice[float32](c.Ctx, y))
	// Output: [-1.342 -0.447 0.447 1.342]
}

// PyTorch's mean divides by the weights of the labels, here 1 + 3.
func ExampleCrossEntropySumWith() {
	c := exampleCtx()
	logits := tensor.FromSlice(c.Ctx, []float32{2, 0, 0, 1, 9, 9}, 3, 2)
	labels := tensor.FromSlice(c.Ctx, []int64{0, 1, tensor.IgnoreIndex}, 3)
	weights := tensor.FromSlice(c.Ctx, []float32{1, 3}, 2)
	sum := nn.CrossEntropySumWith(c, logits, labels, nn.CrossEntropyOptions{ClassWeights: weights})
	total := nn.LabelWeightSum(c, labels, weights)
	fmt.Printf("%.4f of weight %g: %.4f\n", tensor.Item(c.Ctx, sum), tensor.Item(c.Ctx, total),
		tensor.Item(c.Ctx, sum)/tensor.Item(c.Ctx, total))
	// Output: 1.0667 of weight 4: 0.2667
}

func ExampleBCEWithLogitsSum() {
	c := exampleCtx()
	logits := tensor.FromSlice(c.Ctx, []float32{0, 2, -10}, 3)
	targets := tensor.FromSlice(c.Ctx, []float32{1, 1, 1}, 3)
	plain := nn.BCEWithLogitsSum(c, logits, targets, nn.BCEOptions{})
	weighted := nn.BCEWithLogitsSum(c, logits, targets,
		nn.BCEOptions{PosWeight: tensor.Scalar(c.Ctx, tensor.Float32, 2)})
	fmt.Printf("%.4f %.4f\n", tensor.Item(c.Ctx, plain), tensor.Item(c.Ctx, weighted))
	// Output: 10.8201 21.6402
}

func ExampleL1Sum() {
	c := exampleCtx()
	x, target := tensor.FromSlice(c.Ctx, []float32{1, 2, 5}, 3), tensor.FromSlice(c.Ctx, []float32{1, 3, 1}, 3)
	fmt.Println(tensor.Item(c.Ctx, nn.L1Sum(c, x, target)))
	// Output: 5
}

func ExampleHuberSum() {
	c := exampleCtx()
	x, target := tensor.FromSlice(c.Ctx, []float32{1, 2, 5}, 3), tensor.FromSlice(c.Ctx, []float32{1, 3, 1}, 3)
	fmt.Println(tensor.Item(c.Ctx, nn.HuberSum(c, x, target, 2))) // 0 + ½·1² + 2·(4 − 1)
	// Output: 6.5
}

func ExampleSmoothL1Sum() {
	c := exampleCtx()
	x, target := tensor.FromSlice(c.Ctx, []float32{1, 2, 5}, 3), tensor.FromSlice(c.Ctx, []float32{1, 3, 1}, 3)
	fmt.Println(tensor.Item(c.Ctx, nn.SmoothL1Sum(c, x, target, 2))) // 0 + ½·1²/2 + (4 − 1)
	// Output: 3.25
}

func ExampleKLDivSum() {
	c := exampleCtx()
	q := tensor.Log(c.Ctx, tensor.FromSlice(c.Ctx, []float64{0.25, 0.75}, 2))
	p := tensor.FromSlice(c.Ctx, []float64{0.5, 0.5}, 2)
	fmt.Printf("%.4f, by hand %.4f\n", tensor.Item(c.Ctx, nn.KLDivSum(c, q, p, false)),
		0.5*math.Log(2)+0.5*math.Log(2.0/3))
	// Output: 0.1438, by hand 0.1438
}
