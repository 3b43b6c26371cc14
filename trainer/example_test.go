// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// exampleSample is one sample of y = 2x + 3. The fields become the tensors inputs [B,1] and labels [B,1] of a batch.
type exampleSample struct{ Inputs, Labels [1]float32 }

// Train a line through 64 points and evaluate it.
func Example() {
	var samples data.Slice[exampleSample]
	for i := range 64 {
		x := float32(i)/16 - 2
		samples = append(samples, exampleSample{Inputs: [1]float32{x}, Labels: [1]float32{2*x + 3}})
	}
	points := data.NewSource(samples, data.Stack[exampleSample])
	model, err := mlp.New(nn.NewInit(tensor.CPU(), 42), mlp.Config{Sizes: []int{1, 1}})
	if err != nil {
		panic(err)
	}

	dir, err := os.MkdirTemp("", "line")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	a := args.Default(dir) // HuggingFace's defaults; dir is the run's output folder
	a.LearningRate, a.NumTrainEpochs, a.SaveStrategy = 0.1, 20, args.StrategyNo
	t := trainer.New(model, a, trainer.WithTrainData(points), trainer.WithEvalData(points), trainer.WithDisplay(nil))
	res, err := t.Train()
	if err != nil {
		panic(err) // the arguments, the data or the run; New itself does not fail
	}
	metrics, err := t.Evaluate()
	if err != nil {
		panic(err)
	}
	fmt.Printf("%d steps, eval_loss %.2f\n", res.GlobalStep, metrics["eval_loss"])
	// Output: 160 steps, eval_loss 0.00
}
