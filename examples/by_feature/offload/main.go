// SPDX-License-Identifier: Apache-2.0

// Offload trains a small GPT-2 twice: in memory, and with its parameters and the optimizer's state in mapped files of a
// folder (offload_params and offload_optimizer disk). The system reads and writes what memory does not hold, so that
// the model may be larger than the memory. It prints the peak of the tensors in memory (skip_memory_metrics false). The
// weights have the same bits. The files have no names: nothing is left of them when the process ends.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/gpt"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
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
	fmt.Fprintln(p.Stdout, "same bits:", gpt.SameBits(inMemory, onDisk))
	return nil
}

func train(ctx context.Context, p *program.Process, offload args.Offload) (*gpt2.Model, error) {
	dev := tensor.NewCPU(0) // with its own count of memory
	model := gpt.Model(dev)
	a := args.Default("out/offload")
	a.LearningRate, a.MaxSteps, a.LoggingSteps, a.PerDeviceTrainBatchSize = 0.003, 20, 5, 4
	a.SaveStrategy, a.SkipMemoryMetrics = args.StrategyNo, false
	a.OffloadOptimizer, a.OffloadParams, a.OffloadDir = offload, offload, folder
	res, err := trainer.New(model, a, trainer.WithDevice(dev), trainer.WithTrainData(gpt.Train())).TrainContext(ctx)
	if err != nil {
		return nil, err
	}
	p.Printf("offload %s: loss %.2f, %.1f MB in memory\n", offload, res.TrainingLoss,
		res.Metrics["train_mem_peak"]/1e6)
	return model, nil
}
