// SPDX-License-Identifier: Apache-2.0

// Uneven_inputs trains on ranks with unequal numbers of batches, for example one file per rank. A rank that ran out
// continues without gradients until all have: Join tells it for how long. Every sample counts once; none is repeated or
// left out. (The trainer needs none of this: its stream gives every rank every step.)
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
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// sizes are the samples that each rank has.
var sizes = []int{50, 17, 32}

const epochs = 15

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	a := args.Default("out/uneven_inputs")
	a.PerDeviceTrainBatchSize, a.NumReplicas = 4, len(sizes)
	return accelerate.Run(ctx, a, func(acc *accelerate.Accelerator) error { return train(ctx, a, acc, p.Stdout) })
}

func train(ctx context.Context, a *args.TrainingArguments, acc *accelerate.Accelerator, out io.Writer) error {
	model := line.Model()
	mine := data.NewSource(line.Samples(sizes[acc.Rank()], uint64(acc.Rank()+1)), data.Stack[line.Point])
	if err := acc.Prepare(ctx, model, line.AdamW); err != nil {
		return err
	}
	cut, err := samplers.NewBatch(samplers.NewRandom(int64(mine.Len()), a.Seed), a.PerDeviceTrainBatchSize,
		false)
	if err != nil {
		return err
	}
	for epoch := range int64(epochs) {
		steps, seen, err := runEpoch(ctx, acc, epoch, mine, cut, func(c *nn.Ctx, b *data.Batch) *tensor.Tensor {
			return model.Forward(c, b).Loss
		})
		if err != nil {
			return err
		}
		if epoch == 0 {
			own, err := accelerate.GatherObjects(ctx, acc, cut.Len())
			if err != nil {
				return err
			}
			acc.Print(out, fmt.Sprintf("batches of the ranks %v: %d steps, %d samples", own, steps, seen))
		}
	}
	acc.Print(out, line.String(model))
	return nil
}

// runEpoch takes steps until every rank is through with its samples.
func runEpoch(ctx context.Context, acc *accelerate.Accelerator, epoch int64, mine data.Source, cut *samplers.Batch,
	loss func(*nn.Ctx, *data.Batch) *tensor.Tensor) (steps, seen int64, err error) {
	for ; ; steps++ {
		have := steps < cut.Len()
		more, err := acc.Join(ctx, have)
		if err != nil || !more {
			return steps, seen, err
		}
		var batches []*data.Batch // none: this rank's gradients are absent from the sum
		if have {
			b, err := mine.Batch(acc.Ctx().NoGrad(), cut.At(epoch, steps))
			if err != nil {
				return steps, seen, err
			}
			batches = append(batches, b)
		}
		l, err := acc.Accumulate(ctx, batches, loss)
		if err != nil {
			return steps, seen, err
		}
		for _, b := range batches {
			b.Free()
		}
		seen += int64(l.Count) // of all ranks; one loss term per sample
		if err := acc.Step(ctx); err != nil {
			return steps, seen, err
		}
	}
}
