// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/bench/internal/workers"
)

// usual are the contenders that run unless others are named, in the order in which they take turns.
var usual = []string{"one", "apart", "shm", "tcp", "goroutines", "torch-one", "torch-apart", "torch-ddp"}

// strategies are the ways to shard a model, which may follow an engine's name: shm:full_shard.
var strategies = map[string]shard.Strategy{"": shard.None, "zero_1": shard.Optimizer,
	"zero_2": shard.Gradients, "shard_grad_op": shard.GradOp, "full_shard": shard.Full,
	"full_shard_shared": shard.Full}

// known reports whether there is a contender of that name.
func known(name string) bool {
	engine, strategy := engineOf(name)
	_, ok := strategies[strategy]
	return ok && connected(engine) && !isTorch(engine) || slices.Contains(usual, name) ||
		slices.Contains(sharders, name)
}

// sharders are PyTorch's ways to shard a model that are compared with ours: fully_shard, and DeepSpeed's stage 3.
var sharders = []string{"torch-fsdp2", "torch-deepspeed3"}

// engineOf divides the name of a contender into the engine and the way to shard the model.
func engineOf(name string) (engine, strategy string) {
	engine, strategy, _ = strings.Cut(name, ":")
	return engine, strategy
}

func isTorch(name string) bool { return strings.HasPrefix(name, "torch-") }

// connected reports whether a contender's processes are ranks of one job.
func connected(name string) bool {
	engine, _ := engineOf(name)
	return slices.Contains([]string{"shm", "tcp", "torch-ddp"}, engine) || slices.Contains(sharders, engine)
}

// round runs a contender once and returns what each of its ranks reports.
func (b *bench) round(name string) ([]report, error) {
	j := workers.Job{Cores: slices.Collect(slices.Chunk(b.cores[:b.Ranks], 1)), Connected: connected(name)}
	switch name {
	case "one", "torch-one":
		j.Cores = j.Cores[:1]
	case "goroutines":
		j.Cores = [][]int{b.cores[:b.Ranks]}
	}
	if isTorch(name) {
		j.Script = "ddp/peer/ddp.py"
	}
	j.Settings = func(rank int) any {
		s := b.settings
		s.Contender, s.Rank = name, rank
		return s
	}
	reports, err := workers.Run[report](j)
	for _, r := range reports {
		if err == nil && len(r.Seconds) == 0 {
			err = errors.New("a worker timed no step")
		}
	}
	return reports, err
}
