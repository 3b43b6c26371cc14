// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/rng"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/transformer"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// The goldens of this test are runs of transformers' Trainer with two small language models: see
// testdata/differential_language.py, which has the same functions.

// languageSample is a prompt and its answer.
type languageSample struct {
	InputIDs []int64 `json:"input_ids"`
	Labels   []int64 `json:"labels"` // −100 for the prompt
}

// predictedSamples are those that a call of predict gets.
const predictedSamples = 7

// languageSource pads samples on the right.
func languageSource(rows []languageSample) data.Source {
	return data.NewSource(data.Slice[languageSample](rows), collateLanguage)
}

func collateLanguage(c *tensor.Ctx, samples []languageSample) (*data.Batch, error) {
	width := 0
	for _, s := range samples {
		width = max(width, len(s.InputIDs))
	}
	terms := 0
	var ids, labels, mask []int64
	for _, s := range samples {
		for i := range width {
			id, label, there := int64(0), int64(tensor.IgnoreIndex), int64(0)
			if i < len(s.InputIDs) {
				id, label, there = s.InputIDs[i], s.Labels[i], 1
			}
			if i > 0 && label != tensor.IgnoreIndex {
				terms++
			}
			ids, labels, mask = append(ids, id), append(labels, label), append(mask, there)
		}
	}
	b := &data.Batch{Tensors: map[string]*tensor.Tensor{}, Count: float64(terms)}
	for name, list := range map[string][]int64{data.InputIDs: ids, data.Labels: labels, data.AttentionMask: mask} {
		b.Tensors[name] = tensor.FromSlice(c, list, len(samples), width)
	}
	return b, nil
}

// evalRows are the evaluation samples of a run.
func (g *randomGoldens) evalRows(c *randomCase) []languageSample {
	name := "eval"
	if c.RaggedEval {
		name = "ragged"
	}
	return g.Sets[name][:c.EvalSize]
}

// series has what seriesOf has made.
var series sync.Map

// seriesOf are n numbers in [−1, 1) that follow from a name.
func seriesOf(name string, n int) []float64 {
	if list, ok := series.Load(name); ok {
		return list.([]float64)
	}
	list, key := make([]float64, n), rng.Key(42, name, 0)
	for i := range list {
		list[i] = float64(float32(float64(rng.Float32At(key, 0, uint64(i)))*2 - 1))
	}
	series.Store(name, list)
	return list
}

// newLanguageModel is a model with the parameters that the goldens' had at the start.
func (g *randomGoldens) newLanguageModel(name string) models.Model {
	m, err := models.FromConfig(nn.NewInit(tensor.CPU(), 1), g.Models[name])
	if err != nil {
		panic(err)
	}
	c := tensor.NewCtx(tensor.CPU()).NoGrad()
	for _, p := range nn.NamedParameters(m) {
		list := make([]float32, p.Numel())
		for i, x := range seriesOf(p.Name, len(list)) {
			if x *= 0.5; p.Dim() == 1 && strings.HasSuffix(p.Name, "weight") {
				x = 1 + 0.2*x
			}
			list[i] = float32(x)
		}
		tensor.CopyInto(c, p.Tensor, tensor.FromSlice(c, list, p.Shape()...))
	}
	return m
}

// weightFigures are the norm of all parameters, and their sums with three series of numbers. The bias of GPT-2's keys,
// whose gradient is what rounding leaves, is left out.
func weightFigures(m models.Model) []any {
	var sums [4]float64
	c := tensor.NewCtx(tensor.CPU())
	list := slices.Clone(nn.NamedParameters(m))
	slices.SortFunc(list, func(a, b tensor.Named) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range list {
		values := tensor.ToSlice[float32](c, p.Tensor)
		if strings.HasSuffix(p.Name, "c_attn.bias") {
			third := len(values) / 3
			values = slices.Concat(values[:third], values[2*third:])
		}
		for i := range sums {
			if i == 0 {
				for _, x := range values {
					sums[0] += float64(x) * float64(x)
				}
				continue
			}
			for j, s := range seriesOf(p.Name+"/"+strconv.Itoa(i), len(values)) {
				sums[i] += float64(values[j]) * s
			}
		}
	}
	return []any{math.Sqrt(sums[0]), sums[1], sums[2], sums[3]}
}

// peaks computes the figures of a run's compute_metrics: a trainer.Metric, and a function of predictions.
type peaks struct {
	c        *randomCase
	rows     []languageSample // of which the evaluated ones are the first; nil: there are two sets
	peak     float64
	right, n int
	inputs   float64
}

func (m *peaks) Reset() { m.peak, m.right, m.n, m.inputs = 0, 0, 0, 0 }

// add counts a label, which the logits predict.
func (m *peaks) add(logits []float32, label int64) {
	if label == tensor.IgnoreIndex {
		return
	}
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	m.peak, m.n = m.peak+float64(logits[best]), m.n+1
	if int64(best) == label {
		m.right++
	}
}

func (m *peaks) Update(c *nn.Ctx, out models.Output, b *data.Batch) error {
	labels, logits := tensor.ToSlice[int64](c.Ctx, b.Tensors[data.Labels]), tensor.ToSlice[float32](c.Ctx, out.Logits)
	width, classes := out.Logits.Size(1), out.Logits.Size(2)
	for i, label := range labels {
		if i%width > 0 {
			m.add(logits[(i-1)*classes:i*classes], label)
		}
	}
	for _, id := range tensor.ToSlice[int64](c.Ctx, b.Tensors[data.InputIDs]) {
		m.inputs += float64(id)
	}
	return nil
}

func (m *peaks) Compute(loss trainer.EvalLoss) map[string]float64 {
	figures := map[string]float64{"peak": m.peak / float64(m.n)}
	if !m.c.half() {
		figures["accuracy"] = float64(m.right) / float64(m.n)
	}
	names, _ := m.c.Args["include_for_metrics"].([]any)
	if slices.Contains(names, any("inputs")) {
		figures["inputs"] = m.inputs
	}
	if slices.Contains(names, any("loss")) {
		figures["losses"] = loss.Mean()
	}
	return figures
}

// ofPredictions is the function of all predictions.
func (m *peaks) ofPredictions(p trainer.EvalPrediction) (map[string]float64, error) {
	m.Reset()
	for _, s := range p.Predictions {
		classes := s.Shape[1]
		for i, label := range s.Labels[1:] { // which the model shifts
			m.add(s.Logits[i*classes:(i+1)*classes], int64(label))
		}
		if m.rows != nil {
			for _, id := range m.rows[s.Index].InputIDs {
				m.inputs += float64(id)
			}
		}
	}
	return m.Compute(p.Loss), nil
}

// half reports whether a run computes in bfloat16.
func (c *randomCase) half() bool { return c.Args["bf16"] == true || c.Args["bf16_full_eval"] == true }

// languageOptions are a run's data and metrics.
func (g *randomGoldens) languageOptions(c *randomCase) []trainer.Option {
	rows := g.evalRows(c)
	opts := []trainer.Option{trainer.WithTrainData(languageSource(g.Sets["train"][:c.TrainSize]))}
	metric := &peaks{c: c}
	if c.EvalSets == 2 {
		half := len(rows) / 2
		opts = append(opts, trainer.WithNamedEvalData("first", languageSource(rows[:half])),
			trainer.WithNamedEvalData("second", languageSource(rows[half:])))
	} else {
		opts = append(opts, trainer.WithEvalData(languageSource(rows)))
		if metric.rows = g.Sets["eval"]; c.RaggedEval {
			metric.rows = g.Sets["ragged"]
		}
	}
	switch {
	case c.Metric && c.Args["batch_eval_metrics"] == true && c.Ranks < 2:
		opts = append(opts, trainer.WithMetrics(metric))
	case c.Metric:
		opts = append(opts, trainer.WithComputeMetrics(metric.ofPredictions))
	}
	return opts
}

// predictLanguage is what a call of predict returns: one sum per sample.
func (g *randomGoldens) predictLanguage(tr *trainer.Trainer) (map[string]any, error) {
	rows := g.Sets["eval"][:predictedSamples]
	p, err := tr.Predict(languageSource(rows))
	if err != nil {
		return nil, err
	}
	back := map[string]any{"metrics": anyMap(p.Metrics), "predictions": nil, "labels": nil}
	var logits, labels []any
	for i, s := range p.Predictions {
		list, sum, label := s.Logits[:len(rows[i].InputIDs)*s.Shape[1]], 0.0, 0.0
		for _, x := range list {
			sum += float64(x)
		}
		for _, l := range s.Labels {
			if l != tensor.IgnoreIndex {
				label += l
			}
		}
		logits, labels = append(logits, sum/float64(len(list))), append(labels, label)
	}
	if logits != nil {
		back["predictions"], back["labels"] = logits, labels
	}
	return back, nil
}

// TestRandomRunsOfTransformersWithLanguageModels repeats 400 runs and 100 resumes on one rank, and 100 runs on two: see
// testdata/differential_language.py.
func TestRandomRunsOfTransformersWithLanguageModels(t *testing.T) {
	g := readRandomGoldens(t, "differential_language.json.gz", 600)
	for _, c := range g.Cases {
		c.Args["loss_average"] = string(args.LossAverageSteps)
		if c.Resume != nil {
			c.Resume.Args["loss_average"] = string(args.LossAverageSteps)
		}
	}
	found := g.compareAll(t)
	for _, d := range languageDifferences {
		require.True(t, found[d.row] || t.Failed() || testing.Short(),
			"no run shows the difference %q: is it still one?", d.row)
	}
}
