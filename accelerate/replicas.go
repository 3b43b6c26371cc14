// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/accelerate/flight"
	"github.com/lockstep-ml/lockstep/comm/local"
)

// newReplicas is Replicas.
func newReplicas(p plan, n int, opts []Option) ([]*Accelerator, error) {
	ranks, on := make([]*Accelerator, n), named(p.device)
	for r := range ranks {
		var err error
		if ranks[r], err = create(p, on, opts, r); err != nil {
			return nil, err
		}
		if ranks[r].processes != nil {
			return nil,
				fmt.Errorf("accelerate: this process is already rank %d of %d: want ranks as goroutines or as "+
					"processes, not both", ranks[r].rank, ranks[r].size)
		}
		ranks[r].rank, ranks[r].size = r, n
		if err := find(ranks[r]); err != nil {
			return nil, err
		}
	}
	return ranks, shareDevices(ranks)
}

// Connect joins the ranks that Replicas returned into a group. Each rank leaves it with
// Close. After a failure, call Connect again to replace the group.
func Connect(ranks []*Accelerator) {
	opts := ranks[0].groupOptions()
	opts.FlightDir = os.Getenv(flight.EnvDir) // what ranks of one process say of a failure is enough otherwise
	for r, g := range local.New(len(ranks), opts) {
		ranks[r].group, ranks[r].unwatch = g, flight.Watch(g, ranks[r].flightJob(), ranks[r].log)
	}
}
