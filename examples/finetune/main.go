// SPDX-License-Identifier: Apache-2.0

// Finetune teaches a chat model by conversations, as TRL's SFTTrainer does: rows of messages, of prompt and completion,
// of text, ShareGPT's or Alpaca's, rendered by the model's chat template, with a loss on the answers alone if asked
// for. Before the first step it prints a row with what is learned in ⟦⟧, and it refuses answers that would teach the
// model not to stop. After training it answers some prompts and keeps the tokens beside the model, in
// continuations.json, so that any other program can be compared.
//
// With no flags it teaches a tiny model who eight people are, in a few seconds.
//
//	go run ./examples/finetune
//	go run ./examples/finetune --model_name_or_path MODEL --train_file chats.jsonl --output_dir out/tuned
//
// Rows may also be Parquet files, and larger than the memory with --dataset_streaming. Files are mixed by
// --dataset_probabilities.
//
// MODEL is a folder that transformers has written, or a GGUF file; examples/finetune/smollm2 fetches one.
//
// With --use_peft it trains a LoRA adapter of a few megabytes (see package models/lora), by TRL's flags:
//
//	go run ./examples/finetune --model_name_or_path MODEL --train_file chats.jsonl --output_dir out/tuned \
//		--use_peft --lora_target_modules all-linear --learning_rate 2e-4
//	go run ./examples/chat --adapter out/tuned
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	_ "github.com/lockstep-ml/lockstep/comm/nccl" // empty without -tags cuda
	"github.com/lockstep-ml/lockstep/examples/internal/adapters"
	"github.com/lockstep-ml/lockstep/examples/internal/downloads"
	"github.com/lockstep-ml/lockstep/examples/internal/rowsets"
	_ "github.com/lockstep-ml/lockstep/integrations/all"
	"github.com/lockstep-ml/lockstep/program"
	_ "github.com/lockstep-ml/lockstep/tensor/cuda" // empty without -tags cuda
)

func main() { os.Exit(program.Run(train)) }

// train is the program.
func train(ctx context.Context, p *program.Process) error {
	a, f := defaults()
	l, r, h, d := adapters.Defaults(), rowsets.Defaults(), downloads.Defaults(), &downloads.HubDataArguments{}
	loader := args.Bind(p.Flags(), a, f, r, l, h, d)
	loader.Know(downloads.Aliases()...)
	loader.Defaults(func(given func(key string) bool) string {
		if given("model_name_or_path") || given("train_file") || given("dataset_name") {
			return ""
		}
		a.LearningRate, a.NumTrainEpochs, a.PerDeviceTrainBatchSize, a.OverwriteOutputDir = 1e-2, 30, 8, true
		f.AssistantOnlyLoss = true
		return "demonstration"
	})
	if _, err := p.Parse(loader); err != nil {
		return err
	}
	j := &job{Process: p, args: a, FineTuningArguments: f, rowset: r, adapters: l, hub: h, dataset: d}
	return j.run(ctx)
}
