// SPDX-License-Identifier: Apache-2.0

package samplers_test

import (
	"fmt"

	"github.com/lockstep-ml/lockstep/samplers"
)

// Two ranks train on 10 samples: an optimizer step has two micro-batches of 2 samples, one for each rank. The last step
// of an epoch has fewer, and no sample is repeated.
func Example() {
	for rank := range 2 {
		order := samplers.NewRandom(10, 42) // reshuffled in every epoch
		stream, err := samplers.NewStream(order,
			samplers.WindowLayout{BatchSize: 2, AccumulationSteps: 1, WorldSize: 2, Rank: rank})
		if err != nil {
			panic(err)
		}
		for range 3 {
			window, _ := stream.Next()
			for _, micro := range window.Own {
				fmt.Println("rank", rank, "epoch", window.Epoch, "step", window.Number, "samples", micro.Indices)
			}
		}
	}
	// Output:
	// rank 0 epoch 0 step 0 samples [8 1]
	// rank 0 epoch 0 step 1 samples [5 7]
	// rank 0 epoch 0 step 2 samples [2 4]
	// rank 1 epoch 0 step 0 samples [0 9]
	// rank 1 epoch 0 step 1 samples [3 6]
}
