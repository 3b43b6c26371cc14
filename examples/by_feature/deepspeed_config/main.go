// SPDX-License-Identifier: Apache-2.0

// Deepspeed_config trains a small GPT-2 on four ranks with a configuration file of DeepSpeed: ZeRO stage 3, with sizes,
// rates and schedule that are "auto" and so come from the arguments. Programs that parse their settings take the file
// as --deepspeed ds.json. lockstep config ds.json shows what each key does here.
package main

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/gpt"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

//go:embed ds_config.json
var file []byte

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	const dir = "out/deepspeed_config"
	path := filepath.Join(dir, "ds_config.json")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, file, 0o644); err != nil {
		return err
	}
	config, err := args.ReadToolConfig(path)
	if err != nil {
		return err
	}
	for _, row := range config.Rows {
		p.Printf("%-9s  %s: %s\n", row.Use, row.Key, row.Text)
	}

	a := args.Default(filepath.Join(dir, "run"))
	a.LearningRate, a.MaxSteps, a.LoggingSteps, a.SaveStrategy = 0.003, 20, 5, args.StrategyNo
	a.PerDeviceTrainBatchSize, a.NumReplicas, a.DeepSpeed = 1, 4, path
	model := gpt.Model(tensor.CPU())
	res, err := trainer.New(model, a, trainer.WithTrainData(gpt.Train())).TrainContext(ctx)
	if err != nil {
		return err
	}
	p.Printf("zero_stage %d on %d ranks: training loss %.2f\n", a.ZeroStage, a.NumReplicas,
		res.TrainingLoss)
	return nil
}
