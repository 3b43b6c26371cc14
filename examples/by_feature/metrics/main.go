// SPDX-License-Identifier: Apache-2.0

// Metrics adds figures of its own to every evaluation, and lets one of them decide which
// checkpoint is the best. A metric sees batch by batch: predictions are never kept.
package main

import (
	"context"
	"math"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// fit measures the largest absolute error and the share of the variance of the labels
// that the model explains.
type fit struct {
	worst         float64
	n, sum, sumSq float64 // of the labels
	residual      float64 // Σ (prediction − label)²
}

func (m *fit) Reset() { *m = fit{} }

func (m *fit) Update(c *nn.Ctx, out models.Output, b *data.Batch) error {
	got := tensor.ToSlice[float32](c.Ctx, out.Logits)
	for i, want := range tensor.ToSlice[float32](c.Ctx, b.Required(data.Labels)) {
		d, w := float64(got[i]-want), float64(want)
		m.worst = max(m.worst, math.Abs(d))
		m.n, m.sum, m.sumSq, m.residual = m.n+1, m.sum+w, m.sumSq+w*w, m.residual+d*d
	}
	return nil
}

// Compute gives the names without the prefix eval_, which the trainer adds.
func (m *fit) Compute(loss trainer.EvalLoss) map[string]float64 {
	return map[string]float64{
		"rmse":      math.Sqrt(loss.Mean()),
		"max_error": m.worst,
		"r2":        1 - m.residual/(m.sumSq-m.sum*m.sum/m.n),
	}
}

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	a := args.Default("out/metrics")
	a.LearningRate, a.NumTrainEpochs = 0.1, 20
	a.EvalStrategy, a.SaveStrategy, a.SaveTotalLimit = args.StrategyEpoch, args.StrategyEpoch, new(1)
	a.LoadBestModelAtEnd, a.MetricForBestModel, a.GreaterIsBetter = true, "r2", new(true)

	t := trainer.New(line.Model(), a, trainer.WithTrainData(line.Train()), trainer.WithEvalData(line.Eval()),
		trainer.WithMetrics(&fit{}))
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
