// SPDX-License-Identifier: Apache-2.0

package mlp_test

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// A classifier of 4 features into 3 classes, with one hidden layer. Package trainer trains it.
func Example() {
	model, err := mlp.New(nn.NewInit(tensor.CPU(), 42), mlp.Config{Sizes: []int{4, 16, 3}, Loss: "cross_entropy"})
	if err != nil {
		panic(err)
	}
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).NoGrad(), nn.Walk(model), false)
	batch := &data.Batch{Size: 2, Tensors: map[string]*tensor.Tensor{
		data.Inputs: tensor.FromSlice(c.Ctx, []float32{5.1, 3.5, 1.4, 0.2, 6.3, 3.3, 6.0, 2.5}, 2, 4),
	}}
	out := model.Forward(c, batch)
	fmt.Println(nn.NumParameters(model), "parameters, logits", out.Logits.Shape())
	// Output: 131 parameters, logits [2 3]
}
