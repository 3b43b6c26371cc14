// SPDX-License-Identifier: Apache-2.0

package trainer_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/data"
	"github.com/lockstep-ml/lockstep/internal/vfs"
	"github.com/lockstep-ml/lockstep/tensor"
	"github.com/lockstep-ml/lockstep/trainer"
)

func byLength(a *args.TrainingArguments) { a.TrainSamplingStrategy = args.SamplingGroupByLength }

func TestGroupByLengthHasTheSameBitsOnAnyNumberOfRanks(t *testing.T) {
	one := trainOnRanks(t, 1, byLength)
	require.NotEqual(t, trainOnRanks(t, 1).weights, one.weights)
	four := trainOnRanks(t, 4, byLength)
	require.Equal(t, one.history, four.history)
	require.Equal(t, one.weights, four.weights)
	two := trainOnRanksFrom(t, four.disk.CrashClone(nil), 2, byLength, func(a *args.TrainingArguments) {
		a.ResumeFromCheckpoint = out + "/checkpoint-2"
	})
	require.Equal(t, one.weights, two.weights)
}

// The longest sample comes first, every sample comes once an epoch, and evaluation keeps the dataset's order.
func TestGroupByLengthOrder(t *testing.T) {
	var mu sync.Mutex
	var seen []int
	collate := func(c *tensor.Ctx, samples [][]int32) (*data.Batch, error) {
		mu.Lock()
		for _, s := range samples {
			seen = append(seen, len(s))
		}
		mu.Unlock()
		return data.CausalLM(0)(c, samples)
	}
	list := make(data.Slice[[]int32], 8)
	for i := range list {
		list[i] = make([]int32, 2+(i*3)%5)
	}
	list[5] = make([]int32, 8)
	source := data.NewSource(list, collate)
	a := args.Default(out)
	byLength(a)
	a.SaveStrategy = args.StrategyNo // a checkpoint has a fingerprint of the data, which reads some once more
	a.NumTrainEpochs, a.PerDeviceTrainBatchSize, a.GradientAccumulationSteps = 1, 1, 2
	tr := newTrainer(vfs.NewMem(), newGPT2(t, 0), a, trainer.WithTrainData(source), trainer.WithEvalData(source))
	_, err := tr.Train()
	require.NoError(t, err)
	lengths := []int{}
	for _, s := range list {
		lengths = append(lengths, len(s))
	}
	require.Len(t, seen, 8)
	require.Equal(t, 8, seen[0])
	require.ElementsMatch(t, lengths, seen)
	rising := 0
	for i := 2; i < 8; i += 2 { // steps of 2, each sorted except for the one whose first sample made way
		if seen[i+1] > seen[i] {
			rising++
		}
	}
	require.LessOrEqual(t, rising, 1)
	seen = nil
	_, err = tr.Evaluate()
	require.NoError(t, err)
	require.Equal(t, lengths, seen)
}

func TestGroupByLengthNeedsLengths(t *testing.T) {
	a := lineArgs(byLength)
	_, err := newTrainer(vfs.NewMem(), newMLP(t, 1, 1), a, trainer.WithTrainData(source(points(64)))).Train()
	require.EqualError(t, err,
		`trainer: train_sampling_strategy group_by_length: data: samples of type trainer_test.point have no length: want slices, or structs with an integer "length" or a slice "input_ids", or a dataset with a method Lengths`)
}
