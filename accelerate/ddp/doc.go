// SPDX-License-Identifier: Apache-2.0

// Package ddp adds up the gradients of all ranks while the backward pass still computes others: distributed
// data parallelism as in PyTorch (Li et al. 2020). Packages trainer and accelerate use it by themselves. A
// program needs it only for a [Hook], which replaces the sum: give [BF16Compress], or one of your own, to
// accelerate.WithCommHook.
//
// The gradients of several parameters lie side by side in a [Bucket], in memory that the group reduces in
// place; a parameter's gradient is a view of it. A bucket is sent as soon as its last gradient is complete, in
// the order of the buckets on every rank. Sums follow the group's specified tree, element by element, so that
// neither buckets nor their order change a bit. Gradients are summed, never averaged: the loss was divided by
// the count of the whole step. BF16Compress halves the bytes and gives up the promise of the same bits on any
// number of ranks.
//
// [Reducer] and everything that makes one are for package accelerate, which tells it which gradients are
// complete. The package does not cut models or optimizer state into shards.
package ddp
