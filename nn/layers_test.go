// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// env is a context to run modules in, outside of training.
func env() *nn.Ctx { return nn.NewCtx(tensor.NewCtx(tensor.CPU()), nil, false) }

func param(c *nn.Ctx, x []float32, shape ...int) *nn.Parameter {
	return nn.NewParameter(tensor.FromSlice(c.Ctx, x, shape...))
}

func TestLinear(t *testing.T) {
	c := env()
	l := &nn.Linear{Weight: param(c, []float32{1, 2, 3, 4, 5, 6}, 3, 2), Bias: param(c, []float32{10, 20, 30}, 3)}
	x := tensor.FromSlice(c.Ctx, []float32{1, 1, 1, -1, 0, 2, 3, 0}, 2, 2, 2)
	y := l.Forward(c, x)
	require.Equal(t, []int{2, 2, 3}, y.Shape())
	require.Equal(t, []float32{13, 27, 41, 9, 19, 29, 14, 28, 42, 13, 29, 45}, tensor.ToSlice[float32](c.Ctx, y))
	l.Bias = nil
	require.Equal(t, []float32{3, 7, 11}, tensor.ToSlice[float32](c.Ctx,
		l.Forward(c, tensor.Ones(c.Ctx, tensor.Float32, 2))))

	require.Nil(t, nn.NewLinear(newInit(), nn.LinearConfig{In: 2, Out: 3, NoBias: true}).Bias)
	n := nn.NewLinear(newInit(), nn.LinearConfig{In: 2, Out: 3})
	require.Equal(t, []int{3, 2}, n.Weight.Shape())
	require.Equal(t, []int{3}, n.Bias.Shape())
}

func TestEmbedding(t *testing.T) {
	c := env()
	e := &nn.Embedding{Weight: param(c, []float32{0, 1, 10, 11, 20, 21}, 3, 2)}
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		y := e.Forward(c, tensor.FromSlice(c.Ctx, []int64{2, 0, 2, 1}, 2, 2))
		require.Equal(t, []int{2, 2, 2}, y.Shape())
		require.Equal(t, []float32{20, 21, 0, 1, 20, 21, 10, 11}, tensor.ToSlice[float32](c.Ctx, y))
		tensor.Backward(c.Ctx, []*tensor.Tensor{tensor.Sum(c.Ctx, y, nil, false)}, nil, nil)
		return nil
	})
	require.Equal(t, []float32{1, 1, 1, 1, 2, 2}, tensor.ToSlice[float32](c.Ctx, e.Weight.Grad()))
	require.Error(t, tensor.Try(func() { e.Forward(c, tensor.FromSlice(c.Ctx, []int64{3}, 1)) }),
		"an id beyond the table")
}

func TestNorms(t *testing.T) {
	c := env()
	x := []float64{1, -2, 4, 0.5, 3, 3, 3, 3, 1e4, 0, 0, -1e4}
	w, b := []float64{1, 2, 0.5, -1}, []float64{0.1, 0, -3, 1}
	const eps, width = 1e-3, 4
	var layer, rms []float64
	for r := 0; r < len(x); r += width {
		var mean, variance, square float64
		for _, v := range x[r : r+width] {
			mean += v / width
			square += v * v / width
		}
		for _, v := range x[r : r+width] {
			variance += (v - mean) * (v - mean) / width
		}
		for i, v := range x[r : r+width] {
			layer = append(layer, (v-mean)/math.Sqrt(variance+eps)*w[i]+b[i])
			rms = append(rms, v/math.Sqrt(square+eps)*w[i])
		}
	}
	require.Equal(t, 1e-5, nn.NewLayerNorm(newInit(), nn.LayerNormConfig{Dim: width}).Eps)
	require.Equal(t, 1e-6, nn.NewRMSNorm(newInit(), nn.RMSNormConfig{Dim: width}).Eps)
	init := newInit().As(tensor.Float64)
	ln := nn.NewLayerNorm(init, nn.LayerNormConfig{Dim: width, Eps: eps})
	rn := nn.NewRMSNorm(init, nn.RMSNormConfig{Dim: width, Eps: eps})
	require.Equal(t, []float64{1, 1, 1, 1}, tensor.ToSlice[float64](c.Ctx, ln.Weight.Tensor))
	require.Equal(t, []float64{0, 0, 0, 0}, tensor.ToSlice[float64](c.Ctx, ln.Bias.Tensor))
	require.Equal(t, []float64{1, 1, 1, 1}, tensor.ToSlice[float64](c.Ctx, rn.Weight.Tensor))
	for _, p := range []*nn.Parameter{ln.Weight, rn.Weight} {
		tensor.CopyInto(c.NoGrad(), p.Tensor, tensor.FromSlice(c.Ctx, w, width))
	}
	tensor.CopyInto(c.NoGrad(), ln.Bias.Tensor, tensor.FromSlice(c.Ctx, b, width))
	in := tensor.FromSlice(c.Ctx, x, 3, 1, width)
	y := ln.Forward(c, in)
	require.Equal(t, []int{3, 1, width}, y.Shape())
	require.InDeltaSlice(t, layer, tensor.ToSlice[float64](c.Ctx, y), 1e-9)
	require.InDeltaSlice(t, rms, tensor.ToSlice[float64](c.Ctx, rn.Forward(c, in)), 1e-9)

	ln.Weight, ln.Bias, rn.Weight = nil, nil, nil
	plain := tensor.ToSlice[float64](c.Ctx, ln.Forward(c, in))
	require.InDelta(t, (layer[0]-b[0])/w[0], plain[0], 1e-9)
	require.InDelta(t, rms[3]/w[3], tensor.ToSlice[float64](c.Ctx, rn.Forward(c, in))[3], 1e-9)
}

func TestDropout(t *testing.T) {
	root := tensor.NewCtx(tensor.CPU())
	d := &nn.Dropout{P: 0.25}
	const n, width = 50, 400
	x := tensor.Ones(root, tensor.Float32, n, width).SetRequiresGrad(true)
	require.Same(t, x, d.Forward(nn.NewCtx(root, nil, false), x), "not training")

	c := nn.NewCtx(root.WithRandom(1, 0), nil, true)
	var out []float32
	c.Scope(func(c *nn.Ctx) []*tensor.Tensor {
		y := d.Forward(c, x)
		out = tensor.ToSlice[float32](root, y)
		tensor.Backward(c.Ctx, []*tensor.Tensor{tensor.Sum(c.Ctx, y, nil, false)}, nil, nil)
		return nil
	})
	kept := 0
	for _, v := range out {
		if v != 0 {
			require.InDelta(t, 1/0.75, v, 1e-6)
			kept++
		}
	}
	require.InDelta(t, 0.75, float64(kept)/(n*width), 5*math.Sqrt(0.25*0.75/(n*width)))
	require.Equal(t, out, tensor.ToSlice[float32](root, x.Grad()), "the gradient passes the same mask")

	require.NotEqual(t, out, tensor.ToSlice[float32](root, d.Forward(c, x)), "the next call draws again")
	require.Equal(t, out, tensor.ToSlice[float32](root, d.Forward(nn.NewCtx(root.WithRandom(1, 0), nil, true), x)))
	require.Error(t, tensor.Try(func() { (&nn.Dropout{P: 1.5}).Forward(c, x) }))
	require.Equal(t, tensor.ReadBytes(root, x), tensor.ReadBytes(root, (&nn.Dropout{}).Forward(c, x)), "P = 0")
}

// What a parameter starts as depends on the seed and its path, not on what was made before.
func TestInit(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	bits := func(p *nn.Parameter) []byte { return tensor.ReadBytes(c, p.Tensor) }
	in := nn.NewInit(tensor.CPU(), 7)
	a := in.Sub("h").Sub("0").Normal("weight", 1, 5, 7)
	in.Sub("h").Sub("1").Normal("weight", 1, 5, 7)
	require.Equal(t, bits(a), bits(nn.NewInit(tensor.CPU(), 7).Sub("h.0").Normal("weight", 1, 5, 7)))
	require.NotEqual(t, bits(a), bits(in.Sub("h.1").Normal("weight", 1, 5, 7)))
	require.NotEqual(t, bits(a), bits(in.Sub("h.0").Normal("bias", 1, 5, 7)))
	require.NotEqual(t, bits(a), bits(nn.NewInit(tensor.CPU(), 8).Sub("h.0").Normal("weight", 1, 5, 7)))
	require.True(t, a.IsLeaf())
	require.Equal(t, tensor.BFloat16, in.As(tensor.BFloat16).Sub("x").Full("w", 1, 2).DType())
	require.Equal(t, tensor.Float32, in.Full("w", 1, 2).DType())
}

func TestInitDistributions(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	const out, fanIn = 300, 200
	in := nn.NewInit(tensor.CPU(), 1)
	for _, k := range []struct {
		name       string
		p          *nn.Parameter
		std, bound float64 // bound 0: none
	}{
		{"normal", in.Normal("a", 0.02, out, fanIn), 0.02, 0},
		{"uniform", in.Uniform("b", 0.3, out, fanIn), 0.3 / math.Sqrt(3), 0.3},
		{"xavier uniform", in.XavierUniform("c", out, fanIn), math.Sqrt(2.0 / 500), math.Sqrt(6.0 / 500)},
		{"xavier normal", in.XavierNormal("d", out, fanIn), math.Sqrt(2.0 / 500), 0},
		{"kaiming uniform", in.KaimingUniform("e", out, fanIn), 1 / math.Sqrt(3*200), 1 / math.Sqrt(200)},
		{"kaiming normal", in.KaimingNormal("f", out, fanIn), math.Sqrt(2.0 / 200), 0},
		{"linear", nn.NewLinear(in, nn.LinearConfig{In: fanIn, Out: out}).Weight, 1 / math.Sqrt(3*200),
			1 / math.Sqrt(200)},
		{"embedding", nn.NewEmbedding(in, nn.EmbeddingConfig{Rows: out, Dim: fanIn, Std: 0.5}).Weight, 0.5, 0},
		{"embedding by default", nn.NewEmbedding(in, nn.EmbeddingConfig{Rows: out, Dim: fanIn}).Weight, 1, 0},
	} {
		require.Equal(t, []int{out, fanIn}, k.p.Shape(), k.name)
		var sum, square, most float64
		for _, x := range tensor.ToSlice[float32](c, k.p.Tensor) {
			sum += float64(x)
			square += float64(x) * float64(x)
			most = max(most, math.Abs(float64(x)))
		}
		const n = out * fanIn
		require.InDelta(t, 0, sum/n, 5*k.std/math.Sqrt(n), k.name)
		require.InEpsilon(t, k.std, math.Sqrt(square/n), 0.02, k.name)
		if k.bound > 0 {
			require.LessOrEqual(t, most, k.bound, k.name)
			require.Greater(t, most, 0.99*k.bound, k.name)
		} else {
			require.Greater(t, most, 3*k.std, k.name)
		}
	}
}
