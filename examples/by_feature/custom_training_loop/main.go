// Custom_training_loop is the trainer's loop by hand: the accelerator chooses where it
// runs, cuts the stream of samples and adds the gradients up; the program does the rest.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

const steps = 80

func main() {
	if err := train(); err != nil {
		log.Fatal(err)
	}
}

func train() error {
	ctx := context.Background()
	a := args.Default("out/custom_training_loop")
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = 4, 2
	acc, err := accelerate.New(a)
	if err != nil {
		return err
	}

	model, train := line.Model(), line.Train()
	group := &optim.Group{LR: 0.1}
	for _, p := range nn.NamedParameters(model) {
		group.Params = append(group.Params, optim.Param{Name: p.Name, Tensor: p.Tensor})
	}
	opt := optim.NewAdamW(acc.Ctx(), []*optim.Group{group}, 0.9, 0.999, 1e-8)
	if err := acc.Prepare(ctx, model, opt, nil); err != nil {
		return err
	}
	stream, err := acc.Stream(samplers.NewRandom(int64(train.Len()), a.Seed))
	if err != nil {
		return err
	}
	ahead := *stream // the loader reads on a stream of its own
	loader, err := data.NewLoader(ctx, acc.Ctx().NoGrad(), train, data.StreamOrder(&ahead, steps), data.LoaderOptions{})
	if err != nil {
		return err
	}
	defer loader.Close()

	for step := range steps {
		window, _ := stream.Next() // the micro-batches of one optimizer step
		loss := 0.0
		for i := range window.Own {
			b, err := loader.Next()
			if err != nil {
				return err
			}
			acc.TrainCtx(b.Position).Scope(func(c *nn.Ctx) []*tensor.Tensor {
				sum := model.Forward(c, b).Loss
				acc.Backward(c, sum, window.Samples, b.Leaf, i == len(window.Own)-1) // one loss term per sample
				loss += tensor.Item(c.Ctx, sum) / float64(window.Samples)
				return nil
			})
			b.Free()
		}
		if err := acc.Reduce(ctx); err != nil {
			return err
		}
		norm := acc.ClipGradNorm(1)
		acc.Step()
		acc.ZeroGrad()
		if (step+1)%20 == 0 {
			fmt.Printf("step %d  loss %.4f  grad_norm %.3f\n", step+1, loss, norm)
		}
	}
	fmt.Println(line.String(model))
	return nil
}
