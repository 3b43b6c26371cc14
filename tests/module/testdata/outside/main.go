// SPDX-License-Identifier: Apache-2.0

// Outside is a program of another module: it trains its own model, saves it and loads it again.
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/checkpoint"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/tensor/safetensors"
	"github.com/lockstep-ml/lockstep/trainer"
)

// net is a model that no registered architecture describes.
type net struct {
	Up   *nn.Linear `nn:"up"`
	Down *nn.Linear `nn:"down"`
}

func newNet(seed uint64) *net {
	in := nn.NewInit(tensor.CPU(), seed)
	return &net{
		Up:   nn.NewLinear(in.Sub("up"), nn.LinearConfig{In: 2, Out: 8}),
		Down: nn.NewLinear(in.Sub("down"), nn.LinearConfig{In: 8, Out: 1}),
	}
}

func (m *net) Forward(c *nn.Ctx, b *data.Batch) models.Output {
	return models.NewOutput(nn.Unit(c, m, func(c *nn.Ctx, in []*tensor.Tensor) []*tensor.Tensor {
		y := m.Down.Forward(c, tensor.GELU(c.Ctx, m.Up.Forward(c, in[0])))
		if b.Tensors[data.Labels] == nil {
			return []*tensor.Tensor{y}
		}
		return []*tensor.Tensor{y, nn.MSESum(c, y, b.Tensors[data.Labels])}
	}, b.Required(data.Inputs)))
}

type sample struct {
	Inputs [2]float32
	Labels [1]float32
}

// weights are all parameters of the model.
func weights(m nn.Module) (list []float32) {
	c := tensor.NewCtx(tensor.CPU())
	for _, p := range nn.NamedParameters(m) {
		list = append(list, tensor.ToSlice[float32](c, p.Tensor)...)
	}
	return list
}

func run() error {
	var samples data.Slice[sample]
	for rnd := rand.New(rand.NewPCG(1, 2)); len(samples) < 32; {
		x, y := rnd.Float32(), rnd.Float32()
		samples = append(samples, sample{[2]float32{x, y}, [1]float32{x - y}})
	}
	m := newNet(1)
	a := args.Default("out/outside")
	a.OverwriteOutputDir = true
	a.MaxSteps, a.SaveSteps = 8, 4
	t := trainer.New(m, a, trainer.WithTrainData(data.NewSource(samples, data.Stack[sample])))
	if _, err := t.Train(); err != nil {
		return err
	}
	if err := t.SaveModel("out/model"); err != nil {
		return err
	}
	if err := models.SaveWeights(m, "out/net.safetensors"); err != nil {
		return err
	}
	ck, err := (&checkpoint.Store{Dir: "out/outside"}).Latest(context.Background())
	if err != nil {
		return err
	}
	for _, path := range []string{"out/model", "out/net.safetensors", ck.Path} {
		again := newNet(2)
		if err := models.LoadWeights(again, path); err != nil {
			return err
		}
		fmt.Printf("%s: the same weights: %t\n", filepath.ToSlash(path), slices.Equal(weights(m), weights(again)))
	}
	set, err := safetensors.Open("out/net.safetensors")
	if err != nil {
		return err
	}
	up, _ := set.Lookup("up.weight")
	fmt.Println(set.Names(), up.Shape)

	c := tensor.NewCtx(tensor.CPU())
	half := tensor.FromSlice(c, []tensor.BF16{tensor.ToBF16(1.5)}, 1)
	fmt.Println(half.DType(), tensor.ToSlice[tensor.BF16](c, half)[0].Float32())
	return set.Close()
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
