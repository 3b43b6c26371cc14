// SPDX-License-Identifier: Apache-2.0

// Package mlp is the multilayer perceptron: fully connected layers with an activation between them. Use it for
// regression and classification of vectors of features, such as the columns of a table, and for first steps: it is the
// smallest model here. Start with [New] and a [Config].
//
// It registers itself with package models under "mlp", so that models.LoadPretrained finds it.
package mlp

import (
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/jsonfile"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func init() {
	models.Register("mlp", func(in *nn.Init, config []byte) (models.Configured, error) {
		var cfg Config
		if err := jsonfile.Unmarshal(config, &cfg); err != nil {
			return nil, fmt.Errorf("mlp: config.json: %w", err)
		}
		return New(in, cfg)
	})
}

// Config describes an MLP.
type Config struct {
	// Sizes are the widths from input to output, at least two; [1, 1] is a line.
	Sizes []int `json:"sizes"`
	// Activation stands between the layers: relu, gelu, silu or tanh. Empty means relu.
	Activation string `json:"activation,omitempty"`
	// Loss is mse (labels are float vectors) or cross_entropy (labels are classes).
	// Empty means mse.
	Loss string `json:"loss,omitempty"`
}

var activations = map[string]func(*tensor.Ctx, *tensor.Tensor) *tensor.Tensor{
	"": tensor.ReLU, "relu": tensor.ReLU, "gelu": tensor.GELU, "silu": tensor.SiLU, "tanh": tensor.Tanh,
}

// Validate reports all faults of the configuration at once.
func (c Config) Validate() error {
	var bad models.Faults
	bad.Want(len(c.Sizes) > 1, "sizes = %v: want at least input and output", c.Sizes)
	bad.Want(len(c.Sizes) == 0 || slices.Min(c.Sizes) > 0, "sizes = %v: want positive widths", c.Sizes)
	bad.Want(activations[c.Activation] != nil, "activation = %q: want relu, gelu, silu or tanh", c.Activation)
	known := c.Loss == "" || c.Loss == "mse" || c.Loss == "cross_entropy"
	bad.Want(known, "loss = %q: want mse or cross_entropy", c.Loss)
	return bad.Err("mlp")
}

// Model is a stack of linear layers.
type Model struct {
	Layers []*nn.Linear `nn:"layers"`
	Cfg    Config
	models.KeptConfig
}

// New makes an MLP with torch.nn.Linear's initialisation.
func New(in *nn.Init, cfg Config) (*Model, error) { return models.Make(in, "mlp", cfg, newModel) }

func newModel(in *nn.Init, cfg Config) *Model {
	m := &Model{Cfg: cfg}
	for i := range len(cfg.Sizes) - 1 {
		layer := in.Sub("layers").Sub(fmt.Sprint(i))
		m.Layers = append(m.Layers, nn.NewLinear(layer, nn.LinearConfig{In: cfg.Sizes[i], Out: cfg.Sizes[i+1]}))
	}
	return m
}

// ModelType is "mlp".
func (m *Model) ModelType() string { return "mlp" }

// Config marshals to config.json.
func (m *Model) Config() any {
	return struct {
		ModelType string `json:"model_type"`
		Config
	}{"mlp", m.Cfg}
}

// ExampleBatch is size vectors of zeros; the length is the model's.
func (m *Model) ExampleBatch(c *tensor.Ctx, size, _ int) *data.Batch {
	sizes := m.Cfg.Sizes
	labels := tensor.Zeros(c, tensor.Float32, size, sizes[len(sizes)-1])
	if m.Cfg.Loss == "cross_entropy" {
		labels = tensor.Zeros(c, tensor.Int64, size)
	}
	inputs := tensor.Zeros(c, m.Layers[0].Weight.DType(), size, sizes[0])
	return &data.Batch{Tensors: map[string]*tensor.Tensor{data.Inputs: inputs, data.Labels: labels}, Size: size,
		Count: float64(size)}
}

// Forward reads inputs [B, sizes[0]] and labels: float [B, sizes[last]] for mse, integer
// [B] for cross_entropy. The loss terms are samples: mse is averaged over the outputs.
func (m *Model) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	return models.NewOutput(nn.Unit(c, m, func(c *nn.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		x := in[0]
		for i, l := range m.Layers {
			if i > 0 {
				x = activations[m.Cfg.Activation](c.Ctx, x)
			}
			x = l.Forward(c, x)
		}
		return m.loss(c, x, b.Tensors[data.Labels])
	}, b.Required(data.Inputs)))
}

// loss appends the loss to the predictions if there are labels.
func (m *Model) loss(c *nn.Ctx, y, labels *tensor.Tensor) []*tensor.Tensor {
	if labels == nil || m.Cfg.Loss == "cross_entropy" {
		return models.LogitsAndLoss(c, y, labels)
	}
	labels = tensor.Reshape(c.Ctx, labels, y.Shape()...)
	return []*tensor.Tensor{y, tensor.Affine(c.Ctx, nn.MSESum(c, y, labels), 1/float64(y.Size(1)), 0)}
}
