// SPDX-License-Identifier: Apache-2.0

package shard

// Strategy is what each rank has a part of only, instead of the whole.
type Strategy string

// The strategies, by the names of ZeRO (Rajbhandari et al. 2020) and FSDP (Zhao et al. 2023). All give the bits of one
// rank.
const (
	// None is data parallelism: every rank has everything.
	None Strategy = ""
	// Optimizer shards the optimizer's state: ZeRO stage 1.
	Optimizer Strategy = "optimizer"
	// Gradients shards the optimizer's state and the gradients: ZeRO stage 2.
	Gradients Strategy = "gradients"
	// GradOp also shards the parameters, which are whole from a unit's forward pass to the end of the backward pass:
	// FSDP's SHARD_GRAD_OP.
	GradOp Strategy = "shard_grad_op"
	// Full also shards the parameters, which are whole only while their unit computes: ZeRO stage 3, FSDP's FULL_SHARD.
	Full Strategy = "full_shard"
)

// ShardsGradients reports whether a rank keeps the sums of its shard of the gradients alone.
func (s Strategy) ShardsGradients() bool { return s == Gradients || s.ShardsParameters() }

// ShardsParameters reports whether parameters come and go.
func (s Strategy) ShardsParameters() bool { return s == GradOp || s == Full }
