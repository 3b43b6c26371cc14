// SPDX-License-Identifier: Apache-2.0

// Dpo teaches a chat model which of two answers people prefer, by direct preference optimization as TRL's DPOTrainer
// has it: rows of a prompt with a chosen and a rejected answer, as texts or messages. The reference is the model before
// its training: with --use_peft the model without its adapter, else a copy, or with --precompute_ref_log_probs
// log-probabilities computed once before training. Before the first step it prints a row with the answers in ⟦⟧.
// docs/preference.md has more.
//
// With no flags it continues from the model that examples/finetune saved.
//
//	go run ./examples/finetune
//	go run ./examples/dpo
//	go run ./examples/chat --model_name_or_path out/dpo
//
// With --use_peft it trains a LoRA adapter (see package models/lora), by TRL's flags:
//
//	go run ./examples/dpo --model_name_or_path MODEL --train_file pairs.jsonl --output_dir out/preferred \
//		--use_peft --lora_target_modules all-linear --learning_rate 5e-6
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	_ "github.com/lockstep-ml/lockstep/comm/nccl" // empty without -tags cuda
	"github.com/lockstep-ml/lockstep/examples/internal/adapters"
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	"github.com/lockstep-ml/lockstep/examples/internal/pairs"
	_ "github.com/lockstep-ml/lockstep/integrations/all"
	"github.com/lockstep-ml/lockstep/program"
	_ "github.com/lockstep-ml/lockstep/tensor/cuda" // empty without -tags cuda
)

func main() { os.Exit(program.Run(train)) }

// train is the program.
func train(ctx context.Context, p *program.Process) error {
	a, d := defaults()
	l, r, h := adapters.Defaults(), pairs.Defaults(), downloads.Defaults()
	loader := args.Bind(p.Flags(), append(r.All(), a, d, l, h)...)
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
	if err := h.Model(ctx, p, &d.RefModelNameOrPath); err != nil {
		return fmt.Errorf("ref_model_name_or_path: %w", err)
	}
	j := &job{Process: p, PreferenceArguments: r, DPOArguments: d, args: a, adapters: l}
	return j.run(ctx)
}
