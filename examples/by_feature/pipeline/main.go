// SPDX-License-Identifier: Apache-2.0

// Pipeline cuts a model that it defines itself (model.go) into stages on several ranks, which are goroutines. Each rank
// holds and updates its own layers. The weights have the bits of one rank under every schedule. Under a launcher the
// ranks are processes, as many as it starts:
//
//	CGO_ENABLED=0 go build -o out/bin/pipeline ./examples/by_feature/pipeline
//	go run ./cmd/lockstep launch --nproc_per_node 2 -- out/bin/pipeline
package main

import (
	"context"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/gpt"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/trainer"
)

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	place, err := env.Detect(os.LookupEnv)
	if err != nil {
		return err
	}
	if place.Distributed() {
		weights, err := train(ctx, 1, place.WorldSize, "1f1b")
		if err == nil {
			p.Printf("1f1b, %d ranks: weights %s\n", place.WorldSize, weights)
		}
		return err
	}
	one, err := train(ctx, 1, 1, "1f1b")
	if err != nil {
		return err
	}
	p.Printf("1 rank: weights %s\n", one)
	for _, run := range []struct {
		ranks    int
		schedule string
	}{{2, "1f1b"}, {2, "zbv"}, {4, "zb_h1"}} {
		weights, err := train(ctx, run.ranks, run.ranks, run.schedule)
		if err != nil {
			return err
		}
		p.Printf("%s, %d ranks: weights %s, same bits as on 1 rank: %t\n", run.schedule, run.ranks, weights,
			weights == one)
	}
	return nil
}

// train trains the model in a pipeline, of which this process has some of the ranks as goroutines, and returns the hash
// of its weights.
func train(ctx context.Context, goroutines, ranks int, schedule string) (string, error) {
	a := args.Default("out/pipeline")
	a.LearningRate, a.MaxSteps, a.LoggingSteps, a.SaveStrategy = 0.003, 20, 5, args.StrategyNo
	a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = 2, 8 // 8 micro-batches of a step
	a.NumReplicas, a.PPSize, a.PPSchedule = goroutines, ranks, schedule
	model := NewModel()
	_, err := trainer.New(model, a, trainer.WithTrainData(gpt.Train())).TrainContext(ctx)
	return gpt.Hash(model), err
}
