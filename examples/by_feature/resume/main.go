// SPDX-License-Identifier: Apache-2.0

// Resume trains in one run, then again in two runs, the second of which resumes from the first one's checkpoint. Both
// end with the same weights, bit for bit: model, optimizer, schedule, random streams and the place in the training
// stream are in the checkpoint.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/trainer"
)

// interrupter ends the training's context at a step, as Ctrl-C does in a program.
type interrupter struct {
	callbacks.Base
	step   int64
	cancel func()
}

func (i *interrupter) OnStepEnd(e *callbacks.Event) error {
	if e.State.GlobalStep == i.step {
		i.cancel()
	}
	return nil
}

func arguments(dir string) *args.TrainingArguments {
	a := args.Default(dir)
	a.LearningRate, a.NumTrainEpochs = 0.1, 10
	return a
}

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	whole := line.Model()
	if _, err := trainer.New(whole, arguments("out/resume/whole"),
		trainer.WithTrainData(line.Train())).TrainContext(ctx); err != nil {
		return err
	}

	// The first run is interrupted after step 29, in the middle of an epoch; it finishes the
	// step and, by save_on_interrupt, writes checkpoint-29.
	part, cancel := context.WithCancel(ctx)
	defer cancel()
	_, err := trainer.New(line.Model(), arguments("out/resume/parts"), trainer.WithTrainData(line.Train()),
		trainer.WithCallbacks(&interrupter{step: 29, cancel: cancel})).TrainContext(part)
	if !errors.Is(err, trainer.ErrInterrupted) || ctx.Err() != nil { // by the callback, not by a signal
		return err
	}
	fmt.Fprintln(p.Stdout, err)

	resumed := line.Model()
	a := arguments("out/resume/parts")
	a.ResumeFromCheckpoint = "last" // or a checkpoint's folder
	if _, err := trainer.New(resumed, a, trainer.WithTrainData(line.Train())).TrainContext(ctx); err != nil {
		return err
	}
	p.Printf("in one go: %s\nresumed:   %s\nsame bits: %t\n", line.String(whole), line.String(resumed),
		same(whole, resumed))
	return nil
}

func same(x, y *mlp.Model) bool {
	xa, xb := line.Coefficients(x)
	ya, yb := line.Coefficients(y)
	return xa == ya && xb == yb
}
