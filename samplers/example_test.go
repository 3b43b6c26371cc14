// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/samplers"
)

// The longest sample comes first; after that each mega-batch, here of two, falls in length.
func ExampleLengthGroupedSampler() {
	lengths := []int{12, 7, 90, 33, 8, 31, 64, 5}
	s, err := samplers.NewLengthGroupedSampler(lengths, 2, 42, samplers.Seekable)
	if err != nil {
		panic(err)
	}
	var row []int
	for i := range s.Len() {
		row = append(row, lengths[s.At(0, i)])
	}
	fmt.Println(row)
	// Output: [90 5 64 31 33 7 12 8]
}

// Twenty samples in batches of three on two ranks, by the two ways to end an epoch.
func ExampleBatchSamplerShard() {
	b, err := samplers.NewBatch(samplers.NewSequential(20), 3, false)
	if err != nil {
		panic(err)
	}
	for _, even := range []bool{true, false} {
		for rank := range 2 {
			s, err := samplers.NewBatchSamplerShard(b, samplers.Shard{Rank: rank, WorldSize: 2},
				samplers.BatchSamplerShardOptions{EvenBatches: even})
			if err != nil {
				panic(err)
			}
			last := s.Len() - 1
			fmt.Printf("even %v, rank %d: %d batches, the last %v\n", even, rank, s.Len(), s.At(0, last))
		}
	}
	// Output:
	// even true, rank 0: 4 batches, the last [18 19 0]
	// even true, rank 1: 4 batches, the last [1 2 3]
	// even false, rank 0: 4 batches, the last [18 19]
	// even false, rank 1: 3 batches, the last [15 16 17]
}

// A loop that reads its own part of the data, as with torch's DistributedSampler and DataLoader.
func ExampleDistributedSampler() {
	for rank := range 2 {
		s, err := samplers.NewDistributedSampler(7,
			samplers.DistributedSamplerOptions{NumReplicas: 2, Rank: rank, Shuffle: true, Seed: 42})
		if err != nil {
			panic(err)
		}
		batches, err := samplers.NewBatch(s, 2, false)
		if err != nil {
			panic(err)
		}
		for epoch := range int64(2) {
			for j := range batches.Len() { // or data.NewLoader with data.EpochOrder(batches, epoch)
				fmt.Println("rank", rank, "epoch", epoch, "samples", batches.At(epoch, j))
			}
		}
	}
	// Output:
	// rank 0 epoch 0 samples [1 3]
	// rank 0 epoch 0 samples [4 2]
	// rank 0 epoch 1 samples [3 2]
	// rank 0 epoch 1 samples [5 6]
	// rank 1 epoch 0 samples [6 5]
	// rank 1 epoch 0 samples [0 1]
	// rank 1 epoch 1 samples [1 4]
	// rank 1 epoch 1 samples [0 3]
}
