// SPDX-License-Identifier: Apache-2.0

// Package shard shards the parameters, gradients and optimizer state of a model over the ranks of a group: the stages
// of ZeRO (Rajbhandari et al. 2020) and fully sharded data parallelism (PyTorch's FSDP; Zhao et al. 2023). The bits are
// those of one rank that holds everything. It is for package accelerate; programs choose a strategy by the arguments
// fsdp, deepspeed or zero_stage.
//
// The parameters of a unit, which is a module of the model, or of a bucket lie side by side in a flat buffer, and each
// rank owns an equal part of it: its shard. The owned part of a parameter is a local tensor; optimizers update these.
package shard
