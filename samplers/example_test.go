// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/samplers"
)

// The longest sample comes first; after that each mega-batch, here of two, falls in length.
func ExampleLengthGrouped() {
	lengths := []int{12, 7, 90, 33, 8, 31, 64, 5}
	s, err := samplers.NewLengthGrouped(lengths, 2, 42)
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
func ExampleBatchShard() {
	b, err := samplers.NewBatch(samplers.NewSequential(20), 3, false)
	if err != nil {
		panic(err)
	}
	for _, even := range []bool{true, false} {
		for rank := range 2 {
			s, err := samplers.NewBatchShard(b, samplers.Shard{Rank: rank, WorldSize: 2},
				samplers.BatchShardOptions{EvenBatches: even})
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
