// SPDX-License-Identifier: Apache-2.0

// Inference loads a saved model and runs it: without gradients, with memory that is freed after every batch, in
// batches, and on several goroutines that share the one model. It prints how many predictions a second each way gives.
// See docs/inference.md; examples/regression --serve puts an HTTP service around it.
package main

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/models"
	_ "github.com/lockstep-ml/lockstep/models/mlp" // the architecture that LoadPretrained is to know
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// predictor runs a model on one goroutine: its context belongs to that goroutine, the model may be shared.
type predictor struct {
	ctx   *nn.Ctx
	model models.Model
}

// newPredictor makes a predictor for a goroutine. tree is nn.Walk(model), made once.
func newPredictor(model models.Model, tree *nn.Tree) *predictor {
	c := tensor.NewCtx(tensor.CPU()).NoGrad() // nothing is recorded for a backward pass
	return &predictor{nn.NewCtx(c, tree, false), model}
}

// predict computes a batch.
func (p *predictor) predict(xs []float32) (ys []float32) {
	p.ctx.Scope(func(c *nn.Ctx) []*tensor.Tensor { // frees the batch and all that Forward makes
		inputs := tensor.FromSlice(c.Ctx, xs, len(xs), 1)
		out := p.model.Forward(c, &data.Batch{Tensors: map[string]*tensor.Tensor{data.Inputs: inputs}, Size: len(xs)})
		ys = tensor.ToSlice[float32](c.Ctx, out.Logits) // copied out of the scope
		return nil
	})
	return ys
}

// load reads a model that SaveModel, or transformers, has written.
func load(dir string) (models.Model, *nn.Tree, error) {
	model, err := models.LoadPretrained(tensor.CPU(), dir)
	if err != nil {
		return nil, nil, err
	}
	return model, nn.Walk(model), nil
}

// together predicts in batches on several goroutines, which share the model.
func together(model models.Model, tree *nn.Tree, xs []float32, goroutines, batch int) []float32 {
	ys := make([]float32, len(xs))
	var next sync.Mutex
	var at int
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			p := newPredictor(model, tree) // its own context
			for {
				next.Lock()
				start := at
				at += batch
				next.Unlock()
				if start >= len(xs) {
					return
				}
				copy(ys[start:], p.predict(xs[start:min(start+batch, len(xs))]))
			}
		})
	}
	all.Wait()
	return ys
}

// train makes the model that is used here.
func train(ctx context.Context, dir string) error {
	a := args.Default(dir)
	a.LearningRate, a.NumTrainEpochs, a.SaveStrategy = 0.1, 20, args.StrategyNo
	t := trainer.New(line.Model(), a, trainer.WithTrainData(line.Train()))
	if _, err := t.TrainContext(ctx); err != nil {
		return err
	}
	return t.SaveModel("")
}

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	const dir = "out/inference"
	if err := train(ctx, dir); err != nil {
		return err
	}
	model, tree, err := load(dir)
	if err != nil {
		return err
	}
	one := newPredictor(model, tree)
	p.Printf("x = 1, 2, 3: y = %.2f\n", one.predict([]float32{1, 2, 3}))

	xs := make([]float32, 1<<15)
	for i := range xs {
		xs[i] = float32(i%400)/100 - 2
	}
	var first []float32
	for _, way := range []struct {
		name string
		run  func() []float32
	}{
		{"one at a time", func() (ys []float32) {
			for _, x := range xs {
				ys = append(ys, one.predict([]float32{x})...)
			}
			return ys
		}},
		{"batches of 256", func() (ys []float32) {
			for some := range slices.Chunk(xs, 256) {
				ys = append(ys, one.predict(some)...)
			}
			return ys
		}},
		{"4 goroutines, batches of 256", func() []float32 { return together(model, tree, xs, 4, 256) }},
	} {
		start := time.Now()
		ys := way.run()
		if first == nil {
			first = ys
		}
		p.Printf("%-28s %11.0f predictions/s, same as the first: %t\n", way.name,
			float64(len(xs))/time.Since(start).Seconds(), slices.Equal(ys, first))
	}
	return nil
}
