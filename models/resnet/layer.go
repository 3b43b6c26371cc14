// SPDX-License-Identifier: Apache-2.0

package resnet

import (
	"math"
	"strconv"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Convolution is a convolution without bias, batch norm and, unless it is empty, an
// activation. Padding keeps the size of images except for the stride.
type Convolution struct {
	Convolution   *nn.Conv2D    `nn:"convolution"`
	Normalization *nn.BatchNorm `nn:"normalization"`
	Activation    string
}

// newConvolution draws the kernels with standard deviation √(2/(out·size²)), He et al. 2015.
func newConvolution(in *nn.Init, from, to, size, stride int, activation string) *Convolution {
	conv := &nn.Conv2D{
		Weight:  in.Sub("convolution").Normal("weight", math.Sqrt(2/float64(to*size*size)), to, from, size, size),
		Options: tensor.Conv2DOptions{Stride: [2]int{stride, stride}, Padding: [2]int{size / 2, size / 2}},
	}
	norm := nn.NewBatchNorm(in.Sub("normalization"), nn.BatchNormConfig{Channels: to})
	return &Convolution{Convolution: conv, Normalization: norm, Activation: activation}
}

// Forward maps images [N,C,H,W] to [N,O,H/stride,W/stride], rounded up.
func (l *Convolution) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, l, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		x = l.Normalization.Forward(c, l.Convolution.Forward(c, x))
		if l.Activation == "" {
			return x
		}
		return activations[l.Activation](c.Ctx, x)
	}, x)
}

// Layer adds what its convolutions make of the images to the images (He et al. 2016).
type Layer struct {
	Shortcut   *Convolution   `nn:"shortcut"` // 1×1, where the shape changes; nil: the images as they are
	Layer      []*Convolution `nn:"layer"`
	Activation string
}

// newLayer makes a residual layer. Activations inside are ReLU whatever hidden_act says, as
// in transformers.
func newLayer(in *nn.Init, cfg Config, from, to, stride int) *Layer {
	l := &Layer{Activation: cfg.HiddenAct}
	if from != to || stride != 1 {
		l.Shortcut = newConvolution(in.Sub("shortcut"), from, to, 1, stride, "")
	}
	inside := in.Sub("layer")
	if cfg.LayerType == Basic {
		l.Layer = []*Convolution{
			newConvolution(inside.Sub("0"), from, to, 3, stride, "relu"),
			newConvolution(inside.Sub("1"), to, to, 3, 1, ""),
		}
		return l
	}
	first, second := 1, stride
	if cfg.DownsampleInBottleneck {
		first, second = stride, 1
	}
	narrow := to / reduction
	l.Layer = []*Convolution{
		newConvolution(inside.Sub("0"), from, narrow, 1, first, "relu"),
		newConvolution(inside.Sub("1"), narrow, narrow, 3, second, "relu"),
		newConvolution(inside.Sub("2"), narrow, to, 1, 1, ""),
	}
	return l
}

// Forward maps images [N,C,H,W] to [N,O,H/stride,W/stride], rounded up.
func (l *Layer) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, l, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		y := x
		for _, conv := range l.Layer {
			y = conv.Forward(c, y)
		}
		if l.Shortcut != nil {
			x = l.Shortcut.Forward(c, x)
		}
		return activations[l.Activation](c.Ctx, tensor.Add(c.Ctx, y, x))
	}, x)
}

// Stage is layers of one number of channels, of which the first may make images smaller.
type Stage struct {
	Layers []*Layer `nn:"layers"`
}

func newStage(in *nn.Init, cfg Config, from, to, stride, depth int) *Stage {
	s := &Stage{}
	for i := range depth {
		s.Layers = append(s.Layers, newLayer(in.Sub("layers").Sub(strconv.Itoa(i)), cfg, from, to, stride))
		from, stride = to, 1
	}
	return s
}

// Forward runs the layers one after the other.
func (s *Stage) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, s, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		for _, l := range s.Layers {
			x = l.Forward(c, x)
		}
		return x
	}, x)
}
