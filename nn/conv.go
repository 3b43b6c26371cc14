// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"math"

	"github.com/lockstep-ml/lockstep/tensor"
)

// Conv2D is a 2D convolution over images, like torch.nn.Conv2d: Weight [out, in/groups,
// rows, columns], Bias [out].
type Conv2D struct {
	Weight  *Parameter `nn:"weight"`
	Bias    *Parameter `nn:"bias"` // nil: none
	Options tensor.Conv2DOptions
}

// Conv2DConfig is the sizes of a Conv2D. Fields that are not set have the defaults of torch.nn.Conv2d.
type Conv2DConfig struct {
	In, Out int    // channels
	Kernel  [2]int // rows and columns
	NoBias  bool
	Options tensor.Conv2DOptions
}

// NewConv2D makes a Conv2D with torch.nn.Conv2d's initialisation, U(±1/√(in/groups·rows·columns)). It panics unless the
// sizes are positive and the groups divide both numbers of channels.
func NewConv2D(in *Init, cfg Conv2DConfig) *Conv2D {
	groups := max(cfg.Options.Groups, 1)
	wantPositive(in, "NewConv2D", size{"In", cfg.In}, size{"Out", cfg.Out}, size{"Kernel[0]", cfg.Kernel[0]},
		size{"Kernel[1]", cfg.Kernel[1]})
	if cfg.In%groups != 0 || cfg.Out%groups != 0 {
		panic(&tensor.Error{Op: "nn.NewConv2D", Where: in.path, Msg: fmt.Sprintf("%d groups of %d channels in and %d "+
			"out: want a number that divides both", groups, cfg.In, cfg.Out)})
	}
	depth, kernel := cfg.In/groups, cfg.Kernel
	bound := 1 / math.Sqrt(float64(depth*kernel[0]*kernel[1]))
	l := &Conv2D{Weight: in.Uniform("weight", bound, cfg.Out, depth, kernel[0], kernel[1]), Options: cfg.Options}
	if !cfg.NoBias {
		l.Bias = in.Uniform("bias", bound, cfg.Out)
	}
	return l
}

// Forward maps images x [N, in, H, W] to [N, out, OH, OW]; see tensor.Conv2D.
func (l *Conv2D) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.Conv2D(c.Ctx, x, c.Param(l.Weight), c.Param(l.Bias), l.Options)
	}, x)
}

// MaxPool2D takes the maximum of each window, as torch.nn.MaxPool2d.
type MaxPool2D struct{ Options tensor.Pool2DOptions }

// Forward maps images x [N, C, H, W] to [N, C, OH, OW]; see tensor.MaxPool2D.
func (l *MaxPool2D) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.MaxPool2D(c.Ctx, x, l.Options)
	}, x)
}

// AvgPool2D takes the mean of each window, as torch.nn.AvgPool2d.
type AvgPool2D struct{ Options tensor.Pool2DOptions }

// Forward maps images x [N, C, H, W] to [N, C, OH, OW]; see tensor.AvgPool2D.
func (l *AvgPool2D) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	return Unit1(c, l, func(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
		return tensor.AvgPool2D(c.Ctx, x, l.Options)
	}, x)
}
