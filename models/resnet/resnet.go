// SPDX-License-Identifier: Apache-2.0

// Package resnet is the ResNet image classifier (He et al. 2016), with the parameter names and the config.json of
// transformers' ResNetForImageClassification. Use it to train a classifier of images, or to fine-tune one that
// transformers saved. Start with [New] and [ResNet18]; models load in both directions.
//
// It registers itself with package models under "resnet", so that models.LoadPretrained finds it. Package
// data/images reads images and augments them.
package resnet

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func init() {
	models.Register("resnet", func(in *nn.Init, config []byte) (models.Configured, error) {
		cfg, err := ParseConfig(config)
		if err != nil {
			return nil, err
		}
		return New(in, cfg)
	})
}

// Model is ResNet with a classifier.
type Model struct {
	ResNet     *ResNet `nn:"resnet"`
	Classifier *Head   `nn:"classifier"`

	Cfg Config
	models.KeptConfig
}

// ResNet is the model without its classifier.
type ResNet struct {
	Embedder *Embedder `nn:"embedder"`
	Encoder  *Encoder  `nn:"encoder"`
}

// Embedder is a 7×7 convolution and a maximum over 3×3 pixels, each of stride 2.
type Embedder struct {
	Embedder *Convolution  `nn:"embedder"`
	Pooler   *nn.MaxPool2D `nn:"pooler"`
}

// Encoder is the stages.
type Encoder struct {
	Stages []*Stage `nn:"stages"`
}

// Head is the classifier.
type Head struct {
	Linear *nn.Linear `nn:"1"` // 0 is transformers' Flatten
}

// New makes a model with transformers' initialisation: kernels drawn as He et al. (2015), the
// classifier as torch.nn.Linear.
func New(in *nn.Init, cfg Config) (*Model, error) { return models.Make(in, "resnet", cfg, newModel) }

func newModel(in *nn.Init, cfg Config) *Model {
	base := in.Sub("resnet")
	embedder := &Embedder{
		Embedder: newConvolution(base.Sub("embedder").Sub("embedder"), cfg.NumChannels, cfg.EmbeddingSize, 7, 2,
			cfg.HiddenAct),
		Pooler: &nn.MaxPool2D{Options: tensor.Pool2DOptions{Kernel: [2]int{3, 3}, Stride: [2]int{2, 2},
			Padding: [2]int{1, 1}}},
	}
	encoder := &Encoder{}
	from := cfg.EmbeddingSize
	for i, to := range cfg.HiddenSizes {
		stride := 2
		if i == 0 && !cfg.DownsampleInFirstStage {
			stride = 1
		}
		stages := base.Sub("encoder").Sub("stages")
		encoder.Stages = append(encoder.Stages,
			newStage(stages.Sub(strconv.Itoa(i)), cfg, from, to, stride, cfg.Depths[i]))
		from = to
	}
	head := &Head{Linear: nn.NewLinear(in.Sub("classifier").Sub("1"),
		nn.LinearConfig{In: from, Out: len(cfg.ID2Label)})}
	return &Model{ResNet: &ResNet{Embedder: embedder, Encoder: encoder}, Classifier: head, Cfg: cfg}
}

// ModelType is "resnet".
func (m *Model) ModelType() string { return "resnet" }

// Config marshals to a config.json that transformers reads.
func (m *Model) Config() any {
	return struct {
		Architectures []string `json:"architectures"`
		ModelType     string   `json:"model_type"`
		TorchDType    string   `json:"torch_dtype"`
		Config
		Label2ID map[string]int `json:"label2id"`
	}{[]string{"ResNetForImageClassification"}, "resnet", m.Classifier.Linear.Weight.DType().String(), m.Cfg,
		m.Cfg.ID2Label.Label2ID()}
}

// Labels are the names of the classes, in the order of the logits.
func (m *Model) Labels() []string { return m.Cfg.ID2Label.Names() }

// RecomputeUnits are the residual layers.
func (m *Model) RecomputeUnits() []nn.Module {
	var units []nn.Module
	for _, s := range m.ResNet.Encoder.Stages {
		for _, l := range s.Layers {
			units = append(units, l)
		}
	}
	return units
}

// ExampleBatch is size black squares of length pixels a side, 224 for 0.
func (m *Model) ExampleBatch(c *tensor.Ctx, size, length int) *data.Batch {
	length = cmp.Or(length, 224)
	pixels := tensor.Zeros(c, tensor.Float32, size, m.Cfg.NumChannels, length, length)
	return &data.Batch{Tensors: map[string]*tensor.Tensor{data.PixelValues: pixels,
		data.Labels: tensor.Zeros(c, tensor.Int64, size)}, Size: size, Count: float64(size)}
}

// Forward reads pixel_values, images [B,num_channels,H,W], and labels (optional), the classes
// [B]. Logits are [B,classes]. The loss terms are images: labels that are not tensor.IgnoreIndex.
func (m *Model) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	x := b.Required(data.PixelValues)
	if len(x.Shape()) != 4 || x.Size(1) != m.Cfg.NumChannels {
		panic(&tensor.Error{Op: "resnet.Forward",
			Msg:   fmt.Sprintf("%s of shape %v: want [B %d H W]", data.PixelValues, x.Shape(), m.Cfg.NumChannels),
			Where: c.Path()})
	}
	return models.NewOutput(nn.Unit(c, m, func(c *nn.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		logits := m.Classifier.Forward(c, m.ResNet.Forward(c, in[0]))
		return models.LogitsAndLoss(c, logits, b.Tensors[data.Labels])
	}, x))
}

// Forward maps images [B,C,H,W] to features [B,hidden_sizes[last]], the means of the last
// stage's planes.
func (m *ResNet) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		x = m.Encoder.Forward(c, m.Embedder.Forward(c, x))
		return tensor.Flatten(c.Ctx, tensor.GlobalAvgPool2D(c.Ctx, x), 1, 3)
	}, x)
}

// Forward makes images a quarter as wide and high.
func (m *Embedder) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		return m.Pooler.Forward(c, m.Embedder.Forward(c, x))
	}, x)
}

// Forward runs the stages one after the other.
func (m *Encoder) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		for _, s := range m.Stages {
			x = s.Forward(c, x)
		}
		return x
	}, x)
}

// Forward maps features to logits.
func (m *Head) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor { return m.Linear.Forward(c, x) }, x)
}
