// SPDX-License-Identifier: Apache-2.0

// Package strategy is the interface between package accelerate and its strategies. A [Strategy] defines how the ranks
// of a job train one model: which part of the parameters each holds, how gradients are added up, and what an optimizer
// updates. It gets a [Job] and does not depend on the accelerator, so it can be tested without one (see
// accelerate/strategy/strategytest). accelerate/ddp, accelerate/shard, accelerate/localsgd and accelerate/pp are
// strategies; programs add their own by accelerate.WithStrategy. Start with [Single], on which most of them are built.
//
// Programs that save and load a model whose parameters are divided among ranks use [Shards].
package strategy
