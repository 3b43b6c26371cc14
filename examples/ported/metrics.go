// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/program"
)

// multiProcessMetrics is accelerate's by_feature/multi_process_metrics.py: no sample counts twice, however the number
// of ranks divides their number.
func multiProcessMetrics(ctx context.Context, p *program.Process) error {
	a, f := args.Default("out/multi_process_metrics"), &files{Test: 4}
	a.PerDeviceEvalBatchSize = 3
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
		_, eval := all.split(f.Test, 0)
		if err := acc.Prepare(ctx, model, nil); err != nil {
			return err
		}
		classes, labels, err := predictions(ctx, acc, model, eval)
		if err != nil {
			return err
		}
		m, err := glue(classes, labels)
		acc.Print(p.Stdout, fmt.Sprintf("%d of %d rows: %v", len(classes), eval.Len(), m))
		return err
	})
}
