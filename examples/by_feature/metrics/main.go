// SPDX-License-Identifier: Apache-2.0

// Metrics adds its own metrics to every evaluation, and selects the best checkpoint by one of them. They are one
// function of the predictions, on any number of ranks.
package main

import (
	"context"
	"math"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/metrics"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/trainer"
)

// fit measures the largest absolute error, the root of the mean squared one, and the share of the variance of the
// labels that the model explains. It gives the names without the prefix eval_, which the trainer adds.
func fit(p trainer.EvalPrediction) (map[string]float64, error) {
	labels, values, err := p.Values()
	if err != nil {
		return nil, err
	}
	mse, err := metrics.MSE(labels, values)
	if err != nil {
		return nil, err
	}
	r2, err := metrics.R2(labels, values)
	if err != nil {
		return nil, err
	}
	worst := 0.0
	for i, label := range labels {
		worst = max(worst, math.Abs(values[i]-label))
	}
	return map[string]float64{"rmse": math.Sqrt(mse), "max_error": worst, "r2": r2}, nil
}

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	a := args.Default("out/metrics")
	a.LearningRate, a.NumTrainEpochs = 0.1, 20
	a.EvalStrategy, a.SaveStrategy, a.SaveTotalLimit = args.StrategyEpoch, args.StrategyEpoch, new(1)
	a.LoadBestModelAtEnd, a.MetricForBestModel, a.GreaterIsBetter = true, "r2", new(true)

	t := trainer.New(line.Model(), a, trainer.WithTrainData(line.Train()), trainer.WithEvalData(line.Eval()),
		trainer.WithComputeMetrics(fit))
	if _, err := t.TrainContext(ctx); err != nil {
		return err
	}
	m, err := t.EvaluateContext(ctx)
	if err != nil {
		return err
	}
	p.Printf("eval_loss %.4f  eval_rmse %.3f  eval_max_error %.3f  eval_r2 %.4f\n", m["eval_loss"],
		m["eval_rmse"], m["eval_max_error"], m["eval_r2"])
	p.Printf("(the noise of the labels has a standard deviation of 0.1: an rmse of about 0.1 is as good " +
		"as it gets)\n")
	return nil
}
