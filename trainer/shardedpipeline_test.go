// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/trainer"
)

// A model that is sharded in the stages of pipelines is trained with the bits of one rank: weights, moments, losses and
// norms, with evaluations, whatever the strategy and the schedule. The last window of an epoch has three micro-batches,
// so that a rank repeats another's.
func TestShardedPipelines(t *testing.T) {
	const samples = 53
	whole := trainWideOn(t, vfs.NewMem(), samples, 1, "", false, evaluating)
	for i, k := range []struct {
		mesh     [3]int // pp, dp_replicate, dp_shard
		schedule string
		set      func(*args.TrainingArguments)
	}{
		{[3]int{2, 1, 2}, "1f1b", fullShard},
		{[3]int{2, 1, 2}, "zbv", fullShard},
		{[3]int{2, 1, 2}, "zb_h1", zero(1)},
		{[3]int{2, 1, 2}, "looped_bfs", zero(2)},
		{[3]int{2, 2, 2}, "interleaved_1f1b", fullShard},
		{[3]int{2, 2, 2}, "1f1b", zero(2)},
	} {
		t.Run(fmt.Sprint(k.mesh, k.schedule, i), func(t *testing.T) {
			mesh := meshOf(k.mesh[0], k.mesh[1], k.mesh[2], k.schedule)
			for _, gather := range []bool{true, false} {
				if gather && i > 1 && i%2 == 1 {
					continue // stages 1 and 2 keep whole parameters: one of them is enough
				}
				ranks := k.mesh[0] * k.mesh[1] * k.mesh[2]
				run := trainWideOn(t, vfs.NewMem(), samples, ranks, "", gather, evaluating, k.set, mesh)
				require.Equal(t, whole.history, run.history)
				require.Equal(t, whole.weights, run.weights)
			}
		})
	}
}

func evaluating(a *args.TrainingArguments) { a.EvalStrategy, a.EvalSteps = args.StrategyEpoch, nil }

// meshOf has ranks along pp, dp_replicate and dp_shard.
func meshOf(pp, replicate, shard int, schedule string) func(*args.TrainingArguments) {
	return func(a *args.TrainingArguments) {
		a.PPSize, a.DPReplicateSize, a.DPShardSize, a.PPSchedule = pp, replicate, shard, schedule
	}
}

// A checkpoint of sharded stages has the bytes of one rank's, whole or in parts, and any other mesh goes on from it
// with the bits of a run that was never interrupted.
func TestCheckpointsOfShardedPipelines(t *testing.T) {
	const first, last = out + "/checkpoint-2", out + "/checkpoint-6"
	files := []string{"model.safetensors", "optimizer.safetensors", "optimizer.json"}
	one := trainWide(t, vfs.NewMem(), 1, "", false)
	whole := trainWide(t, vfs.NewMem(), 4, "", true, fullShard, meshOf(2, 1, 2, "1f1b"))
	for _, name := range files {
		require.Equal(t, content(t, one.disk, last+"/"+name), content(t, whole.disk, last+"/"+name), name)
	}
	parts := trainWide(t, vfs.NewMem(), 8, "", true, fullShard, scattered, meshOf(2, 2, 2, "zbv"))
	require.NotContains(t, filesOf(t, parts.disk, first), files[0])
	for name, k := range map[string]struct {
		from  rankRun
		ranks int
		set   []func(*args.TrainingArguments)
	}{
		"one rank":            {parts, 1, nil},
		"8 × 1":               {parts, 8, []func(*args.TrainingArguments){fullShard}},
		"1 × 4 of a pipeline": {parts, 4, []func(*args.TrainingArguments){meshOf(4, 1, 1, "1f1b")}},
		"2 × 2, from one":     {one, 4, []func(*args.TrainingArguments){fullShard, meshOf(2, 1, 2, "looped_bfs")}},
		"2 × 2, stage 1":      {whole, 4, []func(*args.TrainingArguments){zero(1), meshOf(2, 1, 2, "zb_h1")}},
		"2 × 2 × 2":           {whole, 8, []func(*args.TrainingArguments){fullShard, meshOf(2, 2, 2, "1f1b")}},
	} {
		fork := k.from.disk.CrashClone(nil)
		resumed := trainWide(t, fork, k.ranks, "", true, append(k.set, func(a *args.TrainingArguments) {
			a.ResumeFromCheckpoint = first
		})...)
		require.Equal(t, one.weights, resumed.weights, name)
		for _, file := range files {
			require.Equal(t, content(t, one.disk, last+"/"+file), content(t, fork, last+"/"+file), "%s: %s", name, file)
		}
	}
}

// That a step has fewer micro-batches than the schedule takes is logged once, whatever the number of pipelines.
func TestTailIsLoggedOnce(t *testing.T) {
	for name, set := range map[string]func(*args.TrainingArguments){
		"sharded": func(a *args.TrainingArguments) { a.DPShardSize, a.FSDP = 2, []string{"full_shard"} },
		"torch":   func(a *args.TrainingArguments) { a.DPReplicateSize, a.DataSharding = 2, args.ShardingTorch },
		"one":     func(a *args.TrainingArguments) { a.DPReplicateSize = 2 },
	} {
		a := args.Default(out)
		a.NumReplicas, a.PPSize, a.PPSchedule, a.MaxSteps, a.SaveStrategy = 4, 2, "interleaved_1f1b", 8, args.StrategyNo
		a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = 1, 4
		set(a)
		var log messages
		samples := 30 // 3 micro-batches of each pipeline in the last step, or
		if name == "one" {
			samples = 29 // 1 of the second one's
		}
		_, err := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(texts(samples)),
			trainer.WithLogger(log.logger())).Train()
		require.NoError(t, err, name)
		require.Equal(t, 1, strings.Count(log.String(), "a step has fewer micro-batches"), "%s: %s", name, log.String())
	}
}
