// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/models"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

// watchBatches is the model's own loss; see sees the batches that are trained on.
func watchBatches(see func(b *data.Batch)) trainer.LossFunc {
	return func(c *nn.Ctx, out models.Output, b *data.Batch) (*tensor.Tensor, float64) {
		if c.Training {
			see(b)
		}
		return out.Loss, b.Count
	}
}

// sharded is a run under HuggingFace's sharding: what each rank saw of an epoch, and the weights.
type sharded struct {
	batches [][][]int64
	weights map[string][]byte
	disk    *vfs.Mem
}

// shardingCase is a row of samplers/testdata/sharding.json.
type shardingCase struct {
	Ranks        int
	BatchSize    int `json:"batch_size"`
	Samples      int
	SplitBatches bool `json:"split_batches"`
	EvenBatches  bool `json:"even_batches"`
	DropLast     bool `json:"drop_last"`
	Iterable     bool
	Skip         int
	Batches      [][][]int64 // of each rank
}

func (c shardingCase) train(t *testing.T, disk *vfs.Mem, set ...func(*args.TrainingArguments)) (sharded, error) {
	const steps = 2 // of accumulation
	a := lineArgs(append([]func(*args.TrainingArguments){func(a *args.TrainingArguments) {
		a.TrainSamplingStrategy, a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps,
			a.NumReplicas = args.SamplingSequential, c.BatchSize, steps, c.Ranks
		a.DataloaderDropLast, a.DataSharding = c.DropLast, args.ShardingHuggingFace
		a.AcceleratorConfig = map[string]any{"split_batches": c.SplitBatches, "even_batches": c.EvenBatches}
		a.NumTrainEpochs, a.SaveStrategy, a.SaveSteps, a.DDPTimeout = 2, args.StrategySteps, 1, 20
	}}, set...)...)
	out := sharded{batches: make([][][]int64, c.Ranks), disk: disk}
	var mu sync.Mutex
	seer := trainer.WithLoss(watchBatches(func(b *data.Batch) {
		mu.Lock()
		defer mu.Unlock()
		out.batches[b.MicroBatch/steps] = append(out.batches[b.MicroBatch/steps], b.Indices)
	}))
	m := newMLP(t, 1, 1)
	_, err := newTrainer(disk, m, a, trainer.WithTrainData(source(points(c.Samples))), seer).Train()
	out.weights = weights(m)
	return out, err
}

// Under data_sharding huggingface each rank trains on the batches that accelerate gives it, and a run that resumes at
// any step ends with the bits of one that was never interrupted.
func TestHuggingFaceSharding(t *testing.T) {
	file, err := os.ReadFile("../samplers/testdata/sharding.json")
	require.NoError(t, err)
	var cases []shardingCase
	require.NoError(t, json.Unmarshal(file, &cases))
	compared := 0
	for _, c := range cases {
		if c.Iterable || c.Skip > 0 || c.Ranks == 4 && c.BatchSize == 8 || c.Samples != 37 && c.Samples != 22 ||
			len(c.Batches[0]) == 0 {
			continue
		}
		compared++
		t.Run(fmt.Sprintf("%d ranks, %d samples by %d, split %t, even %t, drop %t", c.Ranks, c.Samples, c.BatchSize,
			c.SplitBatches, c.EvenBatches, c.DropLast), func(t *testing.T) {
			resumes := c.Ranks == 2 && c.Samples == 37
			whole, err := c.train(t, vfs.NewMem(), func(a *args.TrainingArguments) {
				if !resumes {
					a.SaveStrategy = args.StrategyNo
				}
			})
			require.NoError(t, err)
			for rank, want := range c.Batches {
				twice := append(slices.Clip(want), want...)
				if twice = slices.DeleteFunc(twice, func(b []int64) bool { return len(b) == 0 }); len(twice) == 0 {
					twice = nil
				}
				require.Equal(t, twice, whole.batches[rank], "rank %d", rank)
			}
			steps := 2 * ((len(c.Batches[0]) + 1) / 2)
			for step := 1; step < steps && resumes; step++ {
				again, err := c.train(t, whole.disk.CrashClone(nil), resumeFrom(int64(step)),
					func(a *args.TrainingArguments) { a.SaveStrategy = args.StrategyNo })
				require.NoError(t, err)
				require.Equal(t, whole.weights, again.weights, "from step %d", step)
			}
		})
	}
	require.Greater(t, compared, 20)
}

// The way of sharing out samples is the checkpoint's, and so is split_batches on another number of ranks.
func TestShardingIsTheCheckpoints(t *testing.T) {
	c := shardingCase{Ranks: 4, BatchSize: 4, Samples: 37, SplitBatches: true, EvenBatches: true}
	whole, err := c.train(t, vfs.NewMem())
	require.NoError(t, err)
	again, err := c.train(t, whole.disk.CrashClone(nil), resumeFrom(3), func(a *args.TrainingArguments) {
		a.DataSharding, a.AcceleratorConfig = args.ShardingLockstep, nil
	})
	require.NoError(t, err)
	require.Equal(t, whole.weights, again.weights)

	c.Ranks = 2
	fewer, err := c.train(t, whole.disk.CrashClone(nil), resumeFrom(3))
	require.NoError(t, err)
	require.Equal(t, lists{{24, 25}, {28, 29}, {32, 33}, {36, 0}}, lists(fewer.batches[0][:4]))

	c.Ranks, c.BatchSize = 4, 6
	_, err = c.train(t, vfs.NewMem())
	require.ErrorContains(t, err, "split_batches with a batch size of 6: want a multiple of the world size 4")
}

// Under data_sharding torch each rank trains on the batches of a program with torch's DistributedSampler and
// DataLoader, to the number, and a resumed run has the bits of an uninterrupted one.
func TestTorchSharding(t *testing.T) {
	file, err := os.ReadFile("../samplers/testdata/distributed.json")
	require.NoError(t, err)
	var recorded struct {
		Loaders []struct {
			Samples, Ranks int
			BatchSize      int       `json:"batch_size"`
			DropLast       bool      `json:"drop_last"`
			Batches        [][]lists // by rank and epoch
		}
	}
	require.NoError(t, json.Unmarshal(file, &recorded))
	compared := 0
	for _, r := range recorded.Loaders {
		if r.Ranks == 3 || r.Samples != 24 && r.Samples != 37 {
			continue
		}
		compared++
		c := shardingCase{Ranks: r.Ranks, BatchSize: r.BatchSize, Samples: r.Samples, DropLast: r.DropLast}
		torch := func(a *args.TrainingArguments) {
			a.DataSharding, a.AcceleratorConfig = args.ShardingTorch, nil
			a.TrainSamplingStrategy, a.Seed, a.SaveSteps = args.SamplingRandom, 3, 2
		}
		whole, err := c.train(t, vfs.NewMem(), torch)
		require.NoError(t, err)
		for rank, epochs := range r.Batches {
			require.Equal(t, slices.Concat(epochs...), lists(whole.batches[rank]), "rank %d of %+v", rank, r)
		}
		again, err := c.train(t, whole.disk.CrashClone(nil), torch, resumeFrom(2))
		require.NoError(t, err)
		require.Equal(t, whole.weights, again.weights, "%+v", r)
	}
	require.Greater(t, compared, 10)
}

type lists [][]int64
