// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Layer is a module of one input and one output, as those of this package are: a pointer to a struct.
type Layer interface {
	Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor
}

// Layers are modules that run one after the other. Paths name them by their places.
type Layers []Layer

// Sequential feeds each layer with what the one before it made, as torch.nn.Sequential: its children are called 0, 1,
// …, so that a layer's weight is 0.weight. Each runs in its own Unit.
type Sequential struct {
	Layers
}

// NewSequential makes a Sequential of layers. What their parameters start as follows from their paths, so each is made
// with its own Init: NewLinear(in.Sub("0"), …), &ReLU{}, NewLinear(in.Sub("2"), …).
func NewSequential(layers ...Layer) *Sequential {
	for i, l := range layers {
		if l == nil {
			panic(&tensor.Error{Op: "nn.NewSequential", Msg: fmt.Sprintf("layer %d is nil", i)})
		}
	}
	return &Sequential{layers}
}

// Forward maps the input of the first layer to the output of the last; without layers it returns x.
func (s *Sequential) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, s, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		for _, l := range s.Layers {
			x = l.Forward(c, x)
		}
		return x
	}, x)
}

// Flatten merges all dims but the first, as torch.nn.Flatten: images [N, C, H, W] become rows [N, C·H·W].
type Flatten struct{ _ byte }

// Forward maps x [N, ...] to [N, C].
func (l *Flatten) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor { return tensor.Flatten(c.Ctx, x, 1, -1) }, x)
}
