// SPDX-License-Identifier: Apache-2.0

package resnet_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/resnet"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func smallConfig(layer string) resnet.Config {
	cfg := resnet.DefaultConfig()
	cfg.EmbeddingSize, cfg.HiddenSizes, cfg.Depths, cfg.LayerType = 4, []int{4, 8}, []int{1, 2}, layer
	cfg.ID2Label = models.Labels("cat", "dog", "eel")
	return cfg
}

func newModel(t *testing.T, layer string) *resnet.Model {
	m, err := resnet.New(nn.NewInit(tensor.CPU(), 1), smallConfig(layer))
	require.NoError(t, err)
	return m
}

func images(c *tensor.Ctx, shape ...int) *data.Batch {
	return &data.Batch{Tensors: map[string]*tensor.Tensor{
		data.PixelValues: tensor.Normal(c, tensor.Float32, 5, 0, 1, shape...)}, Size: shape[0]}
}

func TestNames(t *testing.T) {
	var names []string
	for _, s := range nn.Walk(newModel(t, resnet.Basic)).State() {
		names = append(names, s.Name)
	}
	require.Contains(t, names, "resnet.embedder.embedder.convolution.weight")
	require.Contains(t, names, "resnet.encoder.stages.1.layers.0.shortcut.normalization.num_batches_tracked")
	require.NotContains(t, names, "resnet.encoder.stages.0.layers.0.shortcut.convolution.weight",
		"nothing changes its shape")
	require.Contains(t, names, "classifier.1.bias")
	require.Len(t, newModel(t, resnet.Bottleneck).ResNet.Encoder.Stages[1].Layers[1].Layer, 3)
}

// ResNet-18 and ResNet-50 have the numbers of parameters of torchvision's, for 1000 classes.
func TestSizes(t *testing.T) {
	classes := make([]string, 1000)
	for i := range classes {
		classes[i] = string(rune('a'+i%26)) + string(rune('0'+i/26))
	}
	large := resnet.DefaultConfig()
	large.ID2Label = models.Labels(classes...)
	for want, cfg := range map[int]resnet.Config{11689512: resnet.ResNet18(classes...), 25557032: large} {
		m, err := resnet.New(nn.NewInit(tensor.CPU(), 1), cfg)
		require.NoError(t, err)
		require.Equal(t, want, nn.NumParameters(m))
	}
}

func TestParseConfig(t *testing.T) {
	cfg,
		err := resnet.ParseConfig(
		[]byte(
			`{"depths": [1], "hidden_sizes": [8], "num_labels": 3, "out_features": ["stage1"], "problem_type": null}`))
	require.NoError(t, err)
	want := resnet.DefaultConfig()
	want.Depths, want.HiddenSizes, want.ID2Label = []int{1}, []int{8}, models.Labels("LABEL_0", "LABEL_1", "LABEL_2")
	require.Equal(t, want, cfg)
	cfg, err = resnet.ParseConfig([]byte(`{"id2label": {"0": "a", "1": "b"}, "num_labels": 9}`))
	require.NoError(t, err)
	require.Equal(t, models.Labels("a", "b"), cfg.ID2Label)
	require.Equal(t, []string{"cat", "dog", "eel"}, newModel(t, resnet.Basic).Labels())

	text, err := os.ReadFile(filepath.Join("testdata", "bottleneck", "config.json"))
	require.NoError(t, err)
	cfg, err = resnet.ParseConfig(text)
	require.NoError(t, err)
	m, err := resnet.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	text, err = models.ConfigJSON(m)
	require.NoError(t, err)
	back, err := resnet.ParseConfig(text)
	require.NoError(t, err)
	require.Equal(t, cfg, back)
	var raw map[string]any
	require.NoError(t, json.Unmarshal(text, &raw))
	require.Equal(t, map[string]any{"LABEL_0": 0.0, "LABEL_1": 1.0, "LABEL_2": 2.0, "LABEL_3": 3.0}, raw["label2id"])
	require.Equal(t, "resnet", raw["model_type"])
}

func TestParseConfigErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{`:                              "resnet: config.json: line 1, column 2: the text ends too early: want }",
		`{"problem_type":"regression"}`:  `resnet: config.json: problem_type = "regression" is not supported: want single_label_classification`,
		`{"num_labels":1}`:               "resnet: config: id2label names 1 classes: want at least 2",
		`{"id2label":{"0":"a","2":"b"}}`: `resnet: config: id2label has no "1": want the classes numbered from 0`,
		`{"num_channels":0,"embedding_size":-1,"layer_type":"deep","hidden_act":"sin","depths":[0],"hidden_sizes":[2,4]}`: `resnet: config: num_channels = 0: want at least 1; embedding_size = -1: want at least 1; ` +
			`layer_type = "deep": want basic or bottleneck; hidden_sizes = [2 4], depths = [0]: want one of each for each stage; depths has 0: want at least 1; ` +
			`hidden_act = "sin": want relu, gelu, silu or tanh`,
		`{"depths":[1],"hidden_sizes":[6]}`: "resnet: config: hidden_sizes has 6: want a positive number of " +
			"channels, of a bottleneck a multiple of 4",
	} {
		_, err := resnet.ParseConfig([]byte(text))
		require.EqualError(t, err, want)
	}
}

func TestForwardRefuses(t *testing.T) {
	m := newModel(t, resnet.Basic)
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).NoGrad(), nil, false)
	require.ErrorContains(t, tensor.Try(func() { m.Forward(c, &data.Batch{}) }),
		"the batch has no pixel_values")
	require.ErrorContains(t, tensor.Try(func() { m.Forward(c, images(c.Ctx, 2, 1, 8, 8)) }),
		"pixel_values of shape [2 1 8 8]: want [B 3 H W]")
	out := m.Forward(c, images(c.Ctx, 2, 3, 20, 17))
	require.Nil(t, out.Loss)
	require.Equal(t, []int{2, 3}, out.Logits.Shape())
}

// Recomputing the layers gives the same gradients and running statistics, bit for bit.
func TestRecompute(t *testing.T) {
	for _, layer := range []string{resnet.Basic, resnet.Bottleneck} {
		run := func(recompute bool) (bits [][]byte) {
			m := newModel(t, layer)
			c := nn.NewCtx(tensor.NewCtx(tensor.CPU()), nn.Walk(m), true)
			if recompute {
				require.Len(t, m.RecomputeUnits(), 3)
				c = c.WithRecompute(m.RecomputeUnits())
			}
			c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
				b := images(c.Ctx, 4, 3, 32, 32)
				b.Tensors[data.Labels] = tensor.FromSlice(c.Ctx, []int64{0, 2, 1, tensor.IgnoreIndex}, 4)
				tensor.Backward(c.Ctx, []*tensor.Tensor{m.Forward(c, b).Loss}, nil, nil)
				return nil
			})
			for _, p := range nn.NamedParameters(m) {
				bits = append(bits, tensor.ReadBytes(c.Ctx, p.Grad()))
			}
			for _, b := range nn.Walk(m).Buffers() {
				bits = append(bits, tensor.ReadBytes(c.Ctx, b.Tensor))
			}
			return bits
		}
		require.Equal(t, run(false), run(true))
	}
}
