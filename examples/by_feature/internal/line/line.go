// SPDX-License-Identifier: Apache-2.0

// Package line provides the data and model of most examples by feature: samples of y = 2x + 3 + noise, as a training
// and an evaluation set, and a model of one weight and one bias. It is no example itself.
package line

import (
	"fmt"
	"math/rand/v2"

	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Point is a sample; data.Stack makes inputs [B,1] and labels [B,1] of a batch of them.
type Point struct{ Inputs, Labels [1]float32 }

// Samples are n points with x from −2 to 2 and normal noise of standard deviation 0.1.
func Samples(n int, seed uint64) data.Slice[Point] {
	rnd := rand.New(rand.NewPCG(seed, 0))
	points := make(data.Slice[Point], n)
	for i := range points {
		x := rnd.Float32()*4 - 2
		points[i] = Point{[1]float32{x}, [1]float32{2*x + 3 + 0.1*float32(rnd.NormFloat64())}}
	}
	return points
}

// Train is the training set: 64 points.
func Train() data.Source { return data.NewSource(Samples(64, 1), data.Stack[Point]) }

// Eval is the evaluation set: 32 other points.
func Eval() data.Source { return data.NewSource(Samples(32, 2), data.Stack[Point]) }

// Model is y = a·x + b before training.
func Model() *mlp.Model {
	m, err := mlp.New(nn.NewInit(tensor.CPU(), 42), mlp.Config{Sizes: []int{1, 1}})
	if err != nil {
		panic(err) // the configuration above is valid
	}
	return m
}

// AdamW is an accelerate.OptimizerFunc: AdamW at a learning rate of 0.1.
func AdamW(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
	return optim.DefaultAdamW().New(c, []*optim.Group{{LR: 0.1, Params: params}}), nil
}

// Coefficients are a and b.
func Coefficients(m *mlp.Model) (a, b float64) {
	c := tensor.NewCtx(m.Layers[0].Weight.Device())
	return tensor.Item(c, m.Layers[0].Weight.Tensor), tensor.Item(c, m.Layers[0].Bias.Tensor)
}

// String is the model as a formula, with that of the samples to judge it by.
func String(m *mlp.Model) string {
	a, b := Coefficients(m)
	return fmt.Sprintf("y = %.3fx + %.3f (want about 2x + 3)", a, b)
}
