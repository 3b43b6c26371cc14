// SPDX-License-Identifier: Apache-2.0

// Quickstart learns y = 2x + 3 from 64 noisy samples.
package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

type point struct{ Inputs, Labels [1]float32 }

func main() { os.Exit(program.Run(train)) }

func train(ctx context.Context, p *program.Process) error {
	var points data.Slice[point]
	for rnd := rand.New(rand.NewPCG(1, 2)); len(points) < 64; {
		x := rnd.Float32()*4 - 2
		points = append(points, point{[1]float32{x}, [1]float32{2*x + 3 + 0.1*float32(rnd.NormFloat64())}})
	}
	model, err := mlp.New(nn.NewInit(tensor.CPU(), 42), mlp.Config{Sizes: []int{1, 1}})
	if err != nil {
		return err
	}
	a := args.Default("out/line") // HuggingFace's defaults; zero afterwards really means zero
	a.LearningRate, a.NumTrainEpochs, a.LoggingSteps = 0.1, 20, 20
	a.OverwriteOutputDir = true // a second run starts over and renames the checkpoints of the first

	t := trainer.New(model, a, trainer.WithTrainData(data.NewSource(points, data.Stack[point])))
	res, err := t.TrainContext(ctx) // the first Ctrl-C finishes the step, saves, and ends it
	if err != nil {
		return err
	}
	line, c := model.Layers[0], tensor.NewCtx(tensor.CPU())
	fmt.Fprintf(p.Stdout, "y = %.2fx + %.2f after %d steps, loss %.4f\n",
		tensor.Item(c, line.Weight.Tensor), tensor.Item(c, line.Bias.Tensor), res.GlobalStep, res.TrainingLoss)
	return nil
}
