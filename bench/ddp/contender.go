// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/bench/internal/torchrun"
	"github.com/lockstep-ml/lockstep/bench/internal/workers"
)

// envWorker holds a worker's settings.
const envWorker = "BENCH_DDP_WORKER"

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
	n, each := b.Ranks, 1
	switch name {
	case "one", "torch-one":
		n = 1
	case "goroutines":
		n, each = 1, b.Ranks
	}
	var env []string
	if connected(name) {
		var err error
		if env, err = torchrun.Environment(b.Ranks); err != nil {
			return nil, err
		}
	}
	list := make([]*workers.Worker, n)
	defer func() {
		for _, w := range list {
			w.Kill()
		}
	}()
	for rank := range list {
		cores := fmt.Sprint(b.cores[rank])
		if name == "goroutines" {
			cores = strings.Trim(strings.ReplaceAll(fmt.Sprint(b.cores[:b.Ranks]), " ", ","), "[]")
		}
		var err error
		if list[rank], err = b.start(name, rank, cores, env); err != nil {
			return nil, err
		}
	}
	reports, err := workers.Reports[report](list, each)
	for _, r := range reports {
		if err == nil && len(r.Seconds) == 0 {
			err = errors.New("a worker timed no step")
		}
	}
	return reports, err
}

// start begins a worker, pinned to cores.
func (b *bench) start(name string, rank int, cores string, env []string) (*workers.Worker, error) {
	s := b.settings
	s.Contender, s.Rank = name, rank
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	argv := []string{self}
	if isTorch(name) {
		_, here, _, _ := runtime.Caller(0)
		argv = []string{workers.Python(), filepath.Join(filepath.Dir(here), "peer", "ddp.py")}
	}
	env = append(slices.Clip(env), envWorker+"="+string(text))
	if connected(name) {
		env = append(env, fmt.Sprint("RANK=", rank), fmt.Sprint("LOCAL_RANK=", rank))
	}
	return workers.Start(rank, cores, argv, env)
}
