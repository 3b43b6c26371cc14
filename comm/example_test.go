// SPDX-License-Identifier: Apache-2.0

package comm_test

import (
	"context"
	"fmt"

	"github.com/lockstep-ml/lockstep/comm"
	"github.com/lockstep-ml/lockstep/comm/local"
)

// Four ranks, here goroutines of one process, add up their numbers. With comm/shm or comm/tcp the ranks are processes,
// and the body is the same.
func Example() {
	err := local.Run(4, comm.Options{}, func(g *comm.Group) error {
		numbers := []float32{1, float32(g.Rank())}
		if err := g.AllReduce(comm.Of(numbers), comm.Sum).Wait(context.Background()); err != nil {
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
