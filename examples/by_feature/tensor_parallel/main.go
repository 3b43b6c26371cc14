// SPDX-License-Identifier: Apache-2.0

// Tensor_parallel divides the matrices of a small GPT-2 among two and four ranks (tp_size), which are goroutines: each
// has a part of every matrix, and of the optimizer's state. The sums that the ranks share have four parts (tp_parts),
// on one rank too, so the weights always have the same bits; whole sums are the control. Then runs continue from a
// checkpoint of two ranks, on other numbers of ranks. Under a launcher the ranks are processes, as many as it starts:
//
//	CGO_ENABLED=0 go build -o out/bin/tensor_parallel ./examples/by_feature/tensor_parallel
//	go run ./cmd/lockstep launch --nproc_per_node 2 -- out/bin/tensor_parallel
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/gpt"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

const (
	steps  = 4
	folder = "out/tensor_parallel"
)

// division is how many ranks share the matrices, in how many replicas, and in how many parts they form sums; 0 leaves
// the parts to the trainer.
type division struct{ tp, replicas, parts int }

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	place, err := env.Detect(os.LookupEnv)
	if err != nil {
		return err
	}
	if place.Distributed() {
		d := division{place.WorldSize, 1, 4}
		weights, err := train(ctx, 1, d, false, "")
		if err == nil {
			p.Printf("%s: weights %s\n", d, weights)
		}
		return err
	}
	one, err := train(ctx, 1, division{1, 1, 4}, false, "")
	if err != nil {
		return err
	}
	p.Printf("1 rank, sums in 4 parts: weights %s\n", one)
	half := fmt.Sprintf("%s/checkpoint-%d", folder, steps/2)
	for _, of := range []struct {
		division
		save bool
		from string
	}{{division{4, 1, 4}, false, ""}, {division{2, 2, 4}, false, ""}, {division{1, 1, 1}, false, ""},
		{division{2, 1, 4}, true, ""}, {division{1, 1, 0}, false, half}, {division{4, 1, 0}, false, half}} {
		weights, err := train(ctx, of.tp*of.replicas, of.division, of.save, of.from)
		if err != nil {
			return err
		}
		what := of.String()
		if of.from != "" {
			what += ", from " + of.from
		}
		p.Printf("%s: weights %s, same bits: %t\n", what, weights, weights == one)
	}
	return nil
}

func (d division) String() string {
	parts := fmt.Sprintf(", sums in %d parts", d.parts)
	switch d.parts {
	case 0:
		parts = ""
	case 1:
		parts = ", whole sums"
	}
	return fmt.Sprintf("tp %d × dp_replicate %d%s", d.tp, d.replicas, parts)
}

// train trains on divided matrices, with some of the ranks as goroutines of this process, from a checkpoint if there is
// one, and returns the hash of the weights. It saves after half of the steps, or never.
func train(ctx context.Context, goroutines int, d division, save bool, checkpoint string) (string, error) {
	a := args.Default(folder)
	a.LearningRate, a.MaxSteps, a.LoggingSteps, a.SaveSteps = 0.003, steps, steps, steps/2
	if !save {
		a.SaveStrategy = args.StrategyNo
	}
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 2, 8 // 4 micro-batches, which the replicas share
	a.NumReplicas, a.TPSize, a.DPReplicateSize, a.TPParts = goroutines, d.tp, d.replicas, d.parts
	a.ResumeFromCheckpoint, a.OverwriteOutputDir = checkpoint, checkpoint == ""
	model := gpt.Model(tensor.CPU())
	_, err := trainer.New(model, a, trainer.WithTrainData(gpt.Train())).TrainContext(ctx)
	return gpt.Hash(model), err
}
