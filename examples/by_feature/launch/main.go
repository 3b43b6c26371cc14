// SPDX-License-Identifier: Apache-2.0

// Launch trains on the ranks that lockstep launch, torchrun, mpirun or srun started. Each rank prints its place; the
// trainer needs no extra code for ranks. Started alone, it is one rank, and ends with the same bits.
//
//	CGO_ENABLED=0 go build -o out/bin/launch ./examples/by_feature/launch
//	go run ./cmd/lockstep launch --nproc_per_node 2 -- out/bin/launch
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm/env"
	"github.com/lockstep-ml/lockstep/examples/by_feature/internal/line"
	"github.com/lockstep-ml/lockstep/program"
	"github.com/lockstep-ml/lockstep/trainer"
)

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, _ *program.Process) error {
	place, err := env.Detect(os.LookupEnv)
	if err != nil {
		return err
	}
	a := args.Default("out/launch")
	a.LearningRate, a.NumTrainEpochs, a.SaveStrategy = 0.1, 20, args.StrategyNo
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 2, 16

	model := line.Model()
	t := trainer.New(model, a, trainer.WithTrainData(line.Train()))
	res, err := t.TrainContext(ctx)
	if err != nil {
		return err
	}
	// p.Stdout is rank 0's alone; here every rank prints
	fmt.Printf("rank %d of %d, process %d: %d steps, %s\n", place.Rank, place.WorldSize, os.Getpid(), res.GlobalStep,
		line.String(model))
	return t.SaveModel("") // rank 0 does
}
