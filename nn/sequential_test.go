// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// newClassifier is a small convolutional network with one Sequential in another.
func newClassifier(dev *tensor.Device) *nn.Sequential {
	in := nn.NewInit(dev, 1)
	head := in.Sub("3")
	return nn.NewSequential(
		nn.NewConv2D(in.Sub("0"), nn.Conv2DConfig{In: 1, Out: 4, Kernel: [2]int{3, 3}}),
		nn.NewGroupNorm(in.Sub("1"), nn.GroupNormConfig{Groups: 2, Channels: 4}),
		&nn.ReLU{},
		nn.NewSequential(&nn.Flatten{}, nn.NewLinear(head.Sub("1"), nn.LinearConfig{In: 16, Out: 8}), &nn.ReLU{},
			&nn.Dropout{P: 0.3},
			nn.NewLinear(head.Sub("4"), nn.LinearConfig{In: 8, Out: 2, NoBias: true})),
	)
}

func TestSequential(t *testing.T) {
	s := newClassifier(tensor.CPU())
	require.Equal(t, []string{"0.weight", "0.bias", "1.weight", "1.bias", "3.1.weight", "3.1.bias", "3.4.weight"},
		names(s), "as in PyTorch's state dict")
	paths := map[string]bool{}
	nn.Walk(s).Modules(func(path string, _ nn.Module) { paths[path] = true })
	require.Len(t, paths, 10, "both activations have their own path: %v", paths)

	c := env()
	x := tensor.Normal(c.Ctx, tensor.Float32, 5, 0, 1, 3, 1, 4, 4)
	want := tensor.ReLU(c.Ctx, s.Layers[1].Forward(c, s.Layers[0].Forward(c, x)))
	head := s.Layers[3].(*nn.Sequential).Layers
	want = head[4].Forward(c, tensor.ReLU(c.Ctx, head[1].Forward(c, tensor.Reshape(c.Ctx, want, 3, 16))))
	require.Equal(t, values[float32](want), values[float32](s.Forward(c, x)))

	y := nn.NewSequential().Forward(c, x)
	require.Equal(t, values[float32](x), values[float32](y), "no layers change nothing")

	var e *tensor.Error
	require.ErrorAs(t, tensor.Try(func() { nn.NewSequential(&nn.ReLU{}, nil) }), &e)
	require.Equal(t, "layer 1 is nil", e.Msg)
	head[4] = nn.NewLinear(newInit(), nn.LinearConfig{In: 7, Out: 2, NoBias: true})
	require.ErrorAs(t, tensor.Try(func() { s.Forward(nn.NewCtx(c.Ctx, nn.Walk(s), false), x) }), &e)
	require.Equal(t, "3.4", e.Where)
}

func TestSequentialClone(t *testing.T) {
	s := newClassifier(tensor.CPU())
	dev := tensor.NewCPU(1)
	defer dev.Close()
	clone, err := nn.Clone(s, dev)
	require.NoError(t, err)
	require.Equal(t, names(s), names(clone))
	x := func(dev *tensor.Device) *tensor.Tensor {
		return tensor.Normal(tensor.NewCtx(dev), tensor.Float32, 5, 0, 1, 3, 1, 4, 4)
	}
	want := values[float32](s.Forward(env(), x(tensor.CPU())))
	require.Equal(t, want, values[float32](clone.Forward(nn.NewCtx(tensor.NewCtx(dev), nil, false), x(dev))))
	p := clone.Layers[0].(*nn.Conv2D).Weight
	tensor.CopyInto(tensor.NewCtx(dev).NoGrad(), p.Tensor, tensor.ZerosLike(tensor.NewCtx(dev), p.Tensor))
	require.Equal(t, want, values[float32](s.Forward(env(), x(tensor.CPU()))), "the clone has its own weights")
}

// Recomputing the whole, or layers of it, keeps the gradients' bits, dropout included.
func TestSequentialRecompute(t *testing.T) {
	run := func(units func(s *nn.Sequential) []nn.Module) map[string][]byte {
		s := newClassifier(tensor.CPU())
		c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).WithRandom(5, 40), nn.Walk(s), true).WithRecompute(units(s))
		c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
			y := s.Forward(c, tensor.Normal(c.Ctx, tensor.Float32, 5, 0, 1, 3, 1, 4, 4))
			tensor.Backward(c.Ctx, []*tensor.Tensor{tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, y, y), nil, false)}, nil, nil)
			return nil
		})
		return gradients(c.Ctx, s)
	}
	want := run(func(*nn.Sequential) []nn.Module { return nil })
	require.Equal(t, want, run(func(s *nn.Sequential) []nn.Module { return []nn.Module{s} }))
	require.Equal(t, want, run(func(s *nn.Sequential) []nn.Module {
		return []nn.Module{s.Layers[1], s.Layers[2], s.Layers[3]}
	}))
}

func TestActivations(t *testing.T) {
	c := env()
	x := tensor.FromSlice(c.Ctx, []float64{-3, -0.5, 0, 0.5, 30}, 5)
	leaky := func(slope float64) func(x float64) float64 {
		return func(x float64) float64 { return max(x, 0) + slope*min(x, 0) }
	}
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for name, k := range map[string]struct {
		layer nn.Layer
		want  func(x float64) float64
	}{
		"ReLU":          {&nn.ReLU{}, leaky(0)},
		"LeakyReLU":     {&nn.LeakyReLU{Slope: 0.2}, leaky(0.2)},
		"default slope": {&nn.LeakyReLU{}, leaky(0.01)},
		"ELU":           {&nn.ELU{Alpha: 2}, func(x float64) float64 { return max(x, 0) + 2*math.Expm1(min(x, 0)) }},
		"default alpha": {&nn.ELU{}, func(x float64) float64 { return max(x, 0) + math.Expm1(min(x, 0)) }},
		"Softplus": {&nn.Softplus{Beta: 2, Threshold: 70}, func(x float64) float64 {
			return math.Log1p(math.Exp(2*x)) / 2
		}},
		"default softplus": {&nn.Softplus{}, func(x float64) float64 { return math.Log1p(math.Exp(x)) }},
		"GELU":             {&nn.GELU{}, func(x float64) float64 { return x / 2 * (1 + math.Erf(x/math.Sqrt2)) }},
		"GELU tanh": {&nn.GELU{Tanh: true}, func(x float64) float64 {
			return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		}},
		"SiLU":    {&nn.SiLU{}, func(x float64) float64 { return x * sigmoid(x) }},
		"Tanh":    {&nn.Tanh{}, math.Tanh},
		"Sigmoid": {&nn.Sigmoid{}, sigmoid},
	} {
		var want []float64
		for _, v := range values[float64](x) {
			want = append(want, k.want(v))
		}
		require.InDeltaSlice(t, want, values[float64](k.layer.Forward(c, x)), 1e-12, name)
	}
	require.Equal(t, []int{2, 12}, (&nn.Flatten{}).Forward(c, tensor.Zeros(c.Ctx, tensor.Float32, 2, 3, 1, 4)).Shape())
}

func TestGroupNorm(t *testing.T) {
	c := training()
	l := nn.NewGroupNorm(newInit(), nn.GroupNormConfig{Groups: 2, Channels: 4})
	require.Equal(t, 1e-5, l.Eps)
	l.Eps = 0
	l.Weight, l.Bias = param(c, []float32{1, 2, 1, 1}, 4), param(c, []float32{0, 10, 0, 0}, 4)
	x := tensor.FromSlice(c.Ctx, []float32{1, 3, 5, 7, 0, 2, 2, 0}, 1, 4, 2) // groups 1 3 5 7 and 0 2 2 0
	const s = 2.2360679
	require.InDeltaSlice(t, []float32{-3 / s, -1 / s, 10 + 2/s, 10 + 6/s, -1, 1, 1, -1},
		values[float32](l.Forward(c, x)), 1e-5)
	require.Equal(t, []string{"weight", "bias"}, names(l))
	require.Equal(t, map[string]bool{"weight": true}, nn.DecayNames(l), "as in HuggingFace's Trainer")
	l.Weight, l.Bias = nil, nil
	require.InDelta(t, 3/s, values[float32](l.Forward(env(), x))[3], 1e-5)
	require.ErrorContains(t, tensor.Try(func() {
		nn.NewGroupNorm(newInit(), nn.GroupNormConfig{Groups: 3, Channels: 4})
	}),
		"3 groups of 4 channels")
}
