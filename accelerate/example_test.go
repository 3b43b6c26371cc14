// SPDX-License-Identifier: Apache-2.0

package accelerate_test

import (
	"context"
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// examplePoint is one sample of y = 2x + 3.
type examplePoint struct{ Inputs, Labels [1]float32 }

var examplePoints = data.NewSource(data.Slice[examplePoint]{
	{Inputs: [1]float32{-1}, Labels: [1]float32{1}},
	{Inputs: [1]float32{0}, Labels: [1]float32{3}},
	{Inputs: [1]float32{1}, Labels: [1]float32{5}},
	{Inputs: [1]float32{2}, Labels: [1]float32{7}},
}, data.Stack[examplePoint])

// A training loop without a trainer. The same loop runs on one rank, on goroutines of one process (as here) and on the
// processes that a launcher started.
func Example() {
	a := args.Default("out/line")
	a.PerDeviceTrainBatchSize, a.NumReplicas = 2, 2 // two ranks with 2 of the 4 samples each
	if err := accelerate.Run(context.Background(), a, exampleLoop); err != nil {
		panic(err)
	}
	// Output: 2 ranks: y = 2.0x + 3.0
}

// exampleLoop is the loop of one rank.
func exampleLoop(acc *accelerate.Accelerator) error {
	const steps = 100
	ctx := context.Background()
	model, err := mlp.New(nn.NewInit(acc.Device(), 42), mlp.Config{Sizes: []int{1, 1}}) // y = ax + b
	if err != nil {
		return err
	}
	newOptimizer := func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
		return optim.SGD{Momentum: 0.5}.New(c, []*optim.Group{{LR: 0.1, Params: params}}), nil
	}
	if err := acc.Prepare(ctx, model, newOptimizer); err != nil {
		return err
	}
	windows, err := acc.Windows(ctx, examplePoints, samplers.NewRandom(int64(examplePoints.Len()), 42), steps)
	if err != nil {
		return err
	}
	for window, err := range windows.All() { // each is this rank's part of one optimizer step
		if err != nil {
			return err
		}
		_, err := acc.Accumulate(ctx, window.Batches, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
			return model.Forward(c, b).Loss
		})
		if err != nil {
			return err
		}
		if err := acc.Step(ctx); err != nil { // with the gradients of all ranks
			return err
		}
	}
	_, err = acc.Print(os.Stdout, fmt.Sprintf("%d ranks: y = %.1fx + %.1f", acc.WorldSize(), // on rank 0 only
		tensor.Item(acc.Ctx(), model.Layers[0].Weight.Tensor), tensor.Item(acc.Ctx(), model.Layers[0].Bias.Tensor)))
	return err
}
