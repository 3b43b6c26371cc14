// SPDX-License-Identifier: Apache-2.0

// Zero trains a small GPT-2 on one rank and then on four under DeepSpeed's stages. Under stage 1 a rank keeps a quarter
// of the optimizer's state, under stage 2 of the gradients too, under stage 3 of the parameters too, as fsdp full_shard
// does. It prints the peak of a rank's tensors (skip_memory_metrics false). The weights have the same bits.
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/gpt"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	var one *gpt2.Model
	for _, run := range []struct {
		name         string
		ranks, stage int
	}{{"1 rank", 1, 0}, {"4 ranks", 4, 0}, {"zero_stage 1", 4, 1}, {"zero_stage 2", 4, 2}, {"zero_stage 3", 4, 3}} {
		dev := tensor.NewCPU(0) // with its own count of memory
		model := gpt.Model(dev)
		a := args.Default("out/zero")
		a.LearningRate, a.MaxSteps, a.LoggingSteps = 0.003, 20, 5
		a.SaveStrategy, a.SkipMemoryMetrics = args.StrategyNo, false
		a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 1, 4
		a.NumReplicas, a.ZeroStage = run.ranks, run.stage
		res, err := trainer.New(model, a, trainer.WithDevice(dev), trainer.WithTrainData(gpt.Train())).TrainContext(ctx)
		if err != nil {
			return err
		}
		if one == nil {
			one = model
		}
		p.Printf("%s: loss %.2f, %.1f MB per rank, same bits as on 1 rank: %t\n", run.name,
			res.TrainingLoss, res.Metrics["train_mem_peak"]/1e6, gpt.SameBits(model, one))
	}
	return nil
}
