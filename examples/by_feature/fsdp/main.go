// SPDX-License-Identifier: Apache-2.0

// Fsdp trains one model on one rank and then spread over four (fsdp full_shard): each rank keeps a quarter of the
// parameters, the gradients and the optimizer's state. With shard_grad_op parameters are whole from forward to
// backward. The weights have the same bits. After Train the model is whole on every rank again.
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
		fsdp  []string
	}{{1, nil}, {4, []string{"shard_grad_op"}}, {4, []string{"full_shard"}}} {
		model := line.Wide()
		a := args.Default("out/fsdp")
		a.LearningRate, a.NumTrainEpochs, a.SaveStrategy = 0.003, 20, args.StrategyNo
		a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 2, 8
		a.NumReplicas, a.FSDP = run.ranks, run.fsdp
		res, err := trainer.New(model, a, trainer.WithTrainData(line.Train())).TrainContext(ctx)
		if err != nil {
			return err
		}
		if one == nil {
			one = model
		}
		fmt.Fprintf(p.Stdout, "%d rank(s), fsdp %v: training loss %.4f; same bits as on 1: %t\n", run.ranks, run.fsdp,
			res.TrainingLoss, line.SameBits(model, one))
	}
	return nil
}
