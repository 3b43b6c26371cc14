// SPDX-License-Identifier: Apache-2.0

// No_sync accumulates the gradients of four micro-batches on each of two ranks and exchanges
// them once, in the last one's backward pass: the others run under NoSync. (Accumulate does
// that by itself; here each pass is the program's own.) A tracer counts the exchanges.
package main

import (
	"context"
	"io"
	"os"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trace"
)

const (
	steps        = 80
	accumulation = 4
	batchSize    = 2
)

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	a := args.Default("out/no_sync")
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps, a.NumReplicas = batchSize, accumulation, 2
	passes, exchanges := make([]int, 2), make([]int, 2)
	count := accelerate.WithTracer(func(s trace.Span) {
		switch s.Name {
		case "backward":
			passes[s.Rank]++
		case "bucket":
			exchanges[s.Rank]++
		}
	})
	err := accelerate.Run(ctx, a, func(acc *accelerate.Accelerator) error { return train(ctx, acc, p.Stdout) }, count)
	if err != nil {
		return err
	}
	p.Printf("each rank: %d backward passes, %d exchanges\n", passes[0], exchanges[0])
	return nil
}

func train(ctx context.Context, acc *accelerate.Accelerator, out io.Writer) error {
	model, samples := line.Model(), line.Train()
	if err := acc.Prepare(ctx, model, line.AdamW); err != nil {
		return err
	}
	for range steps {
		if err := acc.BeginWindow(ctx); err != nil {
			return err
		}
		for i := range accumulation {
			leaf := acc.Rank()*accumulation + i // its number in the step, over all ranks
			pass := func() error { return backward(acc, model, samples, leaf) }
			if i < accumulation-1 {
				if err := acc.NoSync(pass); err != nil {
					return err
				}
			} else if err := pass(); err != nil {
				return err
			}
		}
		if err := acc.Reduce(ctx); err != nil {
			return err
		}
		if err := acc.Step(ctx); err != nil {
			return err
		}
		acc.ZeroGrad()
	}
	acc.Print(out, line.String(model))
	return nil
}

// backward is one pass over the two samples that belong to a leaf: the 16 of a step are
// always the same ones.
func backward(acc *accelerate.Accelerator, model models.Model, samples data.Source, leaf int) error {
	b, err := samples.Batch(acc.Ctx().NoGrad(), []int64{int64(2 * leaf), int64(2*leaf + 1)})
	if err != nil {
		return err
	}
	defer b.Free()
	acc.TrainCtx(int64(2 * leaf)).Scope(func(c *nn.Ctx) []*tensor.Tensor {
		// The loss is a sum; its mean is over the samples of the whole step, on all ranks.
		acc.Backward(c, model.Forward(c, b).Loss, float64(acc.WorldSize()*accumulation*batchSize), leaf, true)
		return nil
	})
	return nil
}
