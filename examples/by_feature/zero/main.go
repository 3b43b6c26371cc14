// SPDX-License-Identifier: Apache-2.0

// Zero trains one model on one rank and then on four under DeepSpeed's stages. Under stage 1 a rank keeps a quarter of
// the optimizer's state, under stage 2 of the gradients too, under stage 3 of the parameters too, as fsdp full_shard
// does. The weights have the same bits.
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

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	var one *mlp.Model
	for _, run := range []struct {
		ranks int
		stage int
	}{{1, 0}, {4, 1}, {4, 2}, {4, 3}} {
		model := line.Wide()
		a := args.Default("out/zero")
		a.LearningRate, a.NumTrainEpochs, a.SaveStrategy = 0.003, 20, args.StrategyNo
		a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 2, 8
		a.NumReplicas, a.ZeroStage = run.ranks, run.stage
		res, err := trainer.New(model, a, trainer.WithTrainData(line.Train())).TrainContext(ctx)
		if err != nil {
			return err
		}
		if one == nil {
			one = model
		}
		fmt.Fprintf(p.Stdout, "%d rank(s), zero_stage %d: training loss %.4f; same bits as on 1: %t\n", run.ranks,
			run.stage, res.TrainingLoss, line.SameBits(model, one))
	}
	return nil
}
