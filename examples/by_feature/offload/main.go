// SPDX-License-Identifier: Apache-2.0

// Offload trains a model twice: in memory, and with its parameters and the optimizer's state in mapped files of a
// folder (offload_params and offload_optimizer disk). The system reads and writes what memory does not hold, so that
// the model may be larger than the memory. The weights have the same bits. The files have no names: nothing is left of
// them when the process ends.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/trainer"
)

const folder = "out/offload/state" // on a fast disk

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	inMemory, err := train(ctx, p, args.OffloadNone)
	if err != nil {
		return err
	}
	onDisk, err := train(ctx, p, args.OffloadDisk)
	if err != nil {
		return err
	}
	fmt.Fprintln(p.Stdout, "same bits:", line.SameBits(inMemory, onDisk))
	return nil
}

func train(ctx context.Context, p *program.Process, offload args.Offload) (*mlp.Model, error) {
	model := line.Wide()
	a := args.Default("out/offload")
	a.LearningRate, a.NumTrainEpochs, a.PerDeviceTrainBatchSize, a.SaveStrategy = 0.003, 20, 8, args.StrategyNo
	a.OffloadOptimizer, a.OffloadParams, a.OffloadDir = offload, offload, folder
	res, err := trainer.New(model, a, trainer.WithTrainData(line.Train())).TrainContext(ctx)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(p.Stdout, "offload %s: training loss %.4f\n", offload, res.TrainingLoss)
	return model, nil
}
