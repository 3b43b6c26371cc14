// SPDX-License-Identifier: Apache-2.0

// Merge_weights trains a small GPT-2 sharded over four ranks (fsdp full_shard). Each rank writes its own pieces of a
// checkpoint (fsdp_state_dict_type sharded_state_dict); nothing is gathered. The pieces are then merged into the
// model.safetensors that one rank would have written, which LoadPretrained and transformers read. The command does the
// same: lockstep merge-weights out/merge_weights out/merge_weights/merged
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/gpt"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
	"github.com/lockstep-ml/lockstep/trainer/checkpointer"
)

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	const dir = "out/merge_weights"
	model := gpt.Model(tensor.CPU())
	a := args.Default(dir)
	a.LearningRate, a.MaxSteps, a.PerDeviceTrainBatchSize, a.NumReplicas = 0.003, 10, 1, 4
	a.FSDP, a.FSDPStateDictType = []string{"full_shard"}, args.ShardedStateDict
	result, err := trainer.New(model, a, trainer.WithTrainData(gpt.Train())).TrainContext(ctx)
	if err != nil {
		return err
	}
	checkpoint := filepath.Join(dir, fmt.Sprintf("checkpoint-%d", result.GlobalStep))
	pieces, err := filepath.Glob(filepath.Join(checkpoint, "shard-*"))
	if err != nil {
		return err
	}
	for _, file := range pieces {
		fmt.Fprintln(p.Stdout, "a rank wrote", filepath.ToSlash(file))
	}

	merged := filepath.Join(dir, "merged")
	files, err := checkpointer.MergeWeights(ctx, checkpoint, merged, checkpointer.MergeOptions{})
	if err != nil {
		return err
	}
	fmt.Fprintln(p.Stdout, "merged into", files)
	loaded, err := models.LoadPretrained(tensor.CPU(), merged)
	if err != nil {
		return err
	}
	p.Printf("training loss %.2f; loaded with the same bits: %t\n", result.TrainingLoss,
		gpt.SameBits(model, loaded))
	return nil
}
