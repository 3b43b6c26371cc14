// SPDX-License-Identifier: Apache-2.0

// Goroutine_ranks trains one model on 1, 2, 4 and 8 ranks, which are goroutines of this
// process: no launcher, no change to the program but num_replicas. global_train_batch_size
// keeps the samples of a step, so that all of them end with the same weights, bit for bit.
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/trainer"
)

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	var a1, b1 float64
	for _, ranks := range []int{1, 2, 4, 8} {
		a := args.Default("out/goroutine_ranks")
		a.LearningRate, a.NumTrainEpochs, a.SaveStrategy = 0.1, 20, args.StrategyNo
		a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 2, 16
		a.NumReplicas = ranks

		model := line.Model()
		res, err := trainer.New(model, a, trainer.WithTrainData(line.Train())).TrainContext(ctx)
		if err != nil {
			return err
		}
		w, b := line.Coefficients(model)
		if ranks == 1 {
			a1, b1 = w, b
		}
		p.Printf("%s, %d steps: %s; same bits as on 1: %t\n", program.Count(ranks, "rank"), res.GlobalStep,
			line.String(model), w == a1 && b == b1)
	}
	return nil
}
