// SPDX-License-Identifier: Apache-2.0

// Mesh trains a small GPT-2 on four ranks, which are goroutines: pipelines of two stages (pp_size), each sharded over
// two ranks (dp_shard_size). Then runs continue from its checkpoint in the middle, on this mesh and on others. The
// weights always have the bits of one rank. Under a launcher of four processes it trains on the first mesh alone:
//
//	CGO_ENABLED=0 go build -o out/bin/mesh ./examples/by_feature/mesh
//	go run ./cmd/lockstep launch --nproc_per_node 4 -- out/bin/mesh
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
	folder = "out/mesh"
)

// mesh is the sizes of the axes; their product is the number of ranks.
type mesh struct{ pp, replicas, shards int }

func main() { os.Exit(program.Run(run)) }

func run(ctx context.Context, p *program.Process) error {
	place, err := env.Detect(os.LookupEnv)
	if err != nil {
		return err
	}
	sharded := mesh{pp: 2, replicas: 1, shards: 2}
	if place.Distributed() {
		weights, err := train(ctx, 1, sharded, false, "")
		if err == nil {
			p.Printf("%s: weights %s\n", sharded, weights)
		}
		return err
	}
	one, err := train(ctx, 1, mesh{1, 1, 1}, false, "")
	if err != nil {
		return err
	}
	p.Printf("1 rank: weights %s\n", one)
	if _, err = train(ctx, 4, sharded, true, ""); err != nil {
		return err
	}
	half := fmt.Sprintf("%s/checkpoint-%d", folder, steps/2)
	for _, m := range []mesh{sharded, {1, 1, 4}, {2, 2, 1}, {2, 2, 2}, {1, 1, 1}} {
		weights, err := train(ctx, m.pp*m.replicas*m.shards, m, false, half)
		if err != nil {
			return err
		}
		p.Printf("%s, from %s: weights %s, same bits as on 1 rank: %t\n", m, half, weights, weights == one)
	}
	return nil
}

func (m mesh) String() string {
	return fmt.Sprintf("pp %d × dp_replicate %d × dp_shard %d", m.pp, m.replicas, m.shards)
}

// train trains on a mesh, of which this process has some of the ranks as goroutines, from a checkpoint if there is one,
// and returns the hash of the weights. It saves after half of the steps, or never.
func train(ctx context.Context, goroutines int, m mesh, save bool, checkpoint string) (string, error) {
	a := args.Default(folder)
	a.LearningRate, a.MaxSteps, a.LoggingSteps, a.SaveSteps = 0.003, steps, steps, steps/2
	if !save {
		a.SaveStrategy = args.StrategyNo
	}
	a.PerDeviceTrainBatchSize, a.GlobalTrainBatchSize = 1, 8 // 8 micro-batches, which the ranks along dp share
	a.NumReplicas, a.PPSize, a.DPReplicateSize, a.DPShardSize = goroutines, m.pp, m.replicas, m.shards
	a.ResumeFromCheckpoint, a.OverwriteOutputDir = checkpoint, checkpoint == ""
	model := gpt.Model(tensor.CPU())
	_, err := trainer.New(model, a, trainer.WithTrainData(gpt.Train())).TrainContext(ctx)
	return gpt.Hash(model), err
}
