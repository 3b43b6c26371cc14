// SPDX-License-Identifier: Apache-2.0

package gpt2_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func newClassifier(t *testing.T) *gpt2.Classifier {
	m, err := gpt2.NewClassifier(nn.NewInit(tensor.CPU(), 1), gpt2.ClassifierConfig{
		Config: smallConfig(), ID2Label: models.Labels("cat", "dog", "eel"), PadTokenID: new(60),
	})
	require.NoError(t, err)
	return m
}

// Padding on the right changes no logits, wherever the text ends.
func TestClassifierReadsTheLastToken(t *testing.T) {
	c := evaluation()
	m := newClassifier(t)
	alone := tensor.ToSlice[float32](c.Ctx, m.Forward(c, batch(c.Ctx, []int64{7, 3, 9}, 1, false)).Logits)
	require.Len(t, alone, 3)
	padded := m.Forward(c, batch(c.Ctx, []int64{7, 3, 9, 60, 60, 7, 3, 9, 1, 2, 7, 3, 9, 60, 60}, 3, false)).Logits
	require.Equal(t, []int{3, 3}, padded.Shape())
	rows := tensor.ToSlice[float32](c.Ctx, padded)
	require.InDeltaSlice(t, alone, rows[:3], 1e-6)
	require.InDeltaSlice(t, alone, rows[6:], 1e-6)
	require.NotEqual(t, rows[:3], rows[3:6])

	texts := data.NewSource(data.Slice[data.LabelledTokens]{{InputIDs: []int32{7, 3, 9}}, {}}, data.WithPadding(60))
	b, err := texts.Batch(c.Ctx, []int64{0, 1})
	require.NoError(t, err)
	rows = tensor.ToSlice[float32](c.Ctx, m.Forward(c, b).Logits)
	require.InDeltaSlice(t, alone, rows[:3], 1e-6)
	for _, x := range rows[3:] {
		require.InDelta(t, 0, x, 100, "a text without any token has logits all the same") // NaN is not
	}

	m.Cfg.PadTokenID = nil
	require.ErrorContains(t, tensor.Try(func() { m.Forward(c, batch(c.Ctx, []int64{1, 2}, 2, false)) }),
		"2 texts and no pad_token_id")
	require.Equal(t, []int{1, 3}, m.Forward(c, batch(c.Ctx, []int64{1, 2}, 1, false)).Logits.Shape())
	require.ErrorContains(t, tensor.Try(func() { m.Forward(c, &data.Batch{}) }), "the batch has no input_ids")
}

// A folder that is saved loads as a classifier, with the names of its classes.
func TestClassifierConfig(t *testing.T) {
	m := newClassifier(t)
	text, err := models.ConfigJSON(m)
	require.NoError(t, err)
	var raw map[string]any
	require.NoError(t, json.Unmarshal(text, &raw))
	require.Equal(t, []any{"GPT2ForSequenceClassification"}, raw["architectures"])
	require.Equal(t, map[string]any{"cat": 0.0, "dog": 1.0, "eel": 2.0}, raw["label2id"])
	require.Equal(t, 60.0, raw["pad_token_id"])
	again, err := models.FromConfig(nn.NewInit(tensor.CPU(), 1), text)
	require.NoError(t, err)
	require.Equal(t, m.Cfg, again.(*gpt2.Classifier).Cfg)
	require.Equal(t, []string{"cat", "dog", "eel"}, again.(*gpt2.Classifier).Labels())

	tiny, err := os.ReadFile(filepath.Join("testdata", "tiny", "config.json"))
	require.NoError(t, err)
	lm, err := models.FromConfig(nn.NewInit(tensor.CPU(), 1), tiny)
	require.NoError(t, err)
	require.IsType(t, &gpt2.Model{}, lm, "a language model's folder stays one")

	cfg, err := gpt2.ParseClassifierConfig([]byte(`{"num_labels": 3}`))
	require.NoError(t, err)
	require.Equal(t, models.Labels("LABEL_0", "LABEL_1", "LABEL_2"), cfg.ID2Label)
	require.Nil(t, cfg.PadTokenID)
	for text, want := range map[string]string{
		`{`:                              "gpt2: config.json: line 1, column 2: the text ends too early: want }",
		`{"problem_type":"regression"}`:  `gpt2: config.json: problem_type = "regression" is not supported: want single_label_classification`,
		`{"num_labels":0}`:               "gpt2: config: id2label names 0 classes: want at least 1",
		`{"id2label":{"0":"a","2":"b"}}`: `gpt2: config: id2label has no "1": want the classes numbered from 0`,
		`{"pad_token_id":50257}`:         "gpt2: config: pad_token_id = 50257: want a token below vocab_size = 50257",
		`{"n_layer":0}`:                  "gpt2: config: n_layer = 0: want at least 1",
	} {
		_, err := gpt2.ParseClassifierConfig([]byte(text))
		require.EqualError(t, err, want)
	}
}

// A head on a language model shares its transformer.
func TestClassifierOn(t *testing.T) {
	lm := newModel(t, tensor.CPU(), smallConfig())
	m, err := gpt2.ClassifierOn(nn.NewInit(tensor.CPU(), 2), lm,
		gpt2.ClassifierConfig{ID2Label: models.Labels("a", "b"), PadTokenID: new(0)})
	require.NoError(t, err)
	require.Same(t, lm.Transformer, m.Transformer)
	require.Equal(t, lm.Cfg, m.Cfg.Config)
	require.Equal(t, []int{2, 24}, m.Score.Weight.Shape())
	require.Len(t, m.RecomputeUnits(), 2)
	_, err = gpt2.ClassifierOn(nn.NewInit(tensor.CPU(), 2), lm,
		gpt2.ClassifierConfig{ID2Label: models.Labels("a", "b"), PadTokenID: new(61)})
	require.ErrorContains(t, err, "pad_token_id = 61")
}

// Recomputing the blocks gives the same gradients, bit for bit.
func TestClassifierRecompute(t *testing.T) {
	run := func(recompute bool) (grads [][]byte) {
		m := newClassifier(t)
		c := nn.NewCtx(tensor.NewCtx(tensor.CPU()), nn.Walk(m), true)
		if recompute {
			c = c.WithRecompute(m.RecomputeUnits())
		}
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			tensor.Backward(c.Ctx, []*tensor.Tensor{m.Forward(c, m.ExampleBatch(c.Ctx, 2, 5)).Loss}, nil, nil)
			return nil
		})
		for _, p := range nn.NamedParameters(m) {
			grads = append(grads, tensor.ReadBytes(tensor.NewCtx(tensor.CPU()), p.Grad()))
		}
		return grads
	}
	require.Equal(t, run(false), run(true))
}
