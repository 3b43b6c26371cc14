// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"maps"

	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/nn"
	"github.com/lockstep-ml/lockstep/tensor"
)

// Sharding says how a model is spread over the data's ranks.
type Sharding struct {
	Strategy shard.Strategy
	// Modules are the units whose parameters are gathered and freed together; nil means those that Prepare is given.
	// Parameters outside of them stay whole for the length of a pass.
	Modules []nn.Module
	// Gather makes ranks of one host gather parameters too. Else they have them once, in memory that they share, unless
	// their engine or device cannot: what full_shard is for, without its traffic.
	Gather bool
	// Hybrid has a replica of the model on each host, unless the mesh says how many there are: FSDP's HYBRID_SHARD.
	Hybrid bool
	// Ignored is a regular expression for the whole path of modules whose parameters stay whole on every rank, and
	// Persist the number of elements below which a parameter does.
	Ignored string
	Persist int
	// Rounded sends gradients as bfloat16, which halves the bytes and rounds what each micro-batch adds to the sums.
	Rounded bool
	// NoPrefetch gathers the parameters of a unit only when it begins, instead of while the one before it computes.
	NoPrefetch bool
}

// WithSharding shards the model over the ranks that see different data, and overrides the arguments fsdp and
// zero_stage. On one rank it does nothing.
func WithSharding(s Sharding) Option { return func(a *Accelerator) { a.sharding = s } }

// shardOptions are those of a model that is sharded.
func (a *Accelerator) shardOptions() shard.Options {
	s := a.sharding
	o := shard.Options{Strategy: s.Strategy, Wrap: a.plan.wrap, Gather: s.Gather, Zeros: a.disk.Zeros(),
		Lower: a.plan.lower.Train, Projected: a.tree.Projected(), Prefetch: !s.NoPrefetch}
	o.Wrap.Modules, o.Wrap.Ignored, o.Wrap.Persist = s.Modules, s.Ignored, s.Persist
	if s.Rounded {
		o.Reduce = tensor.BFloat16
	}
	maps.DeleteFunc(o.Projected, func(name string, _ bool) bool { return a.own.Has(name) })
	return o
}

// sharded reports whether the model is spread over ranks, where there are several.
func (a *Accelerator) sharded() bool { return a.sharding.Strategy != shard.None || a.factory.Sharded }
