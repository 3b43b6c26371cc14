// SPDX-License-Identifier: Apache-2.0

// Resume_on_other_ranks trains on four ranks, is interrupted, goes on with two, is interrupted
// again, and ends with one. Checkpoints are in global terms: no sample is lost or repeated, and
// the weights are those of a run that never stopped, bit for bit.
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

// run trains on a number of ranks, from the last checkpoint if there is one, until the step
// at which it is interrupted; 0 is never.
func run(dir string, ranks int, interrupt int64) (*mlp.Model, error) {
	a := args.Default(dir)
	a.LearningRate, a.NumTrainEpochs = 0.1, 10
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas = 2, 8, ranks
	a.ResumeFromCheckpoint = "last"
	if ranks == 4 {
		a.ResumeFromCheckpoint = "" // begin
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	model := line.Model()
	_, err := trainer.New(model, a, trainer.WithTrainData(line.Train()),
		trainer.WithCallbacks(&interrupter{step: interrupt, cancel: cancel})).TrainContext(ctx)
	if interrupt > 0 && errors.Is(err, trainer.ErrInterrupted) {
		fmt.Printf("%d ranks: %v\n", ranks, err)
		return model, nil
	}
	return model, err
}

func main() {
	whole, err := run("out/resume_on_other_ranks/whole", 4, 0)
	if err != nil {
		log.Fatal(err)
	}
	var parts *mlp.Model
	for _, leg := range []struct {
		ranks int
		until int64
	}{{4, 13}, {2, 45}, {1, 0}} {
		if parts, err = run("out/resume_on_other_ranks/parts", leg.ranks, leg.until); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("4 ranks throughout: %s\non 4, 2 and 1:     %s\nsame bits: %t\n", line.String(whole), line.String(parts),
		same(whole, parts))
}

func same(x, y *mlp.Model) bool {
	xa, xb := line.Coefficients(x)
	ya, yb := line.Coefficients(y)
	return xa == ya && xb == yb
}
