// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/lockstep-ml/lockstep/accelerate"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
)

// inference is accelerate's inference/distributed scripts: the ranks share out a list with split_between_processes, and
// the first gets all answers with gather_object.
func inference(ctx context.Context, p *program.Process) error {
	a, f := args.Default("out/distributed_inference"), &files{Test: 4}
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
		var mine []int64
		for _, row := range accelerate.SplitBetweenProcesses(acc, all.rows, false) {
			c := &nn.Ctx{Ctx: acc.Ctx().NoGrad()}
			b, err := data.WithPadding(pad)(c.Ctx, []data.LabelledTokens{row})
			if err != nil {
				return err
			}
			class := tensor.ArgMax(c.Ctx, model.Forward(c, b).Logits, -1, false)
			mine = append(mine, tensor.ToSlice[int64](c.Ctx, class)...)
		}
		parts, err := accelerate.GatherObjects(ctx, acc, mine)
		if err != nil {
			return err
		}
		acc.Print(p.Stdout, fmt.Sprintf("%d ranks: %v", acc.WorldSize(), slices.Concat(parts...)))
		return nil
	})
}
