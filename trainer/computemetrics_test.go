// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/metrics"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// One function computes a metric of every evaluation, on any number of ranks and in pipelines, with the same bits: each
// sample counts once, the last batch is smaller than the others.
func TestComputeMetrics(t *testing.T) {
	var want map[string]float64
	for _, c := range []struct{ ranks, pp int }{{1, 1}, {2, 1}, {3, 1}, {2, 2}, {4, 2}} {
		t.Run(fmt.Sprintf("%d ranks, pp %d", c.ranks, c.pp), func(t *testing.T) {
			a, calls := lineArgs(), 0 // no lock, though ranks are goroutines: one of them calls the function
			a.LearningRate = 0        // the weights of one rank
			a.NumReplicas, a.PPSize, a.PerDeviceEvalBatchSize = c.ranks, c.pp, 3
			a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.MaxSteps = 1, 12/c.ranks*c.pp, 2
			a.EvalStrategy, a.EvalSteps, a.SaveStrategy = args.StrategySteps, new(1.0), args.StrategyNo
			a.MetricForBestModel, a.GreaterIsBetter, a.LoadBestModelAtEnd = "accuracy", new(true), false
			tr := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(texts(24)),
				trainer.WithEvalData(texts(7)), trainer.WithComputeMetrics(
					func(p trainer.EvalPrediction) (map[string]float64, error) {
						calls++
						for i, s := range p.Predictions {
							require.EqualValues(t, i, s.Index)
						}
						labels, classes, err := p.Classes()
						if err != nil {
							return nil, err
						}
						c, err := metrics.Classify(labels, classes)
						if err != nil {
							return nil, err
						}
						return map[string]float64{"accuracy": c.Accuracy(), "eval_f1": c.Weighted().F1,
							"samples": float64(len(p.Predictions)), "ppl": metrics.Perplexity(p.Loss.Mean()),
							"nan": math.NaN()}, nil
					}))
			_, err := tr.Train()
			require.NoError(t, err)
			require.NotNil(t, tr.State().BestMetric)
			got, err := tr.Evaluate()
			require.NoError(t, err)
			require.Equal(t, 3, calls, "once for each evaluation")
			p, err := tr.Predict(texts(5))
			require.NoError(t, err)
			require.Len(t, p.Predictions, 5)
			require.Equal(t, 5.0, p.Metrics["test_samples"])
			require.Equal(t, 7.0, got["eval_samples"])
			require.Equal(t, math.Exp(got["eval_loss"]), got["eval_ppl"])
			require.True(t, math.IsNaN(got["eval_nan"]))
			figures := map[string]float64{"test": p.Metrics["test_accuracy"]}
			for _, name := range []string{"eval_loss", "eval_accuracy", "eval_f1", "eval_ppl"} {
				require.Contains(t, got, name)
				figures[name] = got[name]
			}
			if want == nil {
				want = figures
			}
			require.Equal(t, want, figures)
		})
	}
}

// A metric that sees the batches of one rank alone is refused.
func TestMetricsOfOneRankAreRefused(t *testing.T) {
	for _, pp := range []int{1, 2} {
		a := lineArgs()
		a.NumReplicas, a.PPSize = 2, pp
		_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithEvalData(texts(7)),
			trainer.WithMetrics(&collected{})).Evaluate()
		requireOneError(t, err, "cannot be computed on 2 ranks: want", "WithComputeMetrics")
	}
}

func TestComputeMetricsIsLeftOut(t *testing.T) {
	type unlabelled struct{ Inputs [1]float32 }
	a, calls := lineArgs(), 0
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithEvalData(source(points(20))),
		trainer.WithComputeMetrics(func(trainer.EvalPrediction) (map[string]float64, error) {
			calls++
			return nil, errors.New("no luck")
		}))
	_, err := tr.Predict(data.NewSource(data.Slice[unlabelled]{{}, {}}, data.Stack[unlabelled]))
	require.NoError(t, err)
	a.PredictionLossOnly = true
	_, err = tr.Evaluate()
	require.NoError(t, err)
	require.Zero(t, calls)
}

// Samples to predict whose collator requires labels have -100: they are as those without.
func TestPredictWithoutKnownLabels(t *testing.T) {
	list := equalTexts(5)
	for i, s := range list {
		list[i].Labels = slices.Repeat([]int32{tensor.IgnoreIndex}, len(s.Labels))
	}
	for _, n := range []int{1, 2} {
		a := lineArgs()
		a.NumReplicas, a.PerDeviceEvalBatchSize = n, 2
		p, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithComputeMetrics(
			func(trainer.EvalPrediction) (map[string]float64, error) { return nil, errors.New("no luck") })).
			Predict(data.NewSource(list, data.Stack[text]))
		require.NoError(t, err)
		require.Len(t, p.Predictions, 5)
		require.NotContains(t, p.Metrics, "test_loss")
	}
}

// An error of the function ends the evaluation on all ranks, with its text.
func TestErrorsOfComputeMetrics(t *testing.T) {
	for _, n := range []int{1, 2} {
		a := lineArgs()
		a.NumReplicas = n
		var calls atomic.Int64
		_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithEvalData(source(points(20))),
			trainer.WithComputeMetrics(func(trainer.EvalPrediction) (map[string]float64, error) {
				calls.Add(1)
				return nil, errors.New("no luck")
			})).Evaluate()
		requireOneError(t, err, "the function passed to WithComputeMetrics: no luck")
		require.EqualValues(t, 1, calls.Load())
	}
}

func TestClassesOfPredictions(t *testing.T) {
	nan := float32(math.NaN())
	of := func(s ...trainer.Prediction) ([]int64, []int64, error) {
		return trainer.EvalPrediction{Predictions: s}.Classes()
	}
	labels, classes, err := of(
		trainer.Prediction{Shape: []int{3}, Logits: []float32{1, 3, 3}, Labels: []float64{2}},
		trainer.Prediction{Shape: []int{2, 2}, Logits: []float32{1, 2, 5, nan}, LabelShape: []int{2},
			Labels: []float64{1, tensor.IgnoreIndex}},
		trainer.Prediction{Shape: []int{2}, Logits: []float32{7, 8}, LabelShape: []int{2}, Labels: []float64{7, 9}})
	require.NoError(t, err)
	require.Equal(t, []int64{2, 1, -100, 7, 9}, labels)
	require.Equal(t, []int64{1, 1, 1, 7, 8}, classes, "the first of equal ones; NaN is the largest")
	for want, p := range map[string]trainer.Prediction{
		"sample 4 has no labels": {Index: 4, Shape: []int{2}, Logits: []float32{1, 2}},
		"sample 4 has logits of shape [1] and labels of shape []": {Index: 4, Shape: []int{1}, Logits: []float32{1},
			Labels: []float64{1}},
		"sample 4 has logits of shape [3 2] and labels of shape [2]": {Index: 4, Shape: []int{3, 2},
			Logits: make([]float32, 6), LabelShape: []int{2}, Labels: []float64{1, 1}},
		"sample 4 has the label 0.5": {Index: 4, Shape: []int{2}, Logits: []float32{1, 2}, Labels: []float64{0.5}},
	} {
		_, _, err := of(p)
		requireOneError(t, err, want)
	}
	_, _, err = trainer.EvalPrediction{Predictions: []trainer.Prediction{{Index: 4, Shape: []int{2},
		Logits: []float32{1, 2}, Labels: []float64{0.5}}}}.Values()
	requireOneError(t, err, "sample 4 has logits of shape [2] and labels of shape []: want as many")
	values, predicted, err := trainer.EvalPrediction{Predictions: []trainer.Prediction{{Shape: []int{1},
		Logits: []float32{1}, Labels: []float64{0.5}}, {Logits: []float32{2}, Labels: []float64{3}}}}.Values()
	require.NoError(t, err)
	require.Equal(t, []float64{0.5, 3}, values)
	require.Equal(t, []float64{1, 2}, predicted)
}

// Logits that WithLogitsForMetrics replaced by classes are taken as classes.
func TestClassesOfReplacedLogits(t *testing.T) {
	evaluate := func(opts ...trainer.Option) float64 {
		m, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), lineArgs(), append(opts, trainer.WithEvalData(texts(7)),
			trainer.WithComputeMetrics(func(p trainer.EvalPrediction) (map[string]float64, error) {
				labels, classes, err := p.Classes()
				if err != nil {
					return nil, err
				}
				c, err := metrics.Classify(labels, classes)
				if err != nil {
					return nil, err
				}
				return map[string]float64{"f1": c.Macro().F1}, nil
			}))...).Evaluate()
		require.NoError(t, err)
		return m["eval_f1"]
	}
	require.Equal(t, evaluate(), evaluate(trainer.WithLogitsForMetrics(
		func(c *nn.Ctx, logits *tensor.Tensor, _ *data.Batch) *tensor.Tensor {
			return tensor.ArgMax(c.Ctx, logits, 2, false)
		})))
}

// Metrics get the inputs of each sample and the loss of its batch, where include_for_metrics asks for them, on any
// number of ranks; Predict does too.
func TestIncludeForMetrics(t *testing.T) {
	for _, ranks := range []int{1, 2, 3} {
		for _, include := range [][]string{nil, {args.MetricInputs}, {args.MetricInputs, args.MetricLoss}} {
			a := lineArgs()
			a.NumReplicas, a.PerDeviceEvalBatchSize, a.IncludeForMetrics = ranks, 3, include
			a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = 1, 12/ranks
			check := func(list []trainer.Prediction) {
				require.Len(t, list, 7)
				mean := map[int]float64{} // of each batch
				for i, s := range list {
					want := points(7)[i]
					if include == nil {
						require.Nil(t, s.Inputs)
					} else {
						require.Equal(t, []float64{float64(want.Inputs[0])}, s.Inputs)
						require.Equal(t, []int{1}, s.InputShape)
					}
					if len(include) < 2 {
						require.Nil(t, s.Loss)
						continue
					}
					d := float64(s.Logits[0]) - s.Labels[0]
					mean[i/3] += d * d / float64(min(3, 7-i/3*3))
				}
				for i, s := range list {
					if s.Loss != nil {
						require.InDelta(t, mean[i/3], *s.Loss, 1e-5)
					}
				}
			}
			calls := 0
			tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithEvalData(source(points(7))),
				trainer.WithComputeMetrics(func(p trainer.EvalPrediction) (map[string]float64, error) {
					calls++
					check(p.Predictions)
					return nil, nil
				}))
			_, err := tr.Evaluate()
			require.NoError(t, err)
			require.Equal(t, 1, calls)
			out, err := tr.Predict(source(points(7)))
			require.NoError(t, err)
			check(out.Predictions)
		}
	}
	a := lineArgs()
	a.IncludeForMetrics = []string{args.MetricInputs}
	type other struct {
		X      [1]float32
		Labels float32
	}
	src := data.NewSource(data.Slice[other]{{}, {}}, data.Stack[other])
	_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithStep(
		func(c *nn.Ctx, m models.Model, b *data.Batch) (models.Output, float64, error) {
			out := m.Forward(c, &data.Batch{Size: b.Size, Count: b.Count, Tensors: map[string]*tensor.Tensor{
				data.Inputs: b.Tensors["x"], data.Labels: b.Tensors[data.Labels]}})
			return out, b.Count, nil
		})).Predict(src)
	require.ErrorContains(t, err, "include_for_metrics inputs: the batch has")
}
