// SPDX-License-Identifier: Apache-2.0

// Package samplers decides which rank sees which samples of a dataset, and in which order. Package trainer uses it. Use
// it in your own training loop: make an order ([NewRandom], [NewSequential] or [NewLengthGroupedSampler]) and give it
// to accelerate's Accelerator.Windows, or cut it into steps yourself with [NewStream].
//
// A [Stream] sees every sample of an epoch once, on any number of ranks, and goes to any place of the training in O(1).
// The package also has the sharding rules of HuggingFace, for programs that depend on them.
//
// # Terms
//
// A Sampler orders the samples of an epoch: n = Len() of them, sample i of epoch e being dataset index At(e, i). Cut
// into micro-batches of b consecutive samples an epoch has L = ⌈n/b⌉ of them, the last with what remains; with
// drop-last L = ⌊n/b⌋, and all are whole. The samples used per epoch are S = n, or L·b with drop-last.
//
// The training stream is epoch 0, epoch 1, … without end. The position of sample i of epoch e in it is e·S + i.
// Positions are what checkpoints store and what random numbers (dropout) depend on; neither knows of ranks.
//
// An optimizer step consumes a window: M = accumulation steps × world size consecutive micro-batches of one epoch,
// numbered 0 … M−1 as the window's micro-batches. Rank r owns micro-batches [r·M/N, (r+1)·M/N) with N the world size,
// so that the same M on another number of ranks gives the same micro-batches to the same window. Windows do not cross
// epochs: an epoch has max(⌈L/M⌉, 1) steps, and its last window may have fewer micro-batches, of which rank r owns
// those of its range that exist: possibly none. Nothing is repeated to fill up.
//
// # The sharding rules of HuggingFace and torch
//
// A Stream sees every sample of an epoch once on any number of ranks, and its bits do not depend on that number. The
// rules of HuggingFace and torch keep their names, for programs that need the same indices as before. They make no such
// promise.
//
//	name                  of            samples at an epoch's end that do not divide evenly
//	DistributedSampler    torch         repeated from the epoch's head, or left out with DropLast
//	LengthGroupedSampler  transformers  none: an order, of which every sample is seen once
//	BatchSamplerShard     accelerate    with EvenBatches repeated; left out with drop-last; otherwise fewer on some ranks
//	IterableDatasetShard  accelerate    repeated from the first block, or left out with drop-last
//	SkipFirst             accelerate    skip_first_batches reads nothing; the epoch stays what it was
//
// The trainer, and accelerate's Accelerator.Windows, use BatchSamplerShard ([NewShardedStream]) and
// IterableDatasetShard under data_sharding huggingface, with this package's permutations; and DistributedSampler
// ([NewDistributedStream]) with torch's permutations under data_sharding torch. LengthGroupedSampler is
// train_sampling_strategy group_by_length. A loop that reads one rank's part by itself gives a [DistributedSampler] to
// [NewBatch], or a stream's items to [Share].
//
// A rule that repeats samples is for training alone: a metric over repeated samples is wrong unless they are cut off
// again. Evaluation and prediction in Lockstep use none of these rules, see every sample exactly once, in the order of
// the dataset, and never leave one out; not with drop-last either, nor with length grouping.
//
// Places in a stream are in global terms (Place), so a run can resume on another number of ranks: no sample of the
// epoch is lost (except those that drop-last leaves out), and samples repeat only to fill the last round.
//
// # What it is not
//
// The package moves indices, not data: it reads no dataset, starts no goroutine and holds no memory that grows
// with n, except for the lengths of a [LengthGroupedSampler] and torch's permutations. Everything is a function of
// (seed, position), so that seeking costs O(1), with torch's permutations O(n).
package samplers
