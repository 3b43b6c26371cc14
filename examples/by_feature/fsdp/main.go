// SPDX-License-Identifier: Apache-2.0

// Fsdp trains a small GPT-2 on one rank, on four, and sharded over four. Each transformer block is a unit. Under fsdp
// full_shard a rank keeps a quarter of the parameters, the gradients and the optimizer's state; under shard_grad_op
// parameters are whole from forward to backward. It prints the peak of a rank's tensors (skip_memory_metrics false);
// one rank needs the most, since it sums four micro-batches itself. The weights have the same bits. After Train the
// model is whole on every rank again.
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/gpt"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	var one *gpt2.Model
	for _, run := range []struct {
		name  string
		ranks int
		fsdp  []string
	}{
		{"1 rank", 1, nil},
		{"4 ranks", 4, nil},
		{"4 ranks, fsdp shard_grad_op", 4, []string{"shard_grad_op"}},
		{"4 ranks, fsdp full_shard", 4, []string{"full_shard"}},
	} {
		dev := tensor.NewCPU(0) // with its own count of memory
		model := gpt.Model(dev)
		a := args.Default("out/fsdp")
		a.LearningRate, a.MaxSteps, a.LoggingSteps = 0.003, 20, 5
		a.SaveStrategy, a.SkipMemoryMetrics = args.StrategyNo, false
		a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 1, 4
		a.NumReplicas, a.FSDP = run.ranks, run.fsdp
		res, err := trainer.New(model, a, trainer.WithDevice(dev), trainer.WithTrainData(gpt.Train())).TrainContext(ctx)
		if err != nil {
			return err
		}
		if one == nil {
			one = model
			blocks := model.RecomputeUnits()
			p.Printf("%d parameters; units: %d transformer blocks of %d\n", nn.NumParameters(model),
				len(blocks), nn.NumParameters(blocks[0]))
		}
		p.Printf("%s: loss %.2f, %.1f MB per rank, same bits as on 1 rank: %t\n", run.name,
			res.TrainingLoss, res.Metrics["train_mem_peak"]/1e6, gpt.SameBits(model, one))
	}
	return nil
}
