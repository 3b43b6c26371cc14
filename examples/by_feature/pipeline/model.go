// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

const (
	vocabulary = 256 // tokens are bytes
	width      = 64
)

// Model predicts the next byte from the one before it.
type Model struct {
	Embed  *nn.Embedding `nn:"embed"`
	Blocks []*Block      `nn:"blocks"`
	Head   *nn.Linear    `nn:"head"`
}

// Block adds two products with dropout to its input.
type Block struct {
	Up      *nn.Linear `nn:"up"`
	Down    *nn.Linear `nn:"down"`
	Dropout nn.Dropout `nn:"dropout"`
}

// NewModel makes a model of four blocks.
func NewModel() *Model {
	in := nn.NewInit(tensor.CPU(), 42)
	m := &Model{
		Embed: nn.NewEmbedding(in.Sub("embed"), nn.EmbeddingConfig{Rows: vocabulary, Dim: width}),
		Head:  nn.NewLinear(in.Sub("head"), nn.LinearConfig{In: width, Out: vocabulary}),
	}
	for i := range 4 {
		in := in.Sub("blocks").Sub(fmt.Sprint(i))
		m.Blocks = append(m.Blocks, &Block{
			Up:      nn.NewLinear(in.Sub("up"), nn.LinearConfig{In: width, Out: 4 * width}),
			Down:    nn.NewLinear(in.Sub("down"), nn.LinearConfig{In: 4 * width, Out: width}),
			Dropout: nn.Dropout{P: 0.1},
		})
	}
	return m
}

// Forward keeps the shape of x [B,T,width].
func (b *Block) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, b, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		h := b.Down.Forward(c, b.Up.Activated(c, x, tensor.ActivationSiLU))
		return tensor.Add(c.Ctx, x, b.Dropout.Forward(c, h))
	}, x)
}

// The rest divides the model into stages.

// Parts are what can be on different ranks: the embedding, each block, and the head.
func (m *Model) Parts() []nn.Part {
	return models.BlockParts(nn.Part{m.Embed}, m.Blocks, nn.Part{m.Head})
}

// Forward runs the whole model, or the parts that are in the stage of c.
func (m *Model) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	x := c.Received(b.Required(data.InputIDs))[0]
	run := func(layer nn.Layer) {
		x = nn.RunPart1(c, nn.Part{layer}, func(x *tensor.Tensor) *tensor.Tensor {
			return layer.Forward(c, x)
		}, x)
	}
	run(m.Embed)
	for _, block := range m.Blocks {
		run(block)
	}
	if !c.Runs(m.Head) {
		return models.Output{Hidden: []*tensor.Tensor{x}} // for the next stage
	}
	run(m.Head)
	return models.NewOutput(models.LogitsAndLoss(c, x, b.Tensors[data.ShiftLabels]))
}

// ExampleBatch is a batch to count the operations of each part with, by which the model is cut.
func (m *Model) ExampleBatch(c *tensor.Ctx, size, length int) *data.Batch {
	length = max(1, length)
	ids := func() *tensor.Tensor { return tensor.Zeros(c, tensor.Int64, size, length) }
	return &data.Batch{Size: size, Count: float64(size * length),
		Tensors: map[string]*tensor.Tensor{data.InputIDs: ids(), data.ShiftLabels: ids()}}
}
