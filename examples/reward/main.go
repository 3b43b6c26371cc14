// SPDX-License-Identifier: Apache-2.0

// Reward trains a model that scores answers, from rows of a prompt with a chosen and a rejected answer, as TRL's
// RewardTrainer does: a language model gets a head of one label, which transformers loads as ForSequenceClassification
// with num_labels 1. Rows longer than max_length are left out. docs/preference.md has more.
//
// With no flags it continues from the model that examples/finetune saved.
//
//	go run ./examples/finetune
//	go run ./examples/reward
//	go run ./examples/reward --model_name_or_path MODEL --train_file pairs.jsonl --output_dir out/scores
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	_ "github.com/lockstep-ml/lockstep/comm/nccl" // empty without -tags cuda
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	_ "github.com/lockstep-ml/lockstep/integrations/all"
	"github.com/lockstep-ml/lockstep/program"
	_ "github.com/lockstep-ml/lockstep/tensor/cuda" // empty without -tags cuda
)

func main() { os.Exit(program.Run(train)) }

// train is the program.
func train(ctx context.Context, p *program.Process) error {
	a, r, s, l := defaults()
	h := downloads.Defaults()
	loader := args.Bind(p.Flags(), append(r.All(), a, s, l, h)...)
	loader.Know(downloads.Aliases()...)
	loader.Defaults(func(given func(key string) bool) string {
		if given("model_name_or_path") || given("train_file") || given("dataset_name") {
			return ""
		}
		r.Demonstrate(a)
		return "demonstration"
	})
	if _, err := p.Parse(loader); err != nil {
		return err
	}
	if err := r.Download(ctx, p, h, &l.Adapter); err != nil {
		return err
	}
	j := &job{Process: p, PreferenceArguments: r, RewardArguments: s, args: a, adapters: l}
	return j.run(ctx)
}
