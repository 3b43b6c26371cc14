// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/samplers"
	"github.com/lockstep-ml/lockstep/tensor"
)

// limited are the settings of the scripts that look for a batch size.
type limited struct {
	files
	MemoryLimit int64 `json:"memory_limit" usage:"bytes that tensors may take; 0: what the machine has"`
}

// memory is accelerate's by_feature/memory.py and automatic_gradient_accumulation.py: where a batch does not fit into
// the memory, it starts again with half of it and twice as many micro-batches to a step.
func memory(ctx context.Context, p *program.Process) error {
	a, f := args.Default("out/memory"), &limited{files: files{Test: 4}}
	a.LearningRate, a.PerDeviceTrainBatchSize, a.NumTrainEpochs = 2e-3, 32, 1
	if _, err := p.Parse(args.Bind(p.Flags(), a, f)); err != nil {
		return err
	}
	all, err := readPairs(ctx, f.TrainFile)
	if err != nil {
		return err
	}
	if f.MemoryLimit > 0 {
		tensor.CPU().Collect()
		tensor.CPU().SetMemoryLimit(tensor.CPU().MemStats().InUse + f.MemoryLimit)
		defer tensor.CPU().SetMemoryLimit(0)
	}
	return accelerate.Run(ctx, a, func(acc *accelerate.Accelerator) error {
		model, err := all.classifier(a.Seed)
		if err != nil {
			return err
		}
		for a := a.Clone(); ; {
			steps, err := all.trainIn(ctx, acc, model, a, f.Test)
			short, full := errors.AsType[*accelerate.MemoryError](err) // on all ranks, or on none
			switch {
			case err == nil:
				acc.Print(p.Stdout, fmt.Sprintf("%d steps of %d × %d samples", steps, a.GradientAccumulationSteps,
					a.PerDeviceTrainBatchSize))
				return nil
			case !full || a.PerDeviceTrainBatchSize == 1:
				return err
			}
			acc.Print(p.Stdout, fmt.Sprintf("%d samples do not fit: %v", a.PerDeviceTrainBatchSize, short))
			a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = a.PerDeviceTrainBatchSize/2,
				2*a.GradientAccumulationSteps
			acc.SetArguments(a)
			tensor.CPU().Collect() // what the passes saved
		}
	})
}

// trainIn trains for an epoch, or returns a *accelerate.MemoryError.
func (p *pairs) trainIn(ctx context.Context, acc *accelerate.Accelerator, model models.Model,
	a *args.TrainingArguments, test int) (steps int64, err error) {
	train, _ := p.split(test, 0)
	had := acc.Optimizer() // of a larger batch
	if err := acc.Prepare(ctx, model, func(c *tensor.Ctx, params []tensor.Named) (*optim.Optimizer, error) {
		if had != nil {
			return had, nil
		}
		return adamW().New(c, []*optim.Group{{LR: a.LearningRate, Params: params}}), nil
	}); err != nil {
		return 0, err
	}
	windows, err := acc.Windows(ctx, train, samplers.NewRandom(int64(train.Len()), a.Seed), 0)
	if err != nil {
		return 0, err
	}
	defer windows.Close()
	each := windows.Layout().MicroBatches()
	windows.Limit(int64(a.NumTrainEpochs) * ((windows.MicroBatches() + each - 1) / each))
	for window, err := range windows.All() {
		if err != nil {
			return 0, err
		}
		if _, err := acc.RunWindow(ctx, window.Batches, accelerate.WindowOptions{TryMemory: true,
			Loss: func(c *nn.Ctx, b *data.Batch) (accelerate.Output, error) {
				return accelerate.Output{Loss: model.Forward(c, b).Loss, Count: b.Count}, nil
			}}); err != nil {
			return 0, err
		}
		if err := acc.Step(ctx); err != nil {
			return 0, err
		}
		steps++
	}
	return steps, nil
}
