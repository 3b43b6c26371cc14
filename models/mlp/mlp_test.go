// SPDX-License-Identifier: Apache-2.0

package mlp_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

func newModel(t *testing.T, cfg mlp.Config) *mlp.Model {
	m, err := mlp.New(nn.NewInit(tensor.CPU(), 1), cfg)
	require.NoError(t, err)
	return m
}

func batch(inputs, labels *tensor.Tensor) *data.Batch {
	b := &data.Batch{Tensors: map[string]*tensor.Tensor{data.Inputs: inputs}}
	if labels != nil {
		b.Tensors[data.Labels] = labels
	}
	return b
}

// fit takes Adam steps on one batch and returns the last loss sum.
func fit(m *mlp.Model, b *data.Batch, steps int) (loss float64) {
	c := tensor.NewCtx(tensor.CPU())
	tree := nn.Walk(m)
	group := &optim.Group{LR: 0.05}
	group.Params = tree.Parameters()
	opt := optim.Adam(optim.DefaultAdamW()).New(c, []*optim.Group{group})
	for range steps {
		opt.ZeroGrad()
		nn.NewCtx(c, tree, true).Scope(func(c *nn.Ctx) []*tensor.Tensor {
			out := m.Forward(c, b)
			loss = tensor.Item(c.Ctx, out.Loss)
			tensor.Backward(c.Ctx, []*tensor.Tensor{out.Loss}, nil, nil)
			return nil
		})
		opt.Step(c)
	}
	return loss
}

// XOR is the function that no line can learn.
func TestLearnsXOR(t *testing.T) {
	c := tensor.NewCtx(tensor.CPU())
	x := tensor.FromSlice(c, []float32{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2)
	values := tensor.FromSlice(c, []float32{0, 1, 1, 0}, 4, 1)
	classes := tensor.FromSlice(c, []int64{0, 1, 1, 0}, 4)
	for _, activation := range []string{"", "relu", "gelu", "silu", "tanh"} {
		regression := newModel(t, mlp.Config{Sizes: []int{2, 16, 1}, Activation: activation})
		require.Less(t, fit(regression, batch(x, values), 300), 0.01, activation)
		classifier := newModel(t, mlp.Config{Sizes: []int{2, 16, 2}, Activation: activation, Loss: "cross_entropy"})
		require.Less(t, fit(classifier, batch(x, classes), 300), 0.05, activation)
		logits := tensor.ToSlice[float32](c, classifier.Forward(nn.NewCtx(c.NoGrad(), nil, false),
			batch(x, nil)).Logits)
		for i, want := range []bool{false, true, true, false} {
			require.Equal(t, want, logits[2*i+1] > logits[2*i], "%s: case %d", activation, i)
		}
	}
	line := newModel(t, mlp.Config{Sizes: []int{2, 1}})
	require.InDelta(t, 1, fit(line, batch(x, values), 300), 0.05, "a line stays at a mean squared error of 1/4")
}

func TestForward(t *testing.T) {
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).NoGrad(), nil, false)
	m := newModel(t, mlp.Config{Sizes: []int{3, 4, 2}})
	require.Equal(t, "mlp", m.ModelType())
	x := tensor.Normal(c.Ctx, tensor.Float32, 1, 0, 1, 5, 3)
	var names []string
	for _, p := range nn.NamedParameters(m) {
		names = append(names, p.Name)
	}
	require.Equal(t, []string{"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"}, names)

	out := m.Forward(c, batch(x, nil))
	require.Nil(t, out.Loss)
	require.Equal(t, []int{5, 2}, out.Logits.Shape())
	hidden := tensor.ReLU(c.Ctx, m.Layers[0].Forward(c, x))
	require.Equal(t, tensor.ReadBytes(c.Ctx, m.Layers[1].Forward(c, hidden)), tensor.ReadBytes(c.Ctx, out.Logits))

	// The loss is the sum over samples of the mean over outputs.
	y := tensor.Normal(c.Ctx, tensor.Float32, 2, 0, 1, 5, 2)
	var want float64
	got := tensor.ToSlice[float32](c.Ctx, out.Logits)
	for i, v := range tensor.ToSlice[float32](c.Ctx, y) {
		want += math.Pow(float64(got[i]-v), 2) / 2
	}
	require.InEpsilon(t, want, tensor.Item(c.Ctx, m.Forward(c, batch(x, y)).Loss), 1e-6)

	one := newModel(t, mlp.Config{Sizes: []int{3, 1}})
	flat := tensor.Ones(c.Ctx, tensor.Float32, 5)
	require.NotNil(t, one.Forward(c, batch(x, flat)).Loss, "labels [B] fit one output")
}

func TestForwardRefuses(t *testing.T) {
	c := nn.NewCtx(tensor.NewCtx(tensor.CPU()).NoGrad(), nil, false)
	m := newModel(t, mlp.Config{Sizes: []int{3, 2}})
	require.EqualError(t, tensor.Try(func() { m.Forward(c, &data.Batch{}) }),
		"data.Batch: the batch has no inputs: it has nothing")
	var e *tensor.Error
	require.ErrorAs(t, tensor.Try(func() { m.Forward(c, batch(tensor.Ones(c.Ctx, tensor.Float32, 5, 4), nil)) }), &e)
	require.Equal(t, "layers.0", e.Where)
	require.Error(t, tensor.Try(func() {
		m.Forward(c, batch(tensor.Ones(c.Ctx, tensor.Float32, 5, 3), tensor.Ones(c.Ctx, tensor.Float32, 5, 3)))
	}), "labels of another width")
}

func TestConfigErrors(t *testing.T) {
	_, err := mlp.New(nn.NewInit(tensor.CPU(), 1), mlp.Config{Sizes: []int{0}, Activation: "sine", Loss: "hinge"})
	require.EqualError(t, err,
		`mlp: config: sizes = [0]: want at least input and output; sizes = [0]: want positive widths; `+
			`activation = "sine": want relu, gelu, silu or tanh; loss = "hinge": want mse or cross_entropy`)
}
