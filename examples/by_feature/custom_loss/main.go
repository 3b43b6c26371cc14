// SPDX-License-Identifier: Apache-2.0

// Custom_loss trains with its own loss instead of the model's: the absolute error, which a few wild labels move less
// than the squared one.
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// absoluteError is the SUM of |prediction − label| and the number of terms. The trainer
// divides once, by the number of terms of the whole optimizer step.
func absoluteError(c *nn.Ctx, out models.Output, b *data.Batch) (*tensor.Tensor, float64) {
	d := tensor.Abs(c.Ctx, tensor.Sub(c.Ctx, out.Logits, b.Required(data.Labels)))
	return tensor.Sum(c.Ctx, d, nil, false), float64(d.Numel())
}

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	points := line.Samples(64, 1)
	for i := 0; i < len(points); i += 8 {
		points[i].Labels[0] = 20 // a wild label
	}
	train := data.NewSource(points, data.Stack[line.Point])
	for _, run := range []struct {
		name    string
		options []trainer.Option
	}{
		{"squared error", nil},
		{"absolute error", []trainer.Option{trainer.WithLoss(absoluteError)}},
	} {
		a := args.Default("out/custom_loss")
		a.LearningRate, a.NumTrainEpochs, a.SaveStrategy = 0.1, 40, args.StrategyNo
		model := line.Model()
		t := trainer.New(model, a, append(run.options, trainer.WithTrainData(train))...)
		if _, err := t.TrainContext(ctx); err != nil {
			return err
		}
		p.Printf("%-14s %s\n", run.name, line.String(model))
	}
	return nil
}
