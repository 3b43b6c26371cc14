// SPDX-License-Identifier: Apache-2.0

// Custom_callback observes the training and controls it: it keeps the loss of every step and ends the run as soon as
// the loss has been low for a whole epoch.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/trainer"
)

// goodEnough embeds callbacks.Base, which does nothing on every event, and has the methods
// of the two events that it cares for.
type goodEnough struct {
	callbacks.Base
	loss   float64   // the target
	losses []float64 // of the epoch's steps
}

func (g *goodEnough) OnStepEnd(e *callbacks.Event) error {
	g.losses = append(g.losses, e.Step.Loss)
	return nil
}

func (g *goodEnough) OnEpochEnd(e *callbacks.Event) error {
	worst := 0.0
	for _, l := range g.losses {
		worst = max(worst, l)
	}
	fmt.Printf("epoch %2.0f: worst step %.4f\n", e.State.Epoch, worst)
	e.Control.ShouldTrainingStop = worst <= g.loss // the trainer acts on it, after all ranks have agreed
	g.losses = g.losses[:0]
	return nil
}

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	a := args.Default("out/custom_callback")
	a.LearningRate, a.NumTrainEpochs, a.SaveStrategy = 0.2, 100, args.StrategyNo
	model := line.Model()
	t := trainer.New(model, a, trainer.WithTrainData(line.Train()), trainer.WithCallbacks(&goodEnough{loss: 0.05}))
	res, err := t.TrainContext(ctx)
	if err != nil {
		return err
	}
	p.Printf("%s, stopped after %d of %d steps\n", line.String(model), res.GlobalStep, t.State().MaxSteps)
	return nil
}
