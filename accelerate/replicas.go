// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"fmt"
	"os"

	"github.com/lockstep-ml/lockstep/accelerate/flight"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/comm/local"
)

// Replicas returns the accelerators of n ranks that are goroutines of this process, in
// rank order. They take the devices that the arguments name in turn; those that share one, as the CPU, share its
// workers, which help any rank that has work. Connect prepares them for collective work.
func Replicas(a *args.TrainingArguments, n int, opts ...Option) ([]*Accelerator, error) {
	ranks, on := make([]*Accelerator, n), named(a.Device)
	for r := range ranks {
		if r > 0 { // a resume changes arguments, on each rank its own
			a = a.Clone()
		}
		var err error
		if ranks[r], err = create(a, on, opts, r); err != nil {
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
