// SPDX-License-Identifier: Apache-2.0

// Resume trains in one go, then again in two runs of which the second goes on from the
// first one's checkpoint. Both end with the same weights, bit for bit: model, optimizer,
// schedule, random streams and the place in the training stream are in the checkpoint.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/models/mlp"
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

func main() {
	whole := line.Model()
	if _, err := trainer.New(whole, arguments("out/resume/whole"),
		trainer.WithTrainData(line.Train())).Train(); err != nil {
		log.Fatal(err)
	}

	// The first run is interrupted after step 29, in the middle of an epoch; it finishes the
	// step and, by save_on_interrupt, writes checkpoint-29.
	ctx, cancel := context.WithCancel(context.Background())
	_, err := trainer.New(line.Model(), arguments("out/resume/parts"), trainer.WithTrainData(line.Train()),
		trainer.WithCallbacks(&interrupter{step: 29, cancel: cancel})).TrainContext(ctx)
	if !errors.Is(err, trainer.ErrInterrupted) {
		log.Fatal("not interrupted: ", err)
	}
	fmt.Println(err)

	resumed := line.Model()
	a := arguments("out/resume/parts")
	a.ResumeFromCheckpoint = "last" // or a checkpoint's folder
	if _, err := trainer.New(resumed, a, trainer.WithTrainData(line.Train())).Train(); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("in one go: %s\nresumed:   %s\nsame bits: %t\n", line.String(whole), line.String(resumed),
		same(whole, resumed))
}

func same(x, y *mlp.Model) bool {
	xa, xb := line.Coefficients(x)
	ya, yb := line.Coefficients(y)
	return xa == ya && xb == yb
}
