// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// exampleNet is a network of two layers. The tags name the parameters: up.weight, up.bias, down.weight, down.bias.
type exampleNet struct {
	Up   *nn.Linear `nn:"up"`
	Down *nn.Linear `nn:"down"`
}

func newExampleNet(in *nn.Init) *exampleNet {
	return &exampleNet{
		Up:   nn.NewLinear(in.Sub("up"), nn.LinearConfig{In: 4, Out: 8}),
		Down: nn.NewLinear(in.Sub("down"), nn.LinearConfig{In: 8, Out: 2}),
	}
}

func (m *exampleNet) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return m.Down.Forward(c, tensor.GELU(c.Ctx, m.Up.Forward(c, x)))
	}, x)
}

// A module is a struct of parameters and other modules with a Forward method.
func Example() {
	model := newExampleNet(nn.NewInit(tensor.CPU(), 42))
	for _, p := range nn.NamedParameters(model) {
		fmt.Println(p.Name, p.Shape())
	}

	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()), nn.Walk(model), false)
	x := tensor.Ones(c.Ctx, tensor.Float32, 3, 4)
	labels := tensor.FromSlice(c.Ctx, []int64{0, 1, 1}, 3)
	logits := model.Forward(c, x)
	loss := nn.CrossEntropySum(c, logits, labels) // the sum over three labels
	tensor.Backward(c.Ctx, []*tensor.Tensor{loss}, nil, nil)
	fmt.Println(logits.Shape(), model.Up.Weight.Grad().Shape())
	// Output:
	// up.weight [8 4]
	// up.bias [8]
	// down.weight [2 8]
	// down.bias [2]
	// [3 2] [8 4]
}
