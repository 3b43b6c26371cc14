// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/accelerate/feed"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/callbacks"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/mlp"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// exampleSample is one sample of y = 2x + 3. The fields become the tensors inputs [B,1] and labels [B,1] of a batch.
type exampleSample struct{ Inputs, Labels [1]float32 }

// Train a line through 64 points and evaluate it.
func Example() {
	var samples data.Slice[exampleSample]
	for i := range 64 {
		x := float32(i)/16 - 2
		samples = append(samples, exampleSample{Inputs: [1]float32{x}, Labels: [1]float32{2*x + 3}})
	}
	points := data.NewSource(samples, data.Stack[exampleSample])
	model, err := mlp.New(nn.NewInit(tensor.CPU(), 42), mlp.Config{Sizes: []int{1, 1}})
	if err != nil {
		panic(err)
	}

	dir, err := os.MkdirTemp("", "line")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	a := args.Default(dir) // HuggingFace's defaults; dir is the run's output folder
	a.LearningRate, a.NumTrainEpochs, a.SaveStrategy = 0.1, 20, args.StrategyNo
	t := trainer.New(model, a, trainer.WithTrainData(points), trainer.WithEvalData(points), trainer.WithDisplay(nil))
	res, err := t.Train()
	if err != nil {
		panic(err) // the arguments, the data or the run; New itself does not fail
	}
	metrics, err := t.Evaluate()
	if err != nil {
		panic(err)
	}
	fmt.Printf("%d steps, eval_loss %.2f\n", res.GlobalStep, metrics["eval_loss"])
	// Output: 160 steps, eval_loss 0.00
}

// What people override of HuggingFace's Trainer: compute_loss, get_train_dataloader and log.
func Example_overrides() {
	points := data.NewSource(data.Slice[exampleSample]{
		{Inputs: [1]float32{-1}, Labels: [1]float32{1}}, {Inputs: [1]float32{1}, Labels: [1]float32{5}},
	}, data.Stack[exampleSample])
	model, err := mlp.New(nn.NewInit(tensor.CPU(), 42), mlp.Config{Sizes: []int{1, 1}})
	if err != nil {
		panic(err)
	}
	// The loss with a penalty for large outputs. m is the model of this rank.
	step := func(c *nn.Ctx, m models.Model, b *data.Batch) (models.Output, float64, error) {
		out := m.Forward(c, b)
		squares := tensor.Sum(c.Ctx, tensor.Mul(c.Ctx, out.Logits, out.Logits), nil, false)
		out.Loss = tensor.Add(c.Ctx, out.Loss, tensor.Affine(c.Ctx, squares, 0.1, 0))
		return out, b.Count, nil
	}
	load := func(ctx context.Context, acc *accelerate.Accelerator) (*feed.Windows, error) {
		return acc.Windows(ctx, points, samplers.NewSequential(2), 0)
	}
	log := func(s *callbacks.State, r callbacks.Record) error {
		if loss, ok := r["train_loss"].(float64); ok {
			r["perplexity"] = math.Exp(loss)
		}
		return nil
	}
	a := args.Default("out/overrides")
	a.LearningRate, a.MaxSteps, a.SaveStrategy = 0.1, 100, args.StrategyNo
	t := trainer.New(model, a, trainer.WithTrainDataloader(load), trainer.WithStep(step), trainer.WithLog(log),
		trainer.WithDisplay(nil), trainer.WithLogger(slog.New(slog.DiscardHandler)))
	if _, err := t.Train(); err != nil {
		panic(err)
	}
	c := tensor.NewCtx(tensor.CPU())
	_, logged := t.State().LogHistory[len(t.State().LogHistory)-1]["perplexity"]
	fmt.Printf("y = %.1fx + %.1f, perplexity logged: %v\n", tensor.Item(c, model.Layers[0].Weight.Tensor),
		tensor.Item(c, model.Layers[0].Bias.Tensor), logged)
	// Output: y = 1.8x + 2.7, perplexity logged: true
}
