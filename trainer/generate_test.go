// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/metrics"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/generation"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// asked is a prompt with its answer.
type asked struct{ prompt, answer []int64 }

// collateAsked pads samples on the right; their labels are those of the answers, shifted or not.
func collateAsked(shifted bool) data.Collator[asked] {
	return func(c *tensor.Ctx, samples []asked) (*data.Batch, error) {
		width := 0
		for _, s := range samples {
			width = max(width, len(s.prompt)+len(s.answer))
		}
		b, terms := &data.Batch{Tensors: map[string]*tensor.Tensor{}}, 0
		var ids, labels, mask []int64
		for _, s := range samples {
			row, wanted := slices.Concat(s.prompt, s.answer), make([]int64, width)
			for i := range width {
				wanted[i] = tensor.IgnoreIndex
				if i >= len(s.prompt) && i < len(row) {
					wanted[i] = row[i]
					terms++
				}
				mask = append(mask, min(1, max(0, int64(len(row)-i))))
			}
			ids = append(append(ids, row...), make([]int64, width-len(row))...)
			if shifted {
				wanted = append(wanted[1:], tensor.IgnoreIndex)
			}
			labels = append(labels, wanted...)
		}
		name := data.Labels
		if shifted {
			name = data.ShiftLabels
		}
		for key, list := range map[string][]int64{data.InputIDs: ids, name: labels, data.AttentionMask: mask} {
			b.Tensors[key] = tensor.FromSlice(c, list, len(samples), width)
		}
		b.Count = float64(terms)
		return b, nil
	}
}

// questions are n samples whose prompts and answers differ in length.
func questions(n int) data.Source {
	list := make(data.Slice[asked], n)
	for i := range list {
		for j := range 1 + i%3 {
			list[i].prompt = append(list[i].prompt, int64((i+3*j)%vocabulary))
		}
		for j := range 1 + i%2 {
			list[i].answer = append(list[i].answer, int64((i*j+1)%vocabulary))
		}
	}
	return data.NewSource(list, collateAsked(false))
}

// The tokens are those of transformers' Seq2SeqTrainer (testdata/generate.py), for labels of both forms.
func TestPredictWithGenerateGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/generate.json")
	require.NoError(t, err)
	var golden struct {
		MaxLength int `json:"max_length"`
		Prompts   [][]int64
		Generated [][]int
	}
	require.NoError(t, json.Unmarshal(text, &golden))
	list := make(data.Slice[asked], len(golden.Prompts))
	for i, p := range golden.Prompts {
		list[i] = asked{p, []int64{1, 2}[:1+i%2]}
	}
	for _, shifted := range []bool{false, true} {
		m, err := models.LoadPretrained(tensor.CPU(), "../models/gpt2/testdata/tiny")
		require.NoError(t, err)
		a := lineArgs()
		a.PredictWithGenerate, a.GenerationMaxLength, a.PerDeviceEvalBatchSize = true, new(golden.MaxLength), 3
		p, err := newTrainer(vfs.NewMem(), m, a, trainer.WithGeneration(generation.Options{}.Continue)).
			Predict(data.NewSource(list, collateAsked(shifted)))
		require.NoError(t, err)
		require.Len(t, p.Predictions, len(list))
		for i, s := range p.Predictions {
			require.Equal(t, golden.Generated[i], s.Generated, "sample %d", i)
			require.Len(t, s.Prompt, len(golden.Prompts[i]))
			require.Empty(t, s.Logits)
		}
		require.Positive(t, p.Metrics["test_loss"])
	}
}

// greedy makes tokens until there are as many as the prompt's first token says, at most 4: texts of ranks differ in
// length.
func greedy(ctx context.Context, c *nn.Ctx, m models.Generator, prompt []int, most int) ([]int, error) {
	return generation.Options{MaxNewTokens: 1 + prompt[0]%4}.Continue(ctx, c, m, prompt, most)
}

// Metrics of generated texts are the same on any number of ranks, and where ranks gather parameters, share matrices or
// are a pipeline. Ranks that share matrices generate with their parts.
func TestGeneratedTextsOnRanks(t *testing.T) {
	var widths sync.Map // of a matrix, while texts are generated
	generate := func(ctx context.Context, c *nn.Ctx, m models.Generator, prompt []int, most int) ([]int, error) {
		widths.Store(m.(*gpt2.Model).Transformer.H[0].MLP.CFC.Weight.Size(1), true)
		return greedy(ctx, c, m, prompt, most)
	}
	decode := func(ids []int) (string, error) { return strings.Trim(fmt.Sprint(ids), "[]"), nil }
	run := func(set func(a *args.TrainingArguments)) (map[string]float64, []trainer.Prediction) {
		a := args.Default(out)
		a.LearningRate, a.MaxSteps, a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 0.05, 4, 1, 12
		a.SaveStrategy, a.EvalStrategy, a.EvalSteps = args.StrategyNo, args.StrategySteps, new(2.0)
		a.PredictWithGenerate, a.PerDeviceEvalBatchSize = true, 2
		set(a)
		tr := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(texts(24)),
			trainer.WithEvalData(questions(7)), trainer.WithGeneration(generate), trainer.WithComputeMetrics(
				func(p trainer.EvalPrediction) (map[string]float64, error) {
					references, predictions, err := p.Texts(decode)
					if err != nil {
						return nil, err
					}
					chrf, err := metrics.ChrF(references, predictions)
					return map[string]float64{"chrf": chrf}, err
				}))
		_, err := tr.Train()
		require.NoError(t, err)
		got, err := tr.Evaluate()
		require.NoError(t, err)
		p, err := tr.Predict(questions(5))
		require.NoError(t, err)
		return map[string]float64{"chrf": got["eval_chrf"], "loss": got["eval_loss"]}, p.Predictions
	}
	want, predictions := run(func(*args.TrainingArguments) {})
	lengths := map[int]bool{}
	for _, p := range predictions {
		lengths[len(p.Generated)] = true
	}
	require.Greater(t, len(lengths), 2)
	for name, set := range map[string]func(a *args.TrainingArguments){
		"2 ranks": func(a *args.TrainingArguments) { a.NumReplicas = 2 },
		"3 ranks": func(a *args.TrainingArguments) { a.NumReplicas = 3 },
		"pp":      func(a *args.TrainingArguments) { a.NumReplicas, a.PPSize = 4, 2 },
		"gathered": func(a *args.TrainingArguments) {
			a.NumReplicas = 2
			gather(a, "full_shard", "auto_wrap")
		},
	} {
		got, list := run(set)
		require.Equal(t, want, got, name)
		require.Equal(t, predictions, list, name)
	}
	want, predictions = run(func(a *args.TrainingArguments) { a.TPParts = 2 })
	whole := newGPT2(t, 0).Transformer.H[0].MLP.CFC.Weight.Size(1)
	for name, set := range map[string]func(a *args.TrainingArguments){
		"tp":           func(*args.TrainingArguments) {},
		"tp, gathered": func(a *args.TrainingArguments) { gather(a, "full_shard", "auto_wrap") },
		"tp, pp":       func(a *args.TrainingArguments) { a.PPSize = 2 },
	} {
		widths.Clear()
		got, list := run(func(a *args.TrainingArguments) {
			a.NumReplicas, a.TPSize, a.TPParts = 4, 2, 2
			set(a)
		})
		_, parts := widths.Load(whole / 2)
		require.True(t, parts, name)
		require.Equal(t, want, got, name)
		require.Equal(t, predictions, list, name)
	}
}

func TestPromptsEndBeforeTheFirstLabel(t *testing.T) {
	a := lineArgs()
	a.PredictWithGenerate, a.PerDeviceEvalBatchSize = true, 4
	var seen [][]int
	tr := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithGeneration(
		func(_ context.Context, _ *nn.Ctx, _ models.Generator, prompt []int, most int) ([]int, error) {
			require.Zero(t, most)
			seen = append(seen, prompt)
			return nil, nil
		}))
	list := data.Slice[asked]{{[]int64{1, 2, 3}, []int64{4}}, {[]int64{5}, []int64{6, 7}}, {[]int64{8, 9}, nil},
		{nil, []int64{1, 2}}}
	p, err := tr.Predict(data.NewSource(list, collateAsked(false)))
	require.NoError(t, err)
	require.Equal(t, [][]int{{1, 2, 3}, {5}, {8, 9}, {1}}, seen, "no label asks for the first token")
	require.Equal(t, []int{}, p.Predictions[0].Generated, "never nil")
	list = data.Slice[asked]{{}, {[]int64{5}, []int64{6, 7}}}
	_, err = tr.Predict(data.NewSource(list, collateAsked(false)))
	requireOneError(t, err, "sample 0 has no tokens before its first label: want a prompt")
}

func TestPredictWithGenerateIsRefused(t *testing.T) {
	a := lineArgs()
	a.PredictWithGenerate = true
	_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithGeneration(greedy)).
		Predict(source(points(4)))
	requireOneError(t, err, "predict_with_generate: *mlp.Model cannot generate text")
	_, err = newTrainer(vfs.NewMem(), newGPT2(t, 0), a).Predict(questions(3))
	requireOneError(t, err, "predict_with_generate needs a function that generates: want WithGeneration")
	a.GenerationMaxLength = new(3)
	_, err = newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithGeneration(greedy)).Predict(questions(3))
	requireOneError(t, err, "sample 2: the prompt has 3 tokens: want fewer than generation_max_length (3)")
	a.GenerationMaxLength = nil
	p, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithGeneration(
		generation.Options{}.Continue)).Predict(questions(3))
	require.NoError(t, err)
	for _, s := range p.Predictions {
		require.Len(t, s.Generated, 20, "the default of transformers")
	}
	_, _, err = trainer.EvalPrediction{Predictions: []trainer.Prediction{{Index: 4}}}.Texts(nil)
	requireOneError(t, err, "sample 4 has no generated tokens: want predict_with_generate")
}

// A context that ends while a rank generates ends the prediction on all ranks.
func TestGenerationIsInterrupted(t *testing.T) {
	for _, full := range []bool{false, true} {
		a := lineArgs()
		a.PredictWithGenerate, a.NumReplicas = true, 2
		if full {
			gather(a, "full_shard", "auto_wrap")
		}
		ctx, cancel := context.WithCancelCause(ctx)
		_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithGeneration(
			func(ctx context.Context, c *nn.Ctx, m models.Generator, prompt []int, most int) ([]int, error) {
				if prompt[0] == 2 {
					cancel(errors.New("enough"))
				}
				return greedy(ctx, c, m, prompt, most)
			})).PredictContext(ctx, questions(40))
		require.ErrorContains(t, err, "enough")
	}
}
