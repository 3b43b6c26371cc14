// SPDX-License-Identifier: Apache-2.0

package accelerate

import (
	"github.com/lockstep-ml/lockstep/accelerate/shard"
	"github.com/lockstep-ml/lockstep/nn"
)

// Strategy says what of the model each rank has a part of only, instead of the whole.
type Strategy string

// The strategies, by the names of ZeRO (Rajbhandari et al. 2020) and FSDP (Zhao et al. 2023). All give the bits of one
// rank.
const (
	// NoShard is data parallelism: every rank has everything.
	NoShard Strategy = ""
	// ShardOptimizer shards the optimizer's state: ZeRO stage 1.
	ShardOptimizer Strategy = "optimizer"
	// ShardGradients shards the optimizer's state and the gradients: ZeRO stage 2.
	ShardGradients Strategy = "gradients"
	// ShardGradOp also shards the parameters, which are whole from a unit's forward pass to the end of the backward
	// pass: FSDP's SHARD_GRAD_OP.
	ShardGradOp Strategy = "shard_grad_op"
	// FullShard also shards the parameters, which are whole only while their unit computes: ZeRO stage 3, FSDP's
	// FULL_SHARD.
	FullShard Strategy = "full_shard"
)

// Sharding says how a model is spread over the data's ranks.
type Sharding struct {
	Strategy Strategy
	// Modules are the units whose parameters come and go together; nil stands for those that Place is given. What lies
	// in none of them is whole for the length of a pass.
	Modules []nn.Module
	// NoPrefetch gathers the parameters of a unit only when it begins, instead of while the one before it computes.
	NoPrefetch bool
}

// WithSharding shards the model over the ranks that see different data. On one rank it does nothing.
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
	return ranks > 1 && s.Strategy != NoShard && s.Strategy != ShardOptimizer
}

// Together reports whether all ranks compute at the same time, since they gather parameters: a rank without a batch of
// its own repeats another.
func (a *Accelerator) Together() bool { return a.sharding.together(a.Data().size) }

// together reports whether all ranks must compute at the same time, since they gather parameters.
func (s Sharding) together(ranks int) bool {
	return s.interleaved(ranks) && s.Strategy != ShardGradients
}
