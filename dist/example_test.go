// SPDX-License-Identifier: Apache-2.0

package dist_test

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/dist"
	"github.com/lockstep-ml/lockstep/dist/local"
)

// Four ranks, here goroutines of one process, add up their numbers. With dist/shm or dist/tcp the ranks are processes,
// and the body is the same.
func Example() {
	err := local.Run(4, dist.Options{}, func(g *dist.Group) error {
		numbers := []float32{1, float32(g.Rank())}
		if err := g.AllReduce(dist.Of(numbers), dist.Sum).Wait(context.Background()); err != nil {
			return err // the first error ends the group on every rank
		}
		if g.Rank() == 0 {
			fmt.Println(numbers) // the same on all ranks
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	// Output: [4 6]
}
