// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/program"
)

// crossValidation is accelerate's by_feature/cross_validation.py: each fold trains a model without a part of the rows,
// which is then evaluated on that part.
func crossValidation(ctx context.Context, p *program.Process) error {
	a, f := args.Default("out/cross_validation"), &files{Test: 3}
	a.LearningRate, a.PerDeviceTrainBatchSize, a.PerDeviceEvalBatchSize = 2e-3, 16, 32
	if _, err := p.Parse(args.Bind(p.Flags(), a, f)); err != nil {
		return err
	}
	all, err := readPairs(ctx, f.TrainFile)
	if err != nil {
		return err
	}
	return accelerate.Run(ctx, a, func(acc *accelerate.Accelerator) error {
		var classes, labels []int64
		for fold := range f.Test {
			fa := a.Clone()
			fa.OutputDir = filepath.Join(a.OutputDir, fmt.Sprintf("fold-%d", fold))
			model, err := all.classifier(a.Seed)
			if err != nil {
				return err
			}
			train, held := all.split(f.Test, fold)
			e := &epochs{acc: acc, args: fa, model: model, train: train, optim: adamW(),
				schedule: linear(2, a.LearningRate), print: func(string) {}}
			if err := e.run(ctx); err != nil {
				return err
			}
			of, is, err := predictions(ctx, acc, model, held)
			if err != nil {
				return err
			}
			classes, labels = append(classes, of...), append(labels, is...)
		}
		average, err := glue(classes, labels)
		acc.Print(p.Stdout, fmt.Sprintf("%d folds, %d rows: %v", f.Test, len(labels), average))
		return err
	})
}
