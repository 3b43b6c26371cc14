// SPDX-License-Identifier: Apache-2.0

// Context_parallel trains a small GPT-2 on ranks that divide the tokens of each sequence (cp_size) and exchange keys
// and values in different ways (cp_strategy). With the same number of chunks (cp_chunks) the weights have the bits of
// one rank, except for a ring, which adds in another order. A run continues from a checkpoint on other ranks. Under a
// launcher of two processes it trains on these alone:
//
//	CGO_ENABLED=0 go build -o out/bin/context_parallel ./examples/by_feature/context_parallel
//	go run ./cmd/lockstep launch --nproc_per_node 2 -- out/bin/context_parallel
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
	chunks = 8 // of a sequence of 32 tokens
	folder = "out/context_parallel"
)

// job is one training run.
type job struct {
	ranks, cp  int // ranks of this process, and how many of all share a sequence
	strategy   args.CPStrategy
	chunks     int
	save       bool   // after half of the steps
	checkpoint string // to continue from
}

func (j job) String() string { return fmt.Sprintf("cp_size %d by %s", j.cp, j.strategy) }

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	place, err := env.Detect(os.LookupEnv)
	if err != nil {
		return err
	}
	if place.Distributed() {
		j := job{ranks: 1, cp: 2, strategy: args.CPGather, chunks: chunks}
		weights, _, err := j.train(ctx)
		if err == nil {
			p.Printf("%s: weights %s\n", j, weights)
		}
		return err
	}
	one, loss, err := job{ranks: 1, cp: 1, strategy: args.CPGather, chunks: chunks}.train(ctx)
	if err != nil {
		return err
	}
	p.Printf("1 rank: weights %s, loss %.6f\n", one, loss)
	half := fmt.Sprintf("%s/checkpoint-%d", folder, steps/2)
	for _, j := range []job{
		{ranks: 2, cp: 2, strategy: args.CPRing, chunks: chunks},
		{ranks: 4, cp: 4, strategy: args.CPUlysses, chunks: chunks, save: true},
		{ranks: 4, cp: 2, strategy: args.CPGather, checkpoint: half}, // the checkpoint has the number of chunks
	} {
		weights, loss, err := j.train(ctx)
		if err != nil {
			return err
		}
		p.Printf("%d ranks, %s: weights %s, loss %.6f, same bits as on 1 rank: %t\n", j.ranks, j, weights, loss,
			weights == one)
	}
	return nil
}

// train returns the hash of the weights that a run ends with, and its mean loss.
func (j job) train(ctx context.Context) (weights string, loss float64, err error) {
	a := args.Default(folder)
	a.LearningRate, a.MaxSteps, a.LoggingSteps, a.SaveSteps = 0.003, steps, steps, steps/2
	if !j.save {
		a.SaveStrategy = args.StrategyNo
	}
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 2, 8 // 4 micro-batches, which the ranks along dp share
	a.NumReplicas, a.CPSize, a.CPStrategy, a.CPChunks = j.ranks, j.cp, j.strategy, j.chunks
	a.ResumeFromCheckpoint, a.OverwriteOutputDir = j.checkpoint, j.checkpoint == ""
	model := gpt.Model(tensor.CPU())
	result, err := trainer.New(model, a, trainer.WithTrainData(gpt.Train())).TrainContext(ctx)
	if err != nil {
		return "", 0, err
	}
	return gpt.Hash(model), result.TrainingLoss, nil
}
