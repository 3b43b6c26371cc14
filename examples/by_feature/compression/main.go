// SPDX-License-Identifier: Apache-2.0

// Compression trains a small GPT-2 on two ranks that send each other fewer bytes: under each communication hook, and
// with local SGD, whose ranks average their parameters every four steps. All of this is lossy: it prints the loss of an
// evaluation at the end, the bytes that each rank sent (train_sent_bytes), and whether the weights are those without
// it.
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/gpt"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	var exact *gpt2.Model
	for _, run := range []struct {
		what string
		set  func(a *args.TrainingArguments)
	}{
		{"no compression", func(*args.TrainingArguments) {}},
		{"bf16", func(a *args.TrainingArguments) { a.DDPCommHook = args.CommHookBF16 }},
		{"int8", func(a *args.TrainingArguments) { a.DDPCommHook = args.CommHookInt8 }},
		{"power_sgd", func(a *args.TrainingArguments) {
			a.DDPCommHook = args.CommHookPowerSGD
			a.DDPCommStateOption = map[string]any{"matrix_approximation_rank": 2, "start_powerSGD_iter": 5}
		}},
		{"top_k", func(a *args.TrainingArguments) {
			a.DDPCommHook = args.CommHookTopK
			a.DDPCommStateOption = map[string]any{"density": 0.05}
		}},
		{"local SGD", func(a *args.TrainingArguments) { a.LocalSGDSteps = 4 }},
		{"post-local SGD", func(a *args.TrainingArguments) { a.LocalSGDSteps, a.StartLocalSGDIter = 4, 8 }},
	} {
		model := gpt.Model(tensor.CPU())
		a := args.Default("out/compression")
		a.LearningRate, a.MaxSteps, a.LoggingSteps, a.SaveStrategy = 0.003, 20, 5, args.StrategyNo
		a.PerDeviceTrainBatchSize, a.NumReplicas = 2, 2
		run.set(a)
		t := trainer.New(model, a, trainer.WithTrainData(gpt.Train()), trainer.WithEvalData(gpt.Eval()))
		res, err := t.TrainContext(ctx)
		if err != nil {
			return err
		}
		metrics, err := t.EvaluateContext(ctx)
		if err != nil {
			return err
		}
		if exact == nil {
			exact = model
		}
		p.Printf("%s: eval_loss %.3f, each rank sent %.0f KB; same bits as without: %t\n", run.what,
			metrics["eval_loss"], res.Metrics["train_sent_bytes"]/1e3, gpt.SameBits(model, exact))
	}
	return nil
}
