// SPDX-License-Identifier: Apache-2.0

// Package ddp is distributed data parallelism as in PyTorch (Li et al. 2020): it sums the gradients of all ranks while
// the backward pass still computes others. Packages trainer and accelerate use it. A program needs it only for a
// [Hook], which replaces the sum: pass [BF16Compress], or your own, to accelerate.WithCommHook.
//
// The gradients of several parameters lie side by side in a [Bucket], in memory that the group reduces in place; a
// parameter's gradient is a view of it. A bucket is sent as soon as its last gradient is complete, in the order of the
// buckets on every rank. Sums follow the group's specified tree, element by element, so that neither buckets nor their
// order change a bit. Gradients are summed, never averaged: the loss was divided by the count of the whole step.
// BF16Compress halves the bytes; the bits then depend on the number of ranks.
//
// [Reducer] and its constructors are for package accelerate, which reports complete gradients to it. The package does
// not shard models or optimizer state.
package ddp
