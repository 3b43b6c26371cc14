// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// exact is a sample in float64.
type exact struct{ Inputs, Labels float64 }

func exactly(list data.Slice[point]) data.Source {
	return data.NewSource(exacts(list), data.Stack[exact])
}

func exacts(list data.Slice[point]) data.Slice[exact] {
	rows := make(data.Slice[exact], len(list))
	for i, p := range list {
		rows[i] = exact{float64(p.Inputs[0]), float64(p.Labels)}
	}
	return rows
}

// newExactLine is a line in float64.
func newExactLine(a, b float64) *line {
	c := tensor.NewCtx(tensor.CPU())
	return &line{A: nn.NewParameter(tensor.FromSlice(c, []float64{a})),
		B: nn.NewParameter(tensor.FromSlice(c, []float64{b}))}
}

// meanSquare is the mean of (a·x + b − y)² over the points.
func meanSquare(list data.Slice[point], a, b float64) float64 {
	sum := 0.0
	for _, p := range list {
		d := a*float64(p.Inputs[0]) + b - float64(p.Labels)
		sum += d * d
	}
	return sum / float64(len(list))
}

func TestEvalLossDoesNotDependOnTheBatchSize(t *testing.T) {
	list := points(61)
	want := meanSquare(list, 1.5, 2)
	for _, batch := range []int{1, 3, 8, 61, 64} {
		seen := int64(0)
		a := lineArgs(func(a *args.TrainingArguments) {
			a.PerDeviceEvalBatchSize = batch
			a.DataloaderDropLast = true // of training: evaluation sees every sample
		})
		tr := newTrainer(vfs.NewMem(), newExactLine(1.5, 2), a, trainer.WithEvalData(exactly(list)),
			on(callbacks.PredictionStep, func(e *callbacks.Event) error {
				seen++
				require.Equal(t, seen, e.Batch)
				require.EqualValues(t, (61+batch-1)/batch, e.Batches)
				return nil
			}))
		a.PerDeviceEvalBatchSize = batch + 1 // too late: arguments are read by New
		m, err := tr.Evaluate()
		require.NoError(t, err)
		require.InDelta(t, want, m["eval_loss"], 1e-13)
		require.EqualValues(t, (61+batch-1)/batch, seen)
		require.Contains(t, m, "eval_samples_per_second")
		require.Len(t, tr.State().LogHistory, 1)
	}
}

// collected gathers errors and counts them.
type collected struct {
	resets, updates, samples int
	failAt                   int
}

func (c *collected) Reset() { c.resets, c.updates, c.samples = c.resets+1, 0, 0 }

func (c *collected) Update(_ *nn.Ctx, out models.Output, b *data.Batch) error {
	c.updates++
	c.samples += out.Logits.Size(0)
	if c.updates == c.failAt {
		return errors.New("metric at its wits' end")
	}
	return nil
}

func (c *collected) Compute(loss trainer.EvalLoss) map[string]float64 {
	return map[string]float64{"samples": float64(c.samples), "eval_terms": float64(loss.Count),
		"perplexity": math.Exp(loss.Mean())}
}

func TestMetrics(t *testing.T) {
	metric := &collected{}
	a := lineArgs()
	tr := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithEvalData(source(points(20))),
		trainer.WithMetrics(metric))
	for i := range 2 {
		m, err := tr.Evaluate()
		require.NoError(t, err)
		require.Equal(t, 20.0, m["eval_samples"])
		require.Equal(t, 20.0, m["eval_terms"], "a prefix is not doubled")
		require.Equal(t, math.Exp(m["eval_loss"]), m["eval_perplexity"])
		require.Equal(t, i+1, metric.resets)
		require.Equal(t, 3, metric.updates)
	}
	a.PredictionLossOnly = true
	m, err := tr.Evaluate()
	require.NoError(t, err)
	require.Equal(t, 2, metric.resets, "the metric is left out")
	require.NotContains(t, m, "eval_terms")
	p, err := tr.Predict(source(points(5)))
	require.NoError(t, err)
	require.Empty(t, p.Predictions)
	require.Contains(t, p.Metrics, "test_loss")

	a.PredictionLossOnly, metric.failAt = false, 2
	_, err = tr.Evaluate()
	requireOneError(t, err, "the metric *trainer_test.collected passed to WithMetrics: ", "wits' end")
}

func TestNamedEvaluationSets(t *testing.T) {
	list := points(20)
	var prefixes []string
	tr := newTrainer(vfs.NewMem(), newExactLine(1, 1), lineArgs(),
		trainer.WithNamedEvalData("easy", exactly(list[:12])), trainer.WithNamedEvalData("hard", exactly(list[12:])),
		on(callbacks.Evaluate, func(e *callbacks.Event) error {
			for _, name := range []string{"eval_easy_loss", "eval_hard_loss"} {
				if _, ok := e.Metrics[name]; ok {
					prefixes = append(prefixes, name)
				}
			}
			return nil
		}))
	m, err := tr.Evaluate()
	require.NoError(t, err)
	require.InDelta(t, meanSquare(list[:12], 1, 1), m["eval_easy_loss"], 1e-12)
	require.InDelta(t, meanSquare(list[12:], 1, 1), m["eval_hard_loss"], 1e-12)
	require.Equal(t, []string{"eval_easy_loss", "eval_hard_loss"}, prefixes)
	require.NotContains(t, m, "eval_loss")
}

func TestPredictGivesTheDatasetsOrder(t *testing.T) {
	type unlabelled struct{ Inputs [2]float32 }
	list := make(data.Slice[unlabelled], 21)
	for i := range list {
		list[i].Inputs = [2]float32{float32(i), 1}
	}
	for _, workers := range []int{0, 2} {
		m := newMLP(t, 2, 3)
		tr := newTrainer(vfs.NewMem(), m, lineArgs(func(a *args.TrainingArguments) {
			a.DataloaderNumWorkers = workers
		}),
			trainer.WithLoss(func(*nn.Ctx, models.Output, *data.Batch) (*tensor.Tensor, float64) {
				panic("there are no labels")
			}))
		p, err := tr.Predict(data.NewSource(list, data.Stack[unlabelled]))
		require.NoError(t, err)
		require.NotContains(t, p.Metrics, "test_loss")
		require.Contains(t, p.Metrics, "test_runtime")
		require.Len(t, p.Predictions, 21)
		c := tensor.NewCtx(tensor.CPU()).NoGrad()
		w, bias := tensor.ToSlice[float32](c, m.Layers[0].Weight.Tensor),
			tensor.ToSlice[float32](c, m.Layers[0].Bias.Tensor)
		for i, one := range p.Predictions {
			require.EqualValues(t, i, one.Index)
			require.Equal(t, []int{3}, one.Shape)
			require.Len(t, one.Logits, 3)
			require.Nil(t, one.Labels)
			for j, y := range one.Logits {
				require.InDelta(t, w[2*j]*float32(i)+w[2*j+1]+bias[j], y, 1e-4)
			}
		}
	}
	p, err := newTrainer(vfs.NewMem(), newMLP(t, 2, 3),
		lineArgs()).Predict(data.NewSource(list[:0], data.Stack[unlabelled]))
	require.NoError(t, err)
	require.Empty(t, p.Predictions)
}

// scalar is a model whose predictions are not per sample.
type scalar struct{ *line }

func (s scalar) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	o := s.line.Forward(c, b)
	o.Logits = o.Loss
	return o
}

func TestPredictionsThatAreNotPerSample(t *testing.T) {
	_, err := newTrainer(vfs.NewMem(), &scalar{newLine(1, 1)}, lineArgs()).Predict(columnsOf(points(8)).rows(0, 8))
	requireOneError(t, err, "logits have shape []", "8 samples")
}

// positive is the loss of the samples with x ≥ 0 alone, and their number.
func positive(c *nn.Ctx, o models.Output, b *data.Batch) (*tensor.Tensor, float64) {
	zero := tensor.Zeros(c.Ctx, tensor.Float64, b.Size)
	keep := tensor.Ge(c.Ctx, b.Tensors[data.Inputs], zero)
	d := tensor.Sub(c.Ctx, o.Logits, b.Tensors[data.Labels])
	sum := tensor.Sum(c.Ctx, tensor.Where(c.Ctx, keep, tensor.Mul(c.Ctx, d, d), zero), nil, false)
	n := 0.0
	for _, k := range tensor.ToSlice[bool](c.Ctx, keep) {
		if k {
			n++
		}
	}
	return sum, n
}

// A loss that counts in its own way, on ragged micro-batches, gives the gradient of the
// true mean: one step of SGD shows it.
func TestOwnLossAndCount(t *testing.T) {
	list := points(13)
	var kept data.Slice[point]
	for _, p := range list {
		if p.Inputs[0] >= 0 {
			kept = append(kept, p)
		}
	}
	require.NotEmpty(t, kept)
	require.Less(t, len(kept), 13)
	var gradA, gradB float64
	for _, p := range kept {
		d := 1*float64(p.Inputs[0]) + 1 - float64(p.Labels)
		gradA += 2 * d * float64(p.Inputs[0]) / float64(len(kept))
		gradB += 2 * d / float64(len(kept))
	}
	for _, batch := range []int{13, 4, 5} {
		m := newExactLine(1, 1)
		a := lineArgs(func(a *args.TrainingArguments) {
			a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.MaxSteps = batch, (13+batch-1)/batch, 1
			a.Optim, a.LearningRate, a.MaxGradNorm, a.LRSchedulerType = args.OptimSGD, 0.1, 0, args.SchedulerConstant
		})
		tr := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(exactly(list)), trainer.WithEvalData(exactly(list)),
			trainer.WithLoss(positive))
		before, err := tr.Evaluate()
		require.NoError(t, err)
		require.InDelta(t, meanSquare(kept, 1, 1), before["eval_loss"], 1e-12)
		res, err := tr.Train()
		require.NoError(t, err)
		require.InDelta(t, meanSquare(kept, 1, 1), res.TrainingLoss, 1e-12)
		c := tensor.NewCtx(tensor.CPU())
		require.InDelta(t, 1-0.1*gradA, tensor.ToSlice[float64](c, m.A.Tensor)[0], 1e-12, "batch %d", batch)
		require.InDelta(t, 1-0.1*gradB, tensor.ToSlice[float64](c, m.B.Tensor)[0], 1e-12, "batch %d", batch)
	}
}

// The same with a collator that counts nothing.
func TestOwnCountAlone(t *testing.T) {
	list := make(data.Slice[exact], 13)
	for i, p := range points(13) {
		list[i] = exact{float64(p.Inputs[0]), float64(p.Labels)}
	}
	uncounted := data.NewSource(list, func(c *tensor.Ctx, s []exact) (*data.Batch, error) {
		b, err := data.Stack(c, s)
		b.Count = 0
		return b, err
	})
	run := func(src data.Source) (map[string][]byte, error) {
		m := newExactLine(1, 1)
		a := lineArgs(func(a *args.TrainingArguments) {
			a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.MaxSteps = 4, 4, 3
		})
		_, err := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(src), trainer.WithLoss(positive)).Train()
		return weights(m), err
	}
	want, err := run(data.NewSource(list, data.Stack[exact]))
	require.NoError(t, err)
	got, err := run(uncounted)
	require.NoError(t, err)
	c := tensor.NewCtx(tensor.CPU())
	for name := range want {
		x := tensor.ToSlice[float64](c, tensor.FromBytes(c, want[name], tensor.Float64, 1))[0]
		y := tensor.ToSlice[float64](c, tensor.FromBytes(c, got[name], tensor.Float64, 1))[0]
		require.InDelta(t, x, y, 1e-12)
	}

	// Without a loss of its own nobody has counted: a sum must not pass for a mean.
	_, err = newTrainer(vfs.NewMem(), newExactLine(1, 1), lineArgs(), trainer.WithTrainData(uncounted)).Train()
	requireOneError(t, err, "step 1", "over 0 terms", "Batch.Count")
}

func TestLossesThatAreNoLosses(t *testing.T) {
	bad := map[string]struct {
		loss  trainer.LossFunc
		words string
	}{
		"none": {func(*nn.Ctx, models.Output, *data.Batch) (*tensor.Tensor, float64) {
			return nil, 1
		}, "the function passed to WithLoss: the loss function returned no loss"},
		"vector": {func(_ *nn.Ctx, o models.Output, _ *data.Batch) (*tensor.Tensor, float64) {
			return o.Logits, 1
		}, "shape [8]"},
		"negative": {func(_ *nn.Ctx, o models.Output, _ *data.Batch) (*tensor.Tensor, float64) {
			return o.Loss, -1
		}, "counts -1"},
	}
	for name, c := range bad {
		t.Run(name, func(t *testing.T) {
			tr := newTrainer(vfs.NewMem(), newLine(1, 1), lineArgs(),
				trainer.WithTrainData(columnsOf(points(64)).rows(0, 64)),
				trainer.WithEvalData(columnsOf(points(8)).rows(0, 8)), trainer.WithLoss(c.loss))
			_, err := tr.Train()
			requireOneError(t, err, "trainer:", c.words)
			_, err = tr.Evaluate()
			requireOneError(t, err, "trainer:", c.words)
		})
	}
}

func TestWatchedMetricMustExist(t *testing.T) {
	watch := func(name string) *args.TrainingArguments {
		return lineArgs(func(a *args.TrainingArguments) {
			a.EvalStrategy, a.EvalSteps, a.MetricForBestModel = args.StrategySteps, new(4.0), name
		})
	}
	src := source(points(16))
	steps := 0
	count := on(callbacks.StepEnd, func(*callbacks.Event) error { steps++; return nil })
	_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), watch("accuracy"), trainer.WithTrainData(src),
		trainer.WithEvalData(src), count).Train()
	requireOneError(t, err, `metric_for_best_model = "accuracy"`, "eval_accuracy", "eval_loss")
	require.Zero(t, steps, "before training")

	_, err = newTrainer(vfs.NewMem(), newMLP(t, 1, 1), watch("accuracy"), trainer.WithTrainData(src),
		trainer.WithEvalData(src), count, trainer.WithMetrics(&collected{})).Train()
	requireOneError(t, err, `metric_for_best_model = "accuracy"`, "eval_perplexity")
	require.Equal(t, 4, steps, "with metrics at the first evaluation")

	_, err = newTrainer(vfs.NewMem(), newMLP(t, 1, 1), watch("perplexity"), trainer.WithTrainData(src),
		trainer.WithEvalData(src), trainer.WithMetrics(&collected{})).Train()
	require.NoError(t, err)
	_, err = newTrainer(vfs.NewMem(), newMLP(t, 1, 1), watch("second_loss"), trainer.WithTrainData(src),
		trainer.WithNamedEvalData("first", src), trainer.WithNamedEvalData("second", src)).Train()
	require.NoError(t, err)
}

func TestEarlyStoppingEndsTheRun(t *testing.T) {
	a := lineArgs(func(a *args.TrainingArguments) {
		a.EvalStrategy, a.SaveStrategy, a.LoadBestModelAtEnd, a.NumTrainEpochs = args.StrategyEpoch, args.StrategyEpoch,
			true, 50
		a.LearningRate, a.LRSchedulerType = 0.3, args.SchedulerConstant
	})
	m := newMLP(t, 1, 1)
	tr := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(source(points(64))),
		trainer.WithEvalData(source(points(64))),
		trainer.WithCallbacks(&callbacks.EarlyStopping{Patience: 2}))
	res, err := tr.Train()
	require.NoError(t, err)
	require.Less(t, res.GlobalStep, int64(400))
	require.Equal(t, *tr.State().BestGlobalStep+16, res.GlobalStep, "two evaluations after the best")
	end, err := tr.Evaluate()
	require.NoError(t, err)
	require.Equal(t, *tr.State().BestMetric, end["eval_loss"], "the best weights are loaded")
	require.Equal(t, fmt.Sprintf("checkpoint-%d", *tr.State().BestGlobalStep), *tr.State().BestModelCheckpoint)
}

// Logits are there for whoever asks for them: a loss function, a metric, a prediction.
func TestLogitsAreComputedWhereAskedFor(t *testing.T) {
	seen := map[string]int{}
	look := func(who string) func(*nn.Ctx, models.Output, *data.Batch) (*tensor.Tensor, float64) {
		return func(_ *nn.Ctx, out models.Output, b *data.Batch) (*tensor.Tensor, float64) {
			require.NotNil(t, out.Logits, who)
			seen[who]++
			return out.Loss, b.Count
		}
	}
	a := lineArgs(func(a *args.TrainingArguments) { a.MaxSteps, a.EvalStrategy = 2, args.StrategyEpoch })
	m := newGPT2(t, 0)
	_, err := newTrainer(vfs.NewMem(), m, a, trainer.WithTrainData(texts(16)), trainer.WithEvalData(texts(8)),
		trainer.WithLoss(look("loss"))).Train()
	require.NoError(t, err)
	metric := &logitsMetric{}
	tr := newTrainer(vfs.NewMem(), m, lineArgs(func(*args.TrainingArguments) {}), trainer.WithEvalData(texts(8)),
		trainer.WithMetrics(metric))
	withMetric, err := tr.Evaluate()
	require.NoError(t, err)
	require.Positive(t, metric.batches)
	require.Positive(t, seen["loss"])
	tr = newTrainer(vfs.NewMem(), m, lineArgs(func(*args.TrainingArguments) {}), trainer.WithEvalData(texts(8)))
	without, err := tr.Evaluate()
	require.NoError(t, err)
	require.Equal(t, withMetric["eval_loss"], without["eval_loss"], "the same bits without logits")
	p, err := tr.Predict(texts(3))
	require.NoError(t, err)
	require.Len(t, p.Predictions, 3)
}

// logitsMetric fails without logits.
type logitsMetric struct{ batches int }

func (m *logitsMetric) Reset() { m.batches = 0 }

func (m *logitsMetric) Update(_ *nn.Ctx, out models.Output, _ *data.Batch) error {
	if out.Logits == nil {
		return errors.New("there are no logits")
	}
	m.batches++
	return nil
}

func (*logitsMetric) Compute(trainer.EvalLoss) map[string]float64 { return nil }
