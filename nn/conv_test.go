// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

func TestConv2D(t *testing.T) {
	c := env()
	l := &nn.Conv2D{Weight: param(c, []float32{1, 2, 3, 4}, 1, 1, 2, 2), Bias: param(c, []float32{100}, 1),
		Options: tensor.Conv2DOptions{Stride: [2]int{1, 2}, Padding: [2]int{0, 1}}}
	x := tensor.FromSlice(c.Ctx, []float32{1, 2, 3, 4, 5, 6}, 1, 1, 2, 3)
	y := l.Forward(c, x)
	require.Equal(t, []int{1, 1, 1, 2}, y.Shape())
	require.Equal(t, []float32{100 + 2*1 + 4*4, 100 + 2 + 2*3 + 3*5 + 4*6}, tensor.ToSlice[float32](c.Ctx, y))
	l.Bias = nil
	require.Equal(t, []float32{18, 47}, tensor.ToSlice[float32](c.Ctx, l.Forward(c, x)))
}

func TestNewConv2D(t *testing.T) {
	l := nn.NewConv2D(newInit(), nn.Conv2DConfig{In: 6, Out: 4, Kernel: [2]int{3, 5},
		Options: tensor.Conv2DOptions{Groups: 2}})
	require.Equal(t, []int{4, 3, 3, 5}, l.Weight.Shape())
	require.Equal(t, []int{4}, l.Bias.Shape())
	require.Equal(t, 2, l.Options.Groups)
	bound, largest := 1/math.Sqrt(3*3*5), 0.0
	for _, v := range tensor.ToSlice[float32](env().Ctx, l.Weight.Tensor) {
		largest = max(largest, math.Abs(float64(v)))
	}
	require.LessOrEqual(t, largest, bound)
	require.Greater(t, largest, 0.9*bound)
	require.Nil(t, nn.NewConv2D(newInit(), nn.Conv2DConfig{In: 1, Out: 1, Kernel: [2]int{1, 1}, NoBias: true}).Bias)
	names := nn.DecayNames(l)
	require.True(t, names["weight"])
	require.False(t, names["bias"])
}

// convNet has every layer for images.
type convNet struct {
	Stem *nn.Conv2D
	Max  *nn.MaxPool2D
	Deep *nn.Conv2D
	Mean *nn.AvgPool2D
}

func newConvNet() *convNet {
	in := newInit()
	return &convNet{
		Stem: nn.NewConv2D(in.Sub("stem"), nn.Conv2DConfig{In: 2, Out: 4, Kernel: [2]int{3, 3},
			Options: tensor.Conv2DOptions{Padding: [2]int{1, 1}}}),
		Max:  &nn.MaxPool2D{Options: tensor.Pool2DOptions{Kernel: [2]int{2, 2}}},
		Deep: nn.NewConv2D(in.Sub("deep"), nn.Conv2DConfig{In: 4, Out: 3, Kernel: [2]int{1, 1}, NoBias: true}),
		Mean: &nn.AvgPool2D{Options: tensor.Pool2DOptions{Kernel: [2]int{3, 3}}},
	}
}

func (m *convNet) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return nn.Unit1(c, m, func(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
		x = m.Max.Forward(c, m.Stem.Forward(c, x))
		return m.Mean.Forward(c, m.Deep.Forward(c, x))
	}, x)
}

// gradients are those of the sum of squares of the net's result, by parameter.
func (m *convNet) gradients(recompute bool) map[string][]byte {
	out := map[string][]byte{}
	tree := nn.Walk(m)
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()), tree, true)
	if recompute {
		c = c.WithRecompute([]nn.Module{m})
	}
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		y := m.Forward(c, tensor.Normal(c.Ctx, tensor.Float32, 5, 0, 1, 3, 2, 6, 6))
		var wrt []*tensor.Tensor
		for _, p := range tree.Parameters() {
			wrt = append(wrt, p.Tensor)
		}
		for i, g := range tensor.Backward(c.Ctx,
			[]*tensor.Tensor{tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, y), nil, false)}, nil, wrt) {
			out[tree.Parameters()[i].Name] = tensor.ReadBytes(c.NoGrad(), g)
		}
		return nil
	})
	return out
}

func TestConvNetGradients(t *testing.T) {
	m := newConvNet()
	want := m.gradients(false)
	require.Len(t, want, 3)
	for _, name := range []string{"stem.weight", "stem.bias", "deep.weight"} {
		require.NotEqual(t, make([]byte, len(want[name])), want[name], name)
	}
	require.Equal(t, want, m.gradients(true), "with recomputation")
	twin, err := nn.Clone(m, tensor.CPU())
	require.NoError(t, err)
	require.Equal(t, want, twin.gradients(false), "of a clone")
}

func TestPool2DLayers(t *testing.T) {
	c := env()
	x := tensor.FromSlice(c.Ctx, []float32{1, 8, 3, 4, 5, 6, 7, 2}, 1, 2, 2, 2)
	opt := tensor.Pool2DOptions{Kernel: [2]int{2, 2}}
	y := (&nn.MaxPool2D{Options: opt}).Forward(c, x)
	require.Equal(t, []int{1, 2, 1, 1}, y.Shape())
	require.Equal(t, []float32{8, 7}, tensor.ToSlice[float32](c.Ctx, y))
	require.Equal(t, []float32{4, 5}, tensor.ToSlice[float32](c.Ctx, (&nn.AvgPool2D{Options: opt}).Forward(c, x)))
}
