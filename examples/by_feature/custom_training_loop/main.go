// SPDX-License-Identifier: Apache-2.0

// Custom_training_loop is the trainer's loop by hand, on two ranks that are goroutines: the
// accelerator chooses where it runs, cuts the stream of samples, adds the gradients up and
// exchanges them; the program does the rest. Under a launcher, with num_replicas 1, the same
// loop runs on ranks that are processes.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

const steps = 80

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	a := args.Default("out/custom_training_loop")
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize, a.NumReplicas = 4, 8, 2
	return accelerate.Run(ctx, a, func(acc *accelerate.Accelerator) error {
		return train(ctx, acc, a.Seed, p.Stdout)
	})
}

// train is the loop of one rank. The first signal ends signals; ctx, that of the exchanges between ranks, goes on, so
// that no rank waits for one that has left.
func train(signals context.Context, acc *accelerate.Accelerator, seed uint64, out io.Writer) error {
	ctx := context.WithoutCancel(signals)
	model, train := line.Model(), line.Train()
	newOptimizer := func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
		return optim.DefaultAdamW().New(c, []*optim.Group{{LR: 0.1, Params: params}}), nil
	}
	if err := acc.Prepare(ctx, model, newOptimizer); err != nil {
		return err
	}
	windows, err := acc.Windows(ctx, train, samplers.NewRandom(int64(train.Len()), seed), steps)
	if err != nil {
		return err
	}
	step := 0
	for window, err := range windows.All() { // each is this rank's part of one optimizer step
		if err != nil {
			return err
		}
		loss, err := acc.Accumulate(ctx, window.Batches, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
			return model.Forward(c, b).Loss
		})
		if err != nil {
			return err
		}
		norm, err := acc.ClipGradNorm(ctx, 1)
		if err != nil {
			return err
		}
		if err := acc.Step(ctx); err != nil {
			return err
		}
		if step++; step%20 == 0 {
			acc.Print(out, fmt.Sprintf("step %d  loss %.4f  grad_norm %.3f", step, loss.Mean(), norm))
		}
		stop := signals.Err() != nil
		if err := acc.Agree(ctx, &stop); err != nil { // all ranks stop after the same step
			return err
		}
		if stop {
			return fmt.Errorf("%w after step %d", accelerate.ErrInterrupted, step)
		}
	}
	acc.Print(out, line.String(model), "on", acc.WorldSize(), "ranks")
	return nil
}
