// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/nn/nntest"
	"github.com/lockstep-ml/lockstep/tensor"
)

// layers is the table of the layers of one input.
var layers = []nntest.Case{
	{Name: "Linear", In: []int{3, 2, 5}, New: func(in *nn.Init) nn.Layer {
		return nn.NewLinear(in, nn.LinearConfig{In: 5, Out: 4})
	}},
	{Name: "LinearNoBias", In: []int{3, 5}, New: func(in *nn.Init) nn.Layer {
		return nn.NewLinear(in, nn.LinearConfig{In: 5, Out: 4, NoBias: true})
	}},
	{Name: "LMHead", In: []int{3, 2, 5}, New: func(in *nn.Init) nn.Layer {
		return &nn.LMHead{Weight: in.Normal("weight", 1, 4, 5)}
	}},
	{Name: "Conv2D", In: []int{2, 4, 5, 5}, New: func(in *nn.Init) nn.Layer {
		return nn.NewConv2D(in, nn.Conv2DConfig{In: 4, Out: 6, Kernel: [2]int{3, 3},
			Options: tensor.Conv2DOptions{Groups: 2, Padding: [2]int{1, 1}}})
	}},
	{Name: "LayerNorm", In: []int{3, 2, 5}, New: func(in *nn.Init) nn.Layer {
		return nn.NewLayerNorm(in, nn.LayerNormConfig{Dim: 5})
	}},
	{Name: "RMSNorm", In: []int{3, 2, 5}, New: func(in *nn.Init) nn.Layer {
		return nn.NewRMSNorm(in, nn.RMSNormConfig{Dim: 5, Eps: 1e-5})
	}},
	{Name: "RMSNormOffset", In: []int{3, 2, 5}, New: func(in *nn.Init) nn.Layer {
		return nn.NewRMSNorm(in, nn.RMSNormConfig{Dim: 5, Offset: 1})
	}},
	{Name: "GatedMLP", In: []int{3, 2, 5}, New: func(in *nn.Init) nn.Layer {
		return nn.NewGatedMLP(in, nn.GatedMLPConfig{Width: 5, Inner: 7, Std: 0.5})
	}},
	{Name: "GatedMLPGELU", In: []int{3, 5}, New: func(in *nn.Init) nn.Layer {
		return nn.NewGatedMLP(in, nn.GatedMLPConfig{Width: 5, Inner: 7, NoBias: true,
			Activation: tensor.ActivationGELUTanh})
	}},
	{Name: "GroupNorm", In: []int{3, 4, 3}, New: func(in *nn.Init) nn.Layer {
		return nn.NewGroupNorm(in, nn.GroupNormConfig{Groups: 2, Channels: 4})
	}},
	{Name: "BatchNorm", In: []int{3, 4, 3}, New: func(in *nn.Init) nn.Layer {
		return nn.NewBatchNorm(in, nn.BatchNormConfig{Channels: 4})
	}},
	{Name: "BatchNormTraining", In: []int{3, 4, 3}, Training: true, New: func(in *nn.Init) nn.Layer {
		return nn.NewBatchNorm(in, nn.BatchNormConfig{Channels: 4})
	}},
	{Name: "Dropout", In: []int{3, 4}, Training: true, New: func(*nn.Init) nn.Layer { return &nn.Dropout{P: 0.4} }},
	{Name: "MaxPool2D", In: []int{2, 3, 4, 4}, New: func(*nn.Init) nn.Layer {
		return &nn.MaxPool2D{Options: tensor.Pool2DOptions{Kernel: [2]int{2, 2}}}
	}},
	{Name: "AvgPool2D", In: []int{2, 3, 4, 4}, New: func(*nn.Init) nn.Layer {
		return &nn.AvgPool2D{Options: tensor.Pool2DOptions{Kernel: [2]int{2, 2}}}
	}},
	{Name: "ReLU", In: []int{3, 4}, New: func(*nn.Init) nn.Layer { return &nn.ReLU{} }},
	{Name: "LeakyReLU", In: []int{3, 4}, New: func(*nn.Init) nn.Layer { return &nn.LeakyReLU{} }},
	{Name: "ELU", In: []int{3, 4}, New: func(*nn.Init) nn.Layer { return &nn.ELU{} }},
	{Name: "Softplus", In: []int{3, 4}, New: func(*nn.Init) nn.Layer { return &nn.Softplus{} }},
	{Name: "GELU", In: []int{3, 4}, New: func(*nn.Init) nn.Layer { return &nn.GELU{} }},
	{Name: "GELUTanh", In: []int{3, 4}, New: func(*nn.Init) nn.Layer { return &nn.GELU{Tanh: true} }},
	{Name: "SiLU", In: []int{3, 4}, New: func(*nn.Init) nn.Layer { return &nn.SiLU{} }},
	{Name: "Tanh", In: []int{3, 4}, New: func(*nn.Init) nn.Layer { return &nn.Tanh{} }},
	{Name: "Sigmoid", In: []int{3, 4}, New: func(*nn.Init) nn.Layer { return &nn.Sigmoid{} }},
	{Name: "Flatten", In: []int{3, 4, 2}, New: func(*nn.Init) nn.Layer { return &nn.Flatten{} }},
	{Name: "Sequential", In: []int{3, 4}, New: func(in *nn.Init) nn.Layer {
		return nn.NewSequential(nn.NewLinear(in.Sub("0"), nn.LinearConfig{In: 4, Out: 5}), &nn.SiLU{},
			&nn.Dropout{P: 0.5})
	}},
}

var forward = regexp.MustCompile(`func \(\w* ?\*(\w+)\) Forward\(c \*Ctx, x \*tensor\.Tensor\) \*tensor\.Tensor`)

// Every layer of the package has a row.
func TestLayersHaveRows(t *testing.T) {
	rows := map[string]bool{}
	for _, k := range layers {
		rows[reflect.TypeOf(k.New(newInit())).Elem().Name()] = true
	}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range forward.FindAllStringSubmatch(string(text), -1) {
			require.True(t, rows[m[1]], "%s has no row in the table of layers", m[1])
			found++
		}
	}
	require.Greater(t, found, 15, "the search lost the layers")
}

func TestLayers(t *testing.T) {
	for _, k := range layers {
		t.Run(k.Name, func(t *testing.T) { nntest.Run(t, k) })
	}
}

// constructors are the functions that make layers with parameters, each with a configuration that is wrong in all
// sizes.
var constructors = map[string]func(in *nn.Init){
	"NewLinear":    func(in *nn.Init) { nn.NewLinear(in, nn.LinearConfig{}) },
	"NewEmbedding": func(in *nn.Init) { nn.NewEmbedding(in, nn.EmbeddingConfig{Rows: -1}) },
	"NewLayerNorm": func(in *nn.Init) { nn.NewLayerNorm(in, nn.LayerNormConfig{}) },
	"NewRMSNorm":   func(in *nn.Init) { nn.NewRMSNorm(in, nn.RMSNormConfig{}) },
	"NewConv2D":    func(in *nn.Init) { nn.NewConv2D(in, nn.Conv2DConfig{In: 3}) },
	"NewMultiheadAttention": func(in *nn.Init) {
		nn.NewMultiheadAttention(in, nn.AttentionConfig{Heads: 2})
	},
	"NewBatchNorm": func(in *nn.Init) { nn.NewBatchNorm(in, nn.BatchNormConfig{Channels: -2}) },
	"NewGatedMLP":  func(in *nn.Init) { nn.NewGatedMLP(in, nn.GatedMLPConfig{Width: 3}) },
	"NewGroupNorm": func(in *nn.Init) { nn.NewGroupNorm(in, nn.GroupNormConfig{Groups: 1}) },
}

var constructor = regexp.MustCompile(`(?m)^func (New\w+)\(in \*Init, `)

// Every constructor that takes an Init refuses sizes below 1, by their names.
func TestConstructorsRefuseSizes(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range constructor.FindAllStringSubmatch(string(text), -1) {
			found++
			require.Contains(t, constructors, m[1], "a constructor without a row")
		}
	}
	require.Len(t, constructors, found)
	for name, make := range constructors {
		err := tensor.Try(func() { make(newInit().Sub("block")) })
		require.ErrorContains(t, err, "nn."+name+": ")
		require.ErrorContains(t, err, "want at least 1 (in block)")
	}
	require.EqualError(t, tensor.Try(func() { nn.NewLinear(newInit(), nn.LinearConfig{In: 3}) }),
		"nn.NewLinear: Out is 0: want at least 1")
	require.ErrorContains(t, tensor.Try(func() {
		nn.NewConv2D(newInit(), nn.Conv2DConfig{In: 4, Out: 3, Kernel: [2]int{1, 1},
			Options: tensor.Conv2DOptions{Groups: 2}})
	}), "2 groups of 4 channels in and 3 out: want a number that divides both")
}
