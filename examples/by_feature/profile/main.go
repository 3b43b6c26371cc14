// SPDX-License-Identifier: Apache-2.0

// Profile records three steps of a small GPT-2 on two ranks: --profile of every program, set by hand. What it writes is
// described in docs/profiling.md; the table is shown at the end.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	a := args.Default("out/profile")
	a.MaxSteps, a.SaveStrategy, a.NumReplicas, a.PerDeviceTrainBatchSize = 6, args.StrategyNo, 2, 4
	a.Profile, a.ProfileSkipFirst, a.ProfileSteps = "out/profile", 2, 3

	cfg := gpt2.DefaultConfig()
	cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.VocabSize, cfg.NPositions = 4, 256, 4, 2048, 128
	model, err := gpt2.New(nn.NewInit(tensor.CPU(), a.Seed), cfg)
	if err != nil {
		return err
	}
	texts := make(data.Slice[[]int32], 64)
	for i := range texts {
		texts[i] = make([]int32, cfg.NPositions)
		for j := range texts[i] {
			texts[i][j] = int32((i*i + 7*j) % cfg.VocabSize)
		}
	}
	quiet := slog.New(slog.DiscardHandler)
	if _, err := trainer.New(model, a, trainer.WithTrainData(data.NewSource(texts, data.CausalLM(0))),
		trainer.WithLogger(quiet), trainer.WithDisplay(nil)).TrainContext(ctx); err != nil {
		return err
	}
	table, err := os.ReadFile("out/profile/ops_rank0.txt")
	if err != nil {
		return err
	}
	fmt.Fprint(p.Stdout, string(table))
	return nil
}
