// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/args"
	"github.com/lockstep-ml/lockstep/nn"
)

// Sharding says how a model is spread over the data's ranks.
type Sharding struct {
	Strategy args.ShardStrategy
	// Modules are the units whose parameters come and go together; nil stands for those that Place is given. What lies
	// in none of them is whole for the length of a pass.
	Modules []nn.Module
	// Gather makes ranks of one host gather parameters too. Else they have them once, in memory that they share, unless
	// their engine or device cannot: what full_shard is for, without its traffic.
	Gather bool
	// NoPrefetch gathers the parameters of a unit only when it begins, instead of while the one before it computes.
	NoPrefetch bool
}

// WithSharding shards the model over the ranks that see different data, in place of what the arguments fsdp and
// zero_stage say. On one rank it does nothing.
func WithSharding(s Sharding) Option { return func(a *Accelerator) { a.sharding = s } }

// Shards are this rank's part of the prepared model; nil where the model is not sharded. It serves package trainer,
// which saves and restores.
func (a *Accelerator) Shards() *shard.Sharder {
	if s, ok := a.grads.(*sharded); ok {
		return s.Sharder
	}
	return nil
}

// Summon calls f, which may read whole parameters of a sharded model outside of forward passes. They are gathered as f
// uses them. With write they keep what f makes of them. On every rank f uses the same parameters in the same order.
// Without shards it only calls f.
func (a *Accelerator) Summon(write bool, f func() error) error {
	if s := a.Shards(); s != nil {
		return s.Summon(write, f)
	}
	return f()
}

// interleaved reports whether each of several ranks computes leaves r, r + N …: gradients are exchanged after each.
func (s Sharding) interleaved(ranks int) bool {
	return ranks > 1 && s.Strategy != args.NoShard && s.Strategy != args.ShardOptimizer
}
