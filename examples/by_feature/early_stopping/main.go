// SPDX-License-Identifier: Apache-2.0

// Early_stopping evaluates after every epoch, ends the training after two evaluations in a row without an improvement,
// and restores the best weights.
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/trainer"
)

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	a := args.Default("out/early_stopping")
	a.LearningRate, a.NumTrainEpochs, a.LRSchedulerType = 0.2, 100, args.SchedulerConstant
	a.EvalStrategy, a.SaveStrategy = args.StrategyEpoch, args.StrategyEpoch
	a.LoadBestModelAtEnd, a.MetricForBestModel, a.SaveTotalLimit = true, "loss", new(2)

	model := line.Model()
	t := trainer.New(model, a, trainer.WithTrainData(line.Train()), trainer.WithEvalData(line.Eval()),
		trainer.WithCallbacks(&callbacks.EarlyStopping{Patience: 2, Threshold: 1e-4}))
	res, err := t.TrainContext(ctx)
	if err != nil {
		return err
	}
	s := t.State()
	p.Printf("stopped after %.0f of %d epochs (%s); best eval_loss %.4f at step %d: %s\n",
		s.Epoch, s.NumTrainEpochs, res.StopReason, *s.BestMetric, *s.BestGlobalStep, line.String(model))
	return nil
}
