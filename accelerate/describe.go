// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"strings"

	"github.com/lockstep-ml/lockstep/accelerate/shard"
)

// DescribeSharding says how a prepared model is spread over the ranks: the strategy, the schedule of a pipeline, and a
// rank's part of the parameters between steps, in megabytes of 10⁶ bytes. It is "" if each rank has everything.
func (a *Accelerator) DescribeSharding() string {
	name := map[shard.Strategy]string{shard.Optimizer: "zero_stage 1", shard.Gradients: "zero_stage 2"}
	strategy := string(a.sharding.Strategy)
	if n := name[a.sharding.Strategy]; n != "" {
		strategy = n
	}
	p := a.strategy.Parameters()
	switch {
	case p == nil && a.sharding.Strategy != shard.None && a.DataRanks().WorldSize() == 1:
		return strategy + " has no effect on one rank"
	case p == nil:
		return ""
	case a.sharding.Strategy == shard.None:
		return p.Describe()
	}
	words := []string{p.Describe()}
	if a.plan.disk.params {
		words = append(words, "parameters on disk")
	}
	if a.plan.disk.state {
		words = append(words, "optimizer on disk")
	}
	return strategy + ": " + strings.Join(words, ", ")
}
