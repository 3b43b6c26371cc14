// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"fmt"
	"strings"

	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/internal/quantity"
)

// Cut describes how a prepared model is spread over the ranks: the strategy, and a rank's part of the parameters
// between steps, in megabytes of 10⁶ bytes. It is "" where each rank holds everything.
func Cut(a *Accelerator) string {
	name := map[args.ShardStrategy]string{args.ShardOptimizer: "zero_stage 1", args.ShardGradients: "zero_stage 2"}
	strategy := string(a.sharding.Strategy)
	if n := name[a.sharding.Strategy]; n != "" {
		strategy = n
	}
	s := a.Shards()
	switch {
	case a.sharding.Strategy == args.NoShard:
		return ""
	case s == nil && a.Data().Size() == 1:
		return strategy + " has no effect on one rank"
	case s == nil:
		return ""
	}
	words := []string{fmt.Sprintf("%.1f MB of parameters per rank", float64(s.Memory().Parameters)/1e6)}
	if units := s.Units(); units > 0 {
		words = append([]string{quantity.Of(units, "unit")}, words...)
	}
	switch {
	case s.GathersParameters():
		words = append(words, "gathered")
	case s.SharesParameters():
		words = append(words, "shared by the ranks of the host")
	}
	if n := a.twins().size; n > 1 {
		words = append(words, fmt.Sprintf("%d replicas", n))
	}
	if a.args.OffloadParams == args.OffloadDisk {
		words = append(words, "parameters on disk")
	}
	if a.args.OffloadOptimizer == args.OffloadDisk {
		words = append(words, "optimizer on disk")
	}
	return strategy + ": " + strings.Join(words, ", ")
}
