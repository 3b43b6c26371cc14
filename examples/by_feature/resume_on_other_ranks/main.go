// SPDX-License-Identifier: Apache-2.0

// Resume_on_other_ranks trains on four ranks, is interrupted, continues with two, is interrupted again, and ends with
// one. Checkpoints are in global terms: no sample is lost or repeated, and the weights are those of a run that never
// stopped, bit for bit.
package main

import (
	"context"
	"errors"
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

// leg trains on a number of ranks, from the last checkpoint if there is one, until the step
// at which it is interrupted; 0 is never.
func leg(ctx context.Context, p *program.Process, dir string, ranks int, interrupt int64) (*mlp.Model, error) {
	a := args.Default(dir)
	a.LearningRate, a.NumTrainEpochs = 0.1, 10
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas = 2, 8, ranks
	a.ResumeFromCheckpoint = "last"
	if ranks == 4 {
		a.ResumeFromCheckpoint = "" // begin
	}
	part, cancel := context.WithCancel(ctx)
	defer cancel()
	model := line.Model()
	_, err := trainer.New(model, a, trainer.WithTrainData(line.Train()),
		trainer.WithCallbacks(&interrupter{step: interrupt, cancel: cancel})).TrainContext(part)
	if interrupt > 0 && ctx.Err() == nil && errors.Is(err, trainer.ErrInterrupted) {
		p.Printf("%d ranks: %v\n", ranks, err)
		return model, nil
	}
	return model, err
}

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	whole, err := leg(ctx, p, "out/resume_on_other_ranks/whole", 4, 0)
	if err != nil {
		return err
	}
	var parts *mlp.Model
	for _, part := range []struct {
		ranks int
		until int64
	}{{4, 13}, {2, 45}, {1, 0}} {
		if parts, err = leg(ctx, p, "out/resume_on_other_ranks/parts", part.ranks, part.until); err != nil {
			return err
		}
	}
	p.Printf("4 ranks throughout: %s\non 4, 2 and 1:     %s\nsame bits: %t\n", line.String(whole),
		line.String(parts), same(whole, parts))
	return nil
}

func same(x, y *mlp.Model) bool {
	xa, xb := line.Coefficients(x)
	ya, yb := line.Coefficients(y)
	return xa == ya && xb == yb
}
