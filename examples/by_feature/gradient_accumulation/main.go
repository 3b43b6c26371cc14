// SPDX-License-Identifier: Apache-2.0

// Gradient_accumulation makes one optimizer step out of several micro-batches. The loss is
// a sum over samples, divided once by the number of samples of the whole step: 4 micro-batches
// of 4 give the weights of one batch of 16, up to the rounding of other sums, also where an
// epoch ends with fewer: here with 4 + 4 + 4 + 2.
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/trainer"
)

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	train := data.NewSource(line.Samples(62, 1), data.Stack[line.Point])
	for _, split := range []struct{ batch, accumulation int }{{16, 1}, {4, 4}} {
		a := args.Default("out/gradient_accumulation")
		a.LearningRate, a.NumTrainEpochs, a.SaveStrategy = 0.1, 20, args.StrategyNo
		a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = split.batch, split.accumulation

		model := line.Model()
		res, err := trainer.New(model, a, trainer.WithTrainData(train)).TrainContext(ctx)
		if err != nil {
			return err
		}
		p.Printf("%d × %d samples per step, %d steps: %s\n", split.accumulation, split.batch,
			res.GlobalStep, line.String(model))
	}
	return nil
}
