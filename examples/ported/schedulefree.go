// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/optim"
	"github.com/lockstep-ml/lockstep/program"
)

// scheduleFree is accelerate's by_feature/schedule_free.py: optimizer.eval() before an evaluation and optimizer.train()
// after it are EvalWeights and TrainWeights.
func scheduleFree(ctx context.Context, p *program.Process) error {
	a, f := args.Default("out/schedule_free"), &files{Test: 4}
	a.LearningRate, a.PerDeviceTrainBatchSize, a.PerDeviceEvalBatchSize = 5e-3, 16, 32
	if _, err := p.Parse(args.Bind(p.Flags(), a, f)); err != nil {
		return err
	}
	all, err := readPairs(ctx, f.TrainFile)
	if err != nil {
		return err
	}
	return accelerate.Run(ctx, a, func(acc *accelerate.Accelerator) error {
		model, err := all.classifier(a.Seed)
		if err != nil {
			return err
		}
		config, err := optim.ByName("schedule_free_adamw", nil, nil)
		if err != nil {
			return err
		}
		train, eval := all.split(f.Test, 0)
		e := &epochs{acc: acc, args: a, model: model, train: train, optim: config,
			print: func(line string) { acc.Print(p.Stdout, line) },
			evaluate: func() (map[string]float64, error) {
				if err := acc.EvalWeights(ctx); err != nil {
					return nil, err
				}
				classes, labels, err := predictions(ctx, acc, model, eval)
				if err != nil {
					return nil, err
				}
				if err := acc.TrainWeights(ctx); err != nil {
					return nil, err
				}
				return glue(classes, labels)
			}}
		return e.run(ctx)
	})
}
