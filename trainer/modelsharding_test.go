// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/vfs"
)

// shardings are the ways to spread a model over ranks.
var shardings = map[string]func(a *args.TrainingArguments){
	"zero_stage 1":    func(a *args.TrainingArguments) { a.ZeroStage = 1 },
	"zero_stage 2":    func(a *args.TrainingArguments) { a.ZeroStage = 2 },
	"zero_stage 3":    func(a *args.TrainingArguments) { a.ZeroStage = 3 },
	"fsdp full_shard": func(a *args.TrainingArguments) { gather(a, "full_shard", "auto_wrap") },
	"fsdp hybrid_shard": func(a *args.TrainingArguments) {
		a.DPReplicateSize = 2
		gather(a, "hybrid_shard")
	},
	"dp_shard_size":      func(a *args.TrainingArguments) { a.DPShardSize = 2 },
	"fsdp shard_grad_op": func(a *args.TrainingArguments) { gather(a, "shard_grad_op auto_wrap") },
}

// leastRanks are those that a way to spread a model takes.
func leastRanks(sharding string) int {
	if sharding == "fsdp hybrid_shard" {
		return 4
	}
	return 2
}

func gather(a *args.TrainingArguments, fsdp ...string) { a.FSDP, a.FSDPShareParameters = fsdp, false }

// A run whose model is spread over the ranks leaves what a run on one rank does: records, evaluations, weights, and the
// bytes of its checkpoints. It can be resumed under any other way and number of ranks.
func TestShardedModelsHaveTheBitsOfOneRank(t *testing.T) {
	one := trainOnRanks(t, 1, fourSteps)
	for name, set := range shardings {
		for _, ranks := range slices.Compact([]int{leastRanks(name), 4}) {
			if testing.Short() && ranks != leastRanks(name) {
				continue // the run that resumes has as many ranks
			}
			t.Run(fmt.Sprintf("%s, %d ranks", name, ranks), func(t *testing.T) {
				many := trainOnRanks(t, ranks, fourSteps, set)
				require.Equal(t, one.history, many.history)
				require.Equal(t, one.weights, many.weights)
				for _, part := range []string{"model.safetensors", "optimizer.safetensors", "optimizer.json"} {
					path := out + "/checkpoint-4/" + part
					require.Equal(t, content(t, one.disk, path), content(t, many.disk, path), path)
				}
				for other, set := range shardings {
					if ranks == leastRanks(name) && (!testing.Short() || other == name) {
						fork := many.disk.CrashClone(nil)
						resumed := trainOnRanksFrom(t, fork, 4, fourSteps, set, func(a *args.TrainingArguments) {
							a.ResumeFromCheckpoint = out + "/checkpoint-2"
						})
						require.Equal(t, one.weights, resumed.weights, "resumed under %s", other)
					}
				}
			})
		}
	}
}

// bf16 and recomputation change as little about that as they do without shards.
func TestShardedModelsUnderMixedPrecision(t *testing.T) {
	half := func(a *args.TrainingArguments) { a.BF16, a.GradientCheckpointing = true, true }
	one := trainOnRanks(t, 1, fourSteps, half)
	for name, set := range shardings {
		many := trainOnRanks(t, leastRanks(name), fourSteps, half, set)
		require.Equal(t, one.history, many.history, name)
		require.Equal(t, one.weights, many.weights, name)
	}
}

// Offload to disk changes no bit either, resumes what was not offloaded, and leaves no file. What cannot be is refused.
func TestOffload(t *testing.T) {
	one := trainOnRanks(t, 1, fourSteps)
	none := func(*args.TrainingArguments) {}
	for name, c := range map[string]struct {
		ranks int
		set   func(a *args.TrainingArguments)
	}{"one rank": {1, none}, "data parallelism": {2, none}, "zero 1": {2, shardings["zero_stage 1"]},
		"zero 2": {2, shardings["zero_stage 2"]}, "full shard": {2, shardings["fsdp full_shard"]},
		"shared": {2, shardings["zero_stage 3"]}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			disk := func(a *args.TrainingArguments) {
				a.OffloadOptimizer, a.OffloadDir = args.OffloadDisk, dir
				if c.ranks == 1 || a.ShardStrategy() == args.FullShard {
					a.OffloadParams = args.OffloadDisk
				}
			}
			many := trainOnRanks(t, c.ranks, fourSteps, c.set, disk)
			require.Equal(t, one.history, many.history)
			require.Equal(t, one.weights, many.weights)
			for _, part := range []string{"model.safetensors", "optimizer.safetensors"} {
				path := out + "/checkpoint-4/" + part
				require.Equal(t, content(t, one.disk, path), content(t, many.disk, path), path)
			}
			resumed := trainOnRanksFrom(t, one.disk.CrashClone(nil), c.ranks, fourSteps, c.set, disk,
				func(a *args.TrainingArguments) { a.ResumeFromCheckpoint = out + "/checkpoint-2" })
			require.Equal(t, one.weights, resumed.weights)
			files, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, files)
		})
	}
}

func content(t *testing.T, fsys vfs.FS, path string) string {
	t.Helper()
	text, err := vfs.ReadFile(fsys, path, 1<<30)
	require.NoError(t, err)
	return string(text)
}

// Every optimizer that is built in steps on shards with the bits of whole parameters.
func TestOptimizersOfShardedModels(t *testing.T) {
	for _, optimizer := range []func(a *args.TrainingArguments){
		func(a *args.TrainingArguments) { a.Optim = args.OptimAdam },
		func(a *args.TrainingArguments) { a.Optim, a.OptimArgs = args.OptimSGD, "momentum=0.9,nesterov=true" },
	} {
		one := trainOnRanks(t, 1, fourSteps, optimizer)
		many := trainOnRanks(t, 2, fourSteps, optimizer, shardings["fsdp full_shard"])
		require.Equal(t, one.history, many.history)
		require.Equal(t, one.weights, many.weights)
	}
}
