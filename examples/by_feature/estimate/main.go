// SPDX-License-Identifier: Apache-2.0

// Estimate prints the memory of a rank's tensors when GPT-2 (124 million parameters) trains on 8 ranks, for each
// sharding strategy. Nothing is computed: the runs are gone through on a device without values, with the buffers that a
// rank really makes. The command does the same for a saved model or a config.json: lockstep estimate-memory config.json
// --fsdp full_shard --num_replicas 8
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/models/gpt2"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

func main() { os.Exit(program.Run(run)) }

func run(_ context.Context, p *program.Process) error {
	const ranks, length = 8, 256
	model := func(in *nn.Init) (models.Model, error) { return gpt2.New(in, gpt2.DefaultConfig()) }
	example, err := gpt2.New(nn.NewInit(tensor.NewMeta(), 0), gpt2.DefaultConfig())
	if err != nil {
		return err
	}
	batch := func(c *tensor.Ctx, samples int) *data.Batch { return example.ExampleBatch(c, samples, length) }
	p.Printf("%d parameters on %d ranks, MiB on each\n", nn.NumParameters(example), ranks)
	p.Printf("%-14s %10s %10s %10s %10s\n", "", "parameters", "gradients", "optimizer", "peak")
	for _, way := range []struct {
		name string
		set  func(a *args.TrainingArguments)
	}{
		{"no_shard", func(*args.TrainingArguments) {}},
		{"zero_stage 1", func(a *args.TrainingArguments) { a.ZeroStage = 1 }},
		{"zero_stage 2", func(a *args.TrainingArguments) { a.ZeroStage = 2 }},
		{"full_shard", func(a *args.TrainingArguments) { a.FSDP = []string{"full_shard"} }},
	} {
		a := args.Default("out/estimate") // nothing is written there
		a.PerDeviceTrainBatchSize = 1
		way.set(a)
		e, err := trainer.EstimateMemory(a, nil, ranks, model, batch)
		if err != nil {
			return err
		}
		p.Printf("%-14s", way.name)
		for _, bytes := range []int64{e.Parameters, e.Gradients, e.OptimizerState, e.Peak} {
			p.Printf(" %10.1f", float64(bytes)/(1<<20))
		}
		fmt.Fprintln(p.Stdout)
	}
	return nil
}
